"""Documents of the sample corpus, and scores that are learnt from them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from llm_core.config import build
from tasks.corpus.documentset import read_table
from tasks.language.config import LanguageConfig
from tasks.language.stage import identify_languages
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner, serial
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import empty_dir, ingest_files, write_jsonl

SAMPLE = Path(__file__).parents[3] / "data" / "sample" / "sample.jsonl"
PROSE = "metadata->>'kind' = 'prose'"
LEARNT = {
    "classifiers": {"prose": {"positives": PROSE}},
    "perplexities": {"perplexity": {"reference": PROSE, "min_reference_bytes": 5000, "order": 2}},
}


def sample_records() -> list[dict[str, Any]]:
    """English prose, pages of manuals and changelogs of the sample."""
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    kinds = {"prose": 50, "html": 40, "changelog": 40}
    chosen = [
        row
        for kind, most in kinds.items()
        for row in itertools.islice(
            (r for r in rows if r["kind"] == kind and r["lang"] == "en"), most
        )
    ]
    return [
        {"id": r["id"], "text": r["text"][:3000], "kind": r["kind"], "source": r["source"]}
        for r in chosen
    ]


def parents_of(folder: Path, files: list[list[dict[str, Any]]]) -> tuple[Artifact, Artifact]:
    for i, records in enumerate(files):
        write_jsonl(folder / "in" / f"{i}.jsonl", records)
    ingested = ingest_files(folder, "ingest", [folder / "in"], source_column="source")
    return ingested, identify_languages(ingested, empty_dir(folder / "language"), LanguageConfig())


def score(
    parents: tuple[Artifact, Artifact], out: Path, runner: PartRunner = serial, **config: Any
) -> Artifact:
    return score_documents(*parents, empty_dir(out), build(ScoresConfig, config), runner)


def columns_of(artifact: Artifact) -> dict[str, list[Any]]:
    tables = [read_table(file) for file in artifact.files("part-*.parquet")]
    return pa.concat_tables(tables).to_pydict()
