"""Records to ingest, and the texts and faults that come of them."""

from __future__ import annotations

import json
from typing import Any

from tasks.runtime.artifact import Artifact
from tests.support.data.make_artifacts import read_documents

RECORDS = [
    {"id": f"r{i}", "text": f"text number {i}\nwith a second line", "license": "MIT"}
    for i in range(20)
]


def texts(artifact: Artifact) -> list[str]:
    return [row["text"] for row in read_documents(artifact)]


def quarantine(artifact: Artifact) -> list[dict[str, Any]]:
    lines = artifact.file("quarantine.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
