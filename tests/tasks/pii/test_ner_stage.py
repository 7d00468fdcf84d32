"""The stage with a model: spans in the original text, counts, and a kill in its middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers")

from tasks.pii.config import PiiConfig
from tasks.pii.scrub import apply_replacements
from tasks.pii.stage import find_pii
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner, scratch_dir, thread_executor
from tests.support.data.entity_models import write_word_model
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl

ROOT = Path(__file__).parents[3]
WORDS = {"Élise": "B-PER", "Jane": "B-PER", "12": "B-ADDRESS", "1980": "B-DATE", "Rue": "I-ADDRESS"}
TEXTS = ["Ｅ\u0301 E\u0301li\u00adse, 12 Rue", "", " \n", "Jane, born 1980, jane@x.org", "1980"]


@pytest.fixture
def config(tmp_path: Path) -> PiiConfig:
    return PiiConfig(ner=write_word_model(tmp_path / "model", WORDS))


def many_files(tmp_path: Path, number: int) -> Artifact:
    files = [
        write_jsonl(tmp_path / "texts" / f"{i}.jsonl", [{"text": f"{text} {i}"} for text in TEXTS])
        for i in range(number)
    ]
    return ingest_files(tmp_path, "in", files)


def bytes_of(artifact: Artifact) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in artifact.files("*.parquet")}


def test_spans_of_the_model_are_bytes_of_the_original_and_counted_by_type(
    tmp_path: Path, config: PiiConfig
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    source = ingest_files(tmp_path, "in", [tmp_path / "a.jsonl"])
    artifact = find_pii(source, empty_dir(tmp_path / "out"), config)
    clean = {}
    for document, row in zip(
        read_documents(source),
        pq.read_table(artifact.file("part-00000.parquet")).to_pylist(),
        strict=True,
    ):
        spans = ((s["start"], s["end"], s["replacement"]) for s in row["spans"])
        clean[document["text"]] = apply_replacements(document["text"].encode(), spans).decode()
    assert clean[TEXTS[0]] == "Ｅ\u0301 <NAME>, <POSTAL_ADDRESS>"
    assert clean[TEXTS[3]] == "<NAME>, born <DATE_OF_BIRTH>, <EMAIL>"
    assert clean[TEXTS[4]] == "1980"
    types = artifact.metrics["types"]
    assert types["NAME"] == {"spans": 2, "documents": 2}
    assert types["POSTAL_ADDRESS"] == types["DATE_OF_BIRTH"] == {"spans": 1, "documents": 1}
    assert artifact.metrics["actions"]["DATE_OF_BIRTH"] == "tag"


def test_a_document_with_a_name_can_be_dropped(tmp_path: Path, config: PiiConfig) -> None:
    source = many_files(tmp_path, 1)
    dropping = PiiConfig(ner=config.ner, actions={"NAME": "drop_document"})
    artifact = find_pii(source, empty_dir(tmp_path / "out"), dropping)
    assert artifact.counters["dropped"] == {"PII": 2}


def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, config: PiiConfig) -> None:
    source = many_files(tmp_path, 4)
    one = find_pii(source, empty_dir(tmp_path / "one"), config)
    runner = PartRunner(make_executor=thread_executor(3))
    assert bytes_of(one) == bytes_of(find_pii(source, empty_dir(tmp_path / "3"), config, runner))


def test_another_model_in_the_same_folder_reuses_no_part(tmp_path: Path, config: PiiConfig) -> None:
    source = many_files(tmp_path, 2)
    parts = PartRunner(tmp_path / "parts")
    find_pii(source, empty_dir(tmp_path / "first"), config, parts)
    assert config.ner is not None
    write_word_model(config.ner, WORDS | {"Jane": "O"})
    artifact = find_pii(source, empty_dir(tmp_path / "second"), config, parts)
    assert artifact.metrics["types"]["NAME"]["spans"] == 2


SCRIPT = """
import sys, time
from pathlib import Path
from tasks.pii import ner_model, stage
from tasks.pii.config import PiiConfig
from tasks.runtime.artifact import Artifact
source, out, model = map(Path, sys.argv[1:])
tokens_of = ner_model.EntityModel.tokens_of
def slower(self, text):
    time.sleep(0.1)
    return tokens_of(self, text)
ner_model.EntityModel.tokens_of = slower
out.mkdir()
stage.find_pii(Artifact(source, "ingest", {}, {}), out, PiiConfig(ner=model))
"""


def test_a_stage_killed_in_the_middle_of_a_part_resumes_to_the_same_bytes(
    tmp_path: Path, config: PiiConfig
) -> None:
    source, out = many_files(tmp_path, 6), tmp_path / "killed"
    (tmp_path / "program.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "program.py"), source.path, out, str(config.ner)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    parts = scratch_dir(out)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if len(list(parts.glob("[!.]*"))) >= 2 and list(parts.glob(".*.tmp")):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {part.name: part.stat().st_mtime_ns for part in parts.glob("[!.]*")}
    assert 2 <= len(done) < 6, "killed too early or too late to tell"
    resumed = find_pii(source, out, config)
    assert {n: (parts / n).stat().st_mtime_ns for n in done} == done, "a finished part stays"
    whole = find_pii(source, empty_dir(tmp_path / "whole"), config)
    assert bytes_of(resumed) == bytes_of(whole)
