"""A run on record, and the commands that ask about it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pyarrow as pa
import pytest

from flows import cli
from flows.records import RunRecord, write_record
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.stage import find_contamination
from tasks.contamination.suites import SuiteConfig
from tasks.corpus.documentset import ID, write_table
from tasks.documents.config import DocumentsConfig
from tasks.documents.mixture import MixtureConfig
from tasks.documents.stage import write_documents
from tasks.quality.stage import filter_quality
from tasks.runtime.keys import key_config
from tasks.runtime.store import Node, Store, now
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import (
    CUTS,
    SPANS,
    empty_dir,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)
from tests.support.data.run_on_record import RULES, TEXTS, Ask, publishable


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A store with one run on record; the id of each document by its source id."""
    folder = tmp_path_factory.mktemp("past")
    records = [
        {"id": name, "text": text, "url": f"https://x.org/{name}"} for name, text in TEXTS.items()
    ]
    records[list(TEXTS).index("other")]["kind"] = "mail"
    records += [{"id": "bla\x1bnk", "text": " "}, {"id": "good", "text": None}]
    ingested = ingest_files(folder, "ingest", [write_jsonl(folder / "in.jsonl", records)])
    names, ids = list(TEXTS), {row["source_id"]: row["id"] for row in read_documents(ingested)}
    others = {"unmixed": "de", "headed": "fr", "unended": "fr"}
    kinds = [others.get(name, "en") for name in names]
    language = make_sidecar(
        ingested,
        "language",
        folder / "language",
        [("language", pa.string(), kinds), ("score", pa.float32(), [0.875] * len(names))],
    )
    scores = score_documents(ingested, language, empty_dir(folder / "scores"), ScoresConfig())
    quality = filter_quality(ingested, language, scores, empty_dir(folder / "quality"), RULES)
    survivor = {"copy": "good", "again": "earlier"}
    ids["earlier"] = b"earlier document"
    reasons = {"copy": "NEAR_DUPLICATE", "again": "NEAR_DUPLICATE"}
    cuts = [
        [{"start": 0, "end": len(TEXTS[n]), "reason": "REPEATED_LINE"}] if n == "emptied" else []
        for n in names
    ]
    dedup = make_sidecar(
        ingested,
        "dedup",
        folder / "dedup",
        [
            ("cluster_id", ID, [None if n == "short" else ids[survivor.get(n, n)] for n in names]),
            ("family_id", ID, [None if n == "short" else ids[survivor.get(n, n)] for n in names]),
            (
                "cluster_size",
                pa.int32(),
                [None if n == "short" else 2 if n in ("good", "copy") else 1 for n in names],
            ),
            ("kept", pa.bool_(), [n != "short" and n not in reasons for n in names]),
            ("reason", pa.string(), [reasons.get(n) for n in names]),
            ("cuts", CUTS, cuts),
        ],
    )
    pair = {
        "a": pa.array([ids["good"]], ID),
        "b": pa.array([ids["copy"]], ID),
        "jaccard": [0.9375],
        "removed": [True],
    }
    write_table(pa.table(pair), dedup.path / "pairs.parquet")
    pair |= {
        "a": pa.array([ids["earlier"]], ID),
        "b": pa.array([ids["again"]], ID),
        "jaccard": [0.90625],
    }
    write_table(pa.table(pair), dedup.path / "earlier_pairs.parquet")
    spans = [
        [{"start": 4, "end": 10, "type": "NAME", "replacement": "<NAME>"}] if n == "good" else []
        for n in names
    ]
    pii = make_sidecar(
        ingested,
        "pii",
        folder / "pii",
        [("spans", SPANS, spans), ("kept", pa.bool_(), [True] * len(names))],
    )
    asks = {
        "id": "q1",
        "question": "Do people\x1b have a river to be with, and that is not all?",
        "answer": "Yes",
    }
    suite = SuiteConfig(write_jsonl(folder / "quiz.jsonl", [asks]), answer="answer")
    looking = ContaminationConfig(suites={"quiz": suite}, action="report", ngram_units=8)
    contamination = find_contamination(ingested, empty_dir(folder / "contamination"), looking)
    made = {
        "ingest": ingested,
        "language": language,
        "quality": quality,
        "dedup": dedup,
        "pii": pii,
        "contamination": contamination,
    }
    config = DocumentsConfig(mixture=MixtureConfig(language_frac={"de": 0.0}))
    made["documents"] = write_documents(*made.values(), empty_dir(folder / "documents"), config)
    made["scores"] = scores
    store = Store(folder / "store")
    for stage, artifact in made.items():
        settings = key_config(RULES) if stage == "quality" else {}
        node = Node(
            stage,
            f"{stage}key",
            f"{stage}parts",
            {},
            json.loads(json.dumps(settings, default=dataclasses.asdict)),
        )
        store.publish(node, publishable(artifact, store.work_dir(stage, node.key)), 1.0, 1.0, now())
    keys = {stage: f"{stage}key" for stage in made}
    write_record(
        store,
        RunRecord(
            "20260101-000000-abcdef",
            "refresh",
            "shards",
            ["quality=gopher_fineweb", "quality.limits={}"],
            now(),
            keys,
            {},
            "completed",
        ),
    )
    return {name: one.hex() for name, one in ids.items()} | {"store": str(store.root)}


@pytest.fixture
def ask(ids: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        code = cli.main([*arguments, f"store={ids['store']}"])
        out, err = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines()] if "--json" in arguments else []
        return {
            "code": code,
            "out": out,
            "err": err,
            "lines": lines,
            "json": lines[0] if lines else None,
        }

    return run
