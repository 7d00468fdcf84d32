"""Every record becomes a document, a drop or a fault, and a document keeps its identity."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tasks.runtime.artifact import check_accounting
from tasks.runtime.parts import PartRunner, thread_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.ingested import RECORDS, quarantine, texts
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl

FAULTY_LINES = st.one_of(
    st.builds(lambda t: json.dumps({"text": t}).encode(), st.text(max_size=20)),
    st.builds(lambda t: json.dumps({"text": t, "kind": "bad"}).encode(), st.text(max_size=5)),
    st.sampled_from(
        [
            b'{"text": null}',
            b'{"text": 3}',
            b'{"text": ["a"]}',
            b"{}",
            b"[]",
            b"7",
            b"{broken",
            b'{"text": "caf\xe9"}',
            b'{"text": "a\\ud800b"}',
            b'{"text": "x", "score": NaN, "big": 1e999}',
            b'{"text": NaN}',
            b'{"text": " \\u200b\\n\\u3000"}',
            b'{"text": "a\\u0000b\\r\\nc"}',
            b'\xef\xbb\xbf{"text": "bom"}',
            b"",
            b"   ",
        ]
    ),
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(FAULTY_LINES, min_size=1, max_size=12),
    end=st.sampled_from([b"", b"\n", b"\r\n"]),
)
def test_kept_plus_dropped_plus_quarantined_equals_read(tmp_path_factory, lines, end) -> None:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + end)
    (folder / "good.jsonl").write_bytes(b'{"text": "good"}\n')
    artifact = ingest(
        empty_dir(folder / "out"),
        SourceConfig(name="s", paths=(str(folder),), exclude={"kind": ("bad",)}),
    )
    check_accounting("ingest", artifact.counters)
    assert artifact.counters["read"] == 1 + sum(bool(line.strip()) for line in lines)
    assert len(read_documents(artifact)) == artifact.counters["kept"]
    assert len(quarantine(artifact)) == artifact.counters["quarantined"]
    rows = pq.read_table(artifact.file("dropped.parquet")).to_pylist()
    lost = [
        (row["line"], row["byte_offset"], row["reason"])
        for row in rows
        if row["outcome"] == "quarantined"
    ]
    assert lost == [
        (fault["line"], fault["byte_offset"], fault["error"]) for fault in quarantine(artifact)
    ]
    reasons = Counter(row["reason"] for row in rows if row["outcome"] == "dropped")
    assert reasons == Counter(
        {reason: n for reason, n in artifact.counters["dropped"].items() if n}
    )
    for row in read_documents(artifact):
        assert "\0" not in row["text"] and "\r\n" not in row["text"] and row["text"].strip()
        orjson.loads(row["metadata"])


def test_what_became_no_document_is_kept_by_its_id_and_place_and_without_its_text(tmp_path) -> None:
    records = [
        {"id": "kept", "text": "secret words"},
        {"id": 7, "text": " "},
        {"id": "no", "kind": "bad", "text": "secret words"},
    ]
    records += [{"id": "odd", "text": ["secret words"]}]
    records += [{"text": None}, {"id": "kept", "text": "secret words too"}]
    write_jsonl(tmp_path / "a.jsonl", records)
    everything = ingest_files(tmp_path, "all", [tmp_path / "a.jsonl"])
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"], exclude={"kind": ("bad",)})
    rows = pq.read_table(artifact.file("dropped.parquet")).to_pylist()
    assert [(row["source_id"], row["outcome"], row["reason"]) for row in rows] == [
        ("7", "dropped", "EMPTY"),
        ("no", "dropped", "EXCLUDED"),
        ("odd", "quarantined", "wrong type: column text is a list, not text"),
        (None, "quarantined", "column text is null"),
    ]
    assert [(row["source"], row["file"], row["line"]) for row in rows] == [
        ("made", "a.jsonl", line) for line in (2, 3, 4, 5)
    ]
    was = next(row["id"] for row in read_documents(everything) if row["source_id"] == "no")
    assert rows[1]["id"] == was, "a record has the id that it has as a document"
    assert b"secret" not in artifact.file("dropped.parquet").read_bytes()


def test_each_fault_costs_its_line_and_says_where(tmp_path) -> None:
    lines = [
        b'{"text": "one"}',
        b'{"text": "caf\xe9"}',
        b'{"text": "three"',
        b'{"text": 4}',
        b'{"text": null}',
        b'{"other": 1}',
        b"[1]",
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines, b'{"text": "last"}']))
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"])
    assert texts(artifact) == ["one", "last"]
    found = quarantine(artifact)
    assert [f["line"] for f in found] == [2, 3, 4, 5, 6, 7]
    assert [f["byte_offset"] for f in found] == [
        sum(len(line) + 1 for line in lines[:i]) for i in range(1, 7)
    ]
    assert {f["file"] for f in found} == {"a.jsonl"}
    words = [
        "invalid UTF-8: byte 0xe9",
        "broken JSON",
        "wrong type: column text is a number",
        "is null",
        "is missing",
        "not an object",
    ]
    assert all(word in f["error"] for word, f in zip(words, found, strict=True))
    assert artifact.metrics["quarantine_examples"] == found


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "\u200b", "\u3000\u200d\ufeff", "\u2060\t"])
def test_blank_text_is_dropped_as_empty(tmp_path, text) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": text}, {"text": "."}])
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"])
    assert artifact.counters["dropped"] == {"EMPTY": 1, "EXCLUDED": 0} and texts(artifact) == ["."]


def test_identity_ignores_file_order_part_layout_folder_and_workers(tmp_path) -> None:
    def make(folder: Path, order: list[int], **config) -> tuple[dict, dict]:
        for i in order:
            write_jsonl(
                folder / f"d{i % 2}" / f"f{i}.jsonl", [{"text": f"{i} {j}" * 20} for j in range(5)]
            )
        runner = PartRunner(make_executor=thread_executor(3))
        out = empty_dir(folder.with_name(folder.name + "-out"))
        artifact = ingest(
            out,
            SourceConfig(name="s", paths=tuple(str(folder / f"d{i}") for i in (1, 0)), **config),
            runner,
        )
        files = {f.name: f.read_bytes() for f in artifact.files("documents/*")}
        return {row["id"]: row["text"] for row in read_documents(artifact)}, files

    ids, files = make(tmp_path / "one", [0, 1, 2, 3])
    moved_ids, moved_files = make(tmp_path / "deep" / "two", [3, 1, 0, 2])
    small_ids, small_files = make(tmp_path / "three", [0, 1, 2, 3], max_text_bytes_per_file=500)
    assert ids == moved_ids == small_ids and len(ids) == 20
    assert files == moved_files and len(small_files) > len(files)


def test_growing_a_source_keeps_the_identity_of_what_was_there(tmp_path) -> None:
    write_jsonl(tmp_path / "in" / "b" / "x.jsonl", RECORDS)
    before = {row["id"] for row in read_documents(ingest_files(tmp_path, "o1", [tmp_path / "in"]))}
    write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    with (tmp_path / "in" / "b" / "x.jsonl").open("a") as more:
        more.write('{"text": "appended"}\n')
    after = {row["id"] for row in read_documents(ingest_files(tmp_path, "o2", [tmp_path / "in"]))}
    assert before < after and len(after) == 41


def test_source_without_documents_fails_with_the_reasons(tmp_path) -> None:
    empty_dir(tmp_path / "none")
    with pytest.raises(StageFailure, match="no readable file"):
        ingest_files(tmp_path, "o1", [tmp_path / "none"])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(StageFailure, match="no record was found"):
        ingest_files(tmp_path, "o2", [tmp_path / "empty.jsonl"])
    write_jsonl(tmp_path / "bad.jsonl", [{"text": ""}, {"content": "x"}, {"content": "y"}])
    with pytest.raises(
        StageFailure,
        match=r"quarantined 2, EMPTY 1; first bad.jsonl line 2: column text is missing",
    ):
        ingest_files(tmp_path, "o3", [tmp_path / "bad.jsonl"])


def test_records_over_the_limit_are_quarantined_and_the_run_goes_on(tmp_path: Path) -> None:
    texts = ["short", "x" * 3000, "also short"]
    write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet")
    config = SourceConfig(name="s", paths=(str(tmp_path),), max_record_bytes=2000)
    artifact = ingest(empty_dir(tmp_path / "out"), config)
    assert artifact.counters["kept"] == 6 and artifact.counters["quarantined_by"] == {
        "over the limit": 3
    }
    assert {row["text"] for row in read_documents(artifact)} == {"short", "also short"}


def test_config_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="max_record_bytes"):
        build(SourceConfig, {"name": "s", "max_record_bytes": 0})
    with pytest.raises(ConfigError, match="max_text_bytes_per_file"):
        build(SourceConfig, {"name": "s", "max_text_bytes_per_file": 0})
    with pytest.raises(ConfigError, match="mapped twice"):
        build(SourceConfig, {"name": "s", "id_column": "text"})
