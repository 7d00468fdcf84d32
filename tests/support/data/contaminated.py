"""Documents and a suite of questions, and contamination searched for between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_core.config import build
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.stage import find_contamination
from tasks.corpus.documentset import read_table
from tasks.runtime.artifact import Artifact, check_accounting
from tasks.runtime.parts import PartRunner, serial
from tests.support.data.language_texts import documents_artifact
from tests.support.data.make_artifacts import empty_dir, write_jsonl

WORDS = [f"w{i}" for i in range(400)]
CLEAN = " ".join(WORDS[200:260])
QUESTION = (
    "Which river that rises in the Black Forest flows through ten countries before it reaches the"
    " sea?"
)
ANSWER = (
    "The Danube, which is longer than any other river of the European Union and has many names."
)


def find_in_parts(
    tmp_path: Path,
    parts: list[list[str]],
    items: list[dict[str, Any]],
    runner: PartRunner = serial,
    **config: Any,
) -> tuple[Artifact, list[dict[str, Any]], list[dict[str, Any]]]:
    """The artifact, its rows and its hits, for one suite of question, answer and id."""
    number = len(list(tmp_path.glob("run-*")))
    folder = empty_dir(tmp_path / f"run-{number}")
    ingest = documents_artifact(folder / "ingest", parts)
    suite = {
        "path": str(write_jsonl(folder / "suite.jsonl", items)),
        "answer": "answer",
    } | config.pop("suite", {})
    made = build(ContaminationConfig, {"suites": {"rivers": suite}, **config})
    artifact = find_contamination(ingest, empty_dir(folder / "out"), made, runner)
    check_accounting("contamination", artifact.counters)
    rows = [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]
    hits = [
        json.loads(line) for line in (artifact.path / "hits.jsonl").read_text("utf-8").splitlines()
    ]
    return artifact, rows, hits


def suite_item(question: str, answer: str | None = None, name: str = "q1") -> dict[str, Any]:
    return {"id": name, "question": question, "answer": answer}
