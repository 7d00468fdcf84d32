"""Columns are mapped, compared as text and kept as sorted metadata."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.data.ingested import quarantine, texts
from tests.support.data.make_artifacts import ingest_files, read_documents, write_jsonl


def test_columns_are_mapped_and_the_rest_is_sorted_metadata(tmp_path) -> None:
    record = {
        "z": [1, {"b": 2, "a": None}],
        "body": "t",
        "n": 12345678901234567890123,
        "link": "u",
        "lang": "en",
        "when": 2020,
        "site": "x",
    }
    write_jsonl(tmp_path / "a.jsonl", [record, {"body": "no site", "site": None}])
    columns = {
        "text_column": "body",
        "id_column": "n",
        "url_column": "link",
        "language_column": "lang",
    }
    artifact = ingest_files(
        tmp_path,
        "out",
        [tmp_path / "a.jsonl"],
        **columns,
        added_column="when",
        source_column="site",
    )
    first, second = read_documents(artifact)
    assert first | {"id": b""} == {
        "id": b"",
        "text": "t",
        "source": "x",
        "source_id": "12345678901234567890123",
        "url": "u",
        "language": "en",
        "added_at": "2020",
        "metadata": '{"z":[1,{"a":null,"b":2}]}',
    }
    assert second["source"] == "made" and second["source_id"] is None
    assert artifact.metrics["by_source"] == {
        "made": {"documents": 1, "bytes": 7},
        "x": {"documents": 1, "bytes": 1},
    }


def test_column_with_two_meanings_has_both(tmp_path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "t", "url": "https://x.org/1", "more": 1}])
    (row,) = read_documents(
        ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"], id_column="url", source_column="url")
    )
    assert [row[name] for name in ("source_id", "url", "source")] == [
        "https://x.org/1"
    ] * 3 and row["metadata"] == '{"more":1}'


def test_include_and_exclude_compare_values_as_text(tmp_path) -> None:
    records = [
        {"text": "a", "ok": True, "n": 1},
        {"text": "b", "ok": False, "n": 1},
        {"text": "c", "n": 2},
    ]
    write_jsonl(tmp_path / "a.jsonl", records)
    assert texts(
        ingest_files(tmp_path, "x", [tmp_path / "a.jsonl"], exclude={"ok": ("false",)})
    ) == ["a", "c"]
    assert texts(ingest_files(tmp_path, "y", [tmp_path / "a.jsonl"], include={"n": ("1",)})) == [
        "a",
        "b",
    ]


def test_columns_within_columns_are_read_and_compared(tmp_path) -> None:
    records = [
        {"message": {"role": "user", "content": "one"}, "meta": {"id": "a"}},
        {"message": {"role": "bot", "content": "two"}, "meta": {"id": "b"}},
        {"message": {"role": "user"}, "meta": {"id": "c"}},
        {"message": "three", "message.content": "four", "meta": None},
    ]
    write_jsonl(tmp_path / "a.jsonl", records)
    table = pa.Table.from_pylist(records[:3])
    pq.write_table(table, tmp_path / "a.parquet")
    columns = {"text_column": "message.content", "id_column": "meta.id"}
    for name, missing in (("a.jsonl", "missing"), ("a.parquet", "null")):
        made = ingest_files(tmp_path, f"out-{name}", [tmp_path / name], **columns)
        rows = read_documents(made)
        assert [(r["source_id"], r["text"]) for r in rows[:2]] == [("a", "one"), ("b", "two")]
        assert json.loads(rows[0]["metadata"]) == {"message": {"role": "user"}, "meta": {}}
        assert [q["error"] for q in quarantine(made)] == [f"column message.content is {missing}"]
    assert texts(
        ingest_files(
            tmp_path,
            "excluded",
            [tmp_path / "a.jsonl"],
            **columns,
            exclude={"message.role": ("bot",)},
        )
    ) == ["one", "four"]


def test_folders_named_like_columns_are_columns(tmp_path) -> None:
    for folder, text in (("year=2024/lang=de", "a"), ("year=2025/lang=fr%20CA", "b")):
        write_jsonl(tmp_path / "in" / folder / "a.jsonl", [{"text": text}])
    null = "year=__HIVE_DEFAULT_PARTITION__"
    write_jsonl(tmp_path / "in" / null / "a.jsonl", [{"text": "c", "lang": "es"}])
    made = ingest_files(tmp_path, "out", [tmp_path / "in"], language_column="lang")
    rows = [(r["text"], r["language"], json.loads(r["metadata"])) for r in read_documents(made)]
    assert rows == [
        ("a", "de", {"year": "2024"}),
        ("b", "fr CA", {"year": "2025"}),
        ("c", "es", {"year": None}),
    ]
    assert texts(ingest_files(tmp_path, "x", [tmp_path / "in"], include={"year": ("2025",)})) == [
        "b"
    ]
