"""Files of every format are ingested alike, and a broken one costs what is broken."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from llm_core.config import ConfigError
from tasks.ingest.sources import SourceConfig
from tasks.runtime.artifact import check_accounting
from tests.support.data.ingested import RECORDS, quarantine, texts
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl


def test_same_text_in_every_format(tmp_path) -> None:
    plain = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    data = plain.read_bytes()
    # Two members and two frames, cut in the middle of a line, with a skippable frame and zero
    # padding between.
    (tmp_path / "a.jsonl.gz").write_bytes(
        gzip.compress(data[:333]) + gzip.compress(data[333:]) + b"\0" * 7
    )
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
    frames = zstandard.compress(data[:333]) + skippable + zstandard.compress(data[333:])
    (tmp_path / "a.jsonl.zst").write_bytes(frames)
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "a.parquet", row_group_size=7)
    want = [r["text"] for r in RECORDS]
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        artifact = ingest_files(tmp_path, f"out-{name}", [tmp_path / name])
        rows = read_documents(artifact)
        assert [row["text"] for row in rows] == want, name
        assert [row["source_id"] for row in rows] == [r["id"] for r in RECORDS]
        assert artifact.counters["quarantined"] == 0 and artifact.metrics["licenses"] == {"MIT": 20}


def test_text_files_are_one_document_each_named_by_their_path(tmp_path) -> None:
    empty_dir(tmp_path / "in" / "sub")
    (tmp_path / "in" / "a.txt").write_bytes(b"\xef\xbb\xbfplain\r\ntext")
    (tmp_path / "in" / "sub" / "b.md").write_text("# Title\n\nbody", "utf-8")
    (tmp_path / "in" / "c.txt").write_bytes(b"line\ncaf\xe9")
    (tmp_path / "in" / "d.bin").write_bytes(b"not read")
    (tmp_path / "in" / ".hidden.txt").write_text("not read")
    artifact = ingest_files(tmp_path, "out", [tmp_path / "in"])
    assert [(r["source_id"], r["text"]) for r in read_documents(artifact)] == [
        ("a.txt", "plain\ntext"),
        ("sub/b.md", "# Title\n\nbody"),
    ]
    assert [(q["file"], q["line"], q["byte_offset"]) for q in quarantine(artifact)] == [
        ("c.txt", 2, 8)
    ]


def test_text_files_have_no_metadata_with_or_without_an_id_column(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    for id_column in ("uuid", None):
        artifact = ingest_files(
            tmp_path, f"out-{id_column}", [tmp_path / "a.txt"], id_column=id_column
        )
        (row,) = read_documents(artifact)
        assert (row["source_id"], row["metadata"]) == ("a.txt" if id_column else None, "{}")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_archive_keeps_whole_lines_and_says_where_it_ends(tmp_path, suffix) -> None:
    records = [
        {"text": f"{i} " + "".join(chr(97 + (i * j * j) % 26) for j in range(900))}
        for i in range(400)
    ]
    data = write_jsonl(tmp_path / "a.jsonl", records).read_bytes()
    whole = gzip.compress(data) if suffix == ".gz" else zstandard.compress(data)
    (tmp_path / f"cut.jsonl{suffix}").write_bytes(whole[: len(whole) * 3 // 4])
    artifact = ingest_files(tmp_path, "out", [tmp_path / f"cut.jsonl{suffix}"])
    kept = texts(artifact)
    assert 0 < len(kept) < 400 and kept == [r["text"] for r in records[: len(kept)]]
    (fault,) = quarantine(artifact)
    assert "truncated" in fault["error"] and fault["line"] == len(kept) + 1
    assert data[: fault["byte_offset"]].count(b"\n") == len(kept)
    check_accounting("ingest", artifact.counters)


def test_corrupt_archive_and_trailing_garbage_keep_what_is_sound(tmp_path) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", RECORDS).read_bytes()
    for name, stored in (
        ("g.jsonl.gz", gzip.compress(data)),
        ("z.jsonl.zst", zstandard.compress(data)),
    ):
        (tmp_path / name).write_bytes(stored + b"garbage that is not a stream")
        artifact = ingest_files(tmp_path, f"out-{name}", [tmp_path / name])
        assert texts(artifact) == [r["text"] for r in RECORDS]
        assert "corrupt" in quarantine(artifact)[0]["error"]


def test_huge_line_passes(tmp_path) -> None:
    huge = "x" * 50_000_000
    write_jsonl(tmp_path / "a.jsonl", [{"text": "before"}, {"text": huge}, {"text": "after"}])
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"])
    assert artifact.counters["kept"] == 3 and artifact.counters["bytes"] == 50_000_000 + 11
    assert len(artifact.files("documents/*")) == 3
    histogram = artifact.metrics["length_histogram"]
    assert (
        sum(histogram["counts"]) == 3
        and histogram["edges_bytes"][0] <= 5
        and histogram["edges_bytes"][-1] > 50_000_000
    )


def test_broken_parquet_is_a_fault_of_that_file(tmp_path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but not really PAR1")
    write_jsonl(tmp_path / "good.jsonl", RECORDS)
    artifact = ingest_files(tmp_path, "out", [tmp_path])
    assert len(texts(artifact)) == 20 and "unreadable Parquet" in quarantine(artifact)[0]["error"]


def test_parquet_types_json_does_not_have_become_text(tmp_path) -> None:
    table = pa.table(
        {
            "text": pa.array(["a", None, "b"]),
            "at": pa.array([1, None, 2_000_000_001], pa.timestamp("ns", "UTC")),
            "raw": pa.array([b"\x01", b"", None]),
            "score": pa.array([float("nan"), 1.5, float("inf")]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.parquet"])
    metadata = [json.loads(row["metadata"]) for row in read_documents(artifact)]
    assert metadata[0] == {"at": "1970-01-01T00:00:00+00:00", "raw": "01", "score": None}
    assert metadata[1] == {"at": "1970-01-01T00:00:02+00:00", "raw": None, "score": None}
    assert quarantine(artifact) == [
        {"file": "a.parquet", "line": 2, "byte_offset": None, "error": "column text is null"}
    ]


def test_file_listed_twice_is_read_once(tmp_path, monkeypatch) -> None:
    write_jsonl(tmp_path / "a.jsonl", RECORDS)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    monkeypatch.chdir(tmp_path)
    assert (
        ingest_files(tmp_path, "out", ["a.jsonl", "./a.jsonl", "*.jsonl", str(tmp_path)]).counters[
            "read"
        ]
        == 20
    )


def test_paths_that_cannot_be_read_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04")
    write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    for paths, word in (
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["no/*.jsonl"], "no/*.jsonl"),
        (["a.xlsx"], "it is a zip archive"),
        ([], "source.paths"),
    ):
        with pytest.raises(ConfigError, match=word.replace("*", r"\*")):
            SourceConfig(name="s", paths=tuple(paths)).input_files()
    with pytest.raises(ConfigError, match="not under source.root"):
        SourceConfig(name="s", paths=("in",), root=tmp_path / "in" / "deeper").input_files()
    assert list(SourceConfig(name="s", paths=("in/*.jsonl",), root=tmp_path).input_files()) == [
        "in/a.jsonl"
    ]
