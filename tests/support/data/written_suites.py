"""Suites as their users write them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_suite(
    parent: Path, name: str, records: Sequence[Mapping[str, Any]], **lines: Any
) -> Path:
    """The folder of a suite; lines are those of suite.yaml, and None leaves one out."""
    folder = parent / name
    folder.mkdir(parents=True)
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "items.jsonl").write_text(data, "utf-8")
    known = {
        "version": 1,
        "licence": "Apache-2.0",
        "file": "items.jsonl",
        "sha256": hashlib.sha256(data.encode()).hexdigest(),
        "kind": "choices",
    } | lines
    said = {key: value for key, value in known.items() if value is not None}
    # JSON is YAML.
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in said.items())
    (folder / "suite.yaml").write_text(text, "utf-8")
    return folder


def question(id: str, text: str, choices: Sequence[str], answer: int) -> dict[str, Any]:
    return {"id": id, "question": text, "choices": list(choices), "answer": answer}
