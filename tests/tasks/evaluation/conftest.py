"""Suites as their users write them, and a small run to score them with."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.data.trained_run import Run, make_run

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("small_run"))


@pytest.fixture
def write_suite(tmp_path: Path) -> Write:
    """(name, records, **lines of suite.yaml) → the folder; a value of None leaves a line out."""

    def write(name: str, records: Sequence[Mapping[str, Any]], **lines: Any) -> Path:
        folder = tmp_path / "suites" / name
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

    return write


def question(id: str, text: str, choices: Sequence[str], answer: int) -> dict[str, Any]:
    return {"id": id, "question": text, "choices": list(choices), "answer": answer}
