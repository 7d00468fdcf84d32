"""Ingest: what is read, what becomes of it, and what a document is called."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.ingest.documentrows import repair_text
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tasks.runtime.artifact import check_accounting
from tasks.runtime.parts import PartRunner, thread_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl

RECORDS = [
    {"id": f"r{i}", "text": f"text number {i}\nwith a second line", "license": "MIT"}
    for i in range(20)
]


def texts(artifact) -> list[str]:
    return [row["text"] for row in read_documents(artifact)]


def quarantine(artifact) -> list[dict]:
    return [
        json.loads(line)
        for line in artifact.file("quarantine.jsonl").read_text("utf-8").splitlines()
    ]


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


def test_repairs_are_made_and_counted_per_document(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "a"}\n{"text": "\\ufeffb\\u0000\\u0000c"}\n'
        b'{"text": "d\\r\\n\\r\\ne\\r"}\n{"text": "f\\ud83dg", "m": "\\udc00"}\n'
    )
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"])
    assert texts(artifact) == ["a", "bc", "d\n\ne\r", "f\ufffdg"]
    assert artifact.counters["repaired"] == {"NUL": 1, "BOM": 2, "CRLF": 1, "LONE_SURROGATE": 1}
    assert json.loads(read_documents(artifact)[3]["metadata"]) == {"m": "\ufffd"}


def nested(levels: int, end: str = "") -> str:
    return "[" * levels + end + "]" * levels


def at_depth(calls: int, function: Callable[[], Any]) -> Any:
    """The result of a call from so many calls deep."""
    return function() if calls == 0 else at_depth(calls - 1, function)


def test_record_nested_too_deeply_is_the_same_fault_from_any_depth_of_calls(tmp_path) -> None:
    lines = [
        f'{{"text": "t", "{column}": {nested(253, end)}}}'
        for column in ("id", "kind", "m")
        for end in ("", "NaN")
    ]
    deep = [
        line.replace("[", "[" * n, 1).replace("]", "]" * n, 1)
        for line in lines
        for n in (2, 650, 740, 770)
    ]
    brackets = [
        json.dumps({"text": "t", "m": '"\\' + "[" * 2000}),
        '{"text": "t", "m": NaN, "n": "' + '{"'.replace('"', '\\"') * 900 + '"}',
    ]
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*lines, *brackets, *deep, '{"m": ' + nested(3000, "x") + "}"])
    )
    made = [
        at_depth(
            calls,
            lambda n=calls: ingest_files(
                tmp_path, f"out{n}", [tmp_path / "a.jsonl"], exclude={"kind": ("bad",)}
            ),
        )
        for calls in (0, 250)
    ]
    assert [a.counters["kept"] for a in made] == [len(lines) + len(brackets)] * 2
    assert quarantine(made[0]) == quarantine(made[1])
    assert {q["error"] for q in quarantine(made[0])} == {"nested too deeply: more than 254 levels"}


def test_large_integers_keep_their_digits_wherever_they_are(tmp_path) -> None:
    number = "12345678901234567890123"
    values = [number, f"[{number}]", f'{{"a":[1,{{"b":{number}}}]}}']
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "t", "m": {value}}}\n' for value in values)
    )
    rows = read_documents(ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"]))
    assert [row["metadata"] for row in rows] == [f'{{"m":{value}}}' for value in values]


@given(st.text(alphabet=st.sampled_from("a\0\r\n\ufeff"), max_size=12))
def test_repairing_twice_changes_nothing(text) -> None:
    once, _ = repair_text(text)
    assert repair_text(once) == (once, ())
    assert not {"\0", "\ufeff"} & set(once[:1]) and "\r\n" not in once


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "\u200b", "\u3000\u200d\ufeff", "\u2060\t"])
def test_blank_text_is_dropped_as_empty(tmp_path, text) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": text}, {"text": "."}])
    artifact = ingest_files(tmp_path, "out", [tmp_path / "a.jsonl"])
    assert artifact.counters["dropped"] == {"EMPTY": 1, "EXCLUDED": 0} and texts(artifact) == ["."]


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
    (tmp_path / "a.docx").write_text("x")
    write_jsonl(tmp_path / "in" / "a.jsonl", RECORDS)
    for paths, word in (
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["no/*.jsonl"], "no/*.jsonl"),
        (["a.docx"], ".jsonl"),
        ([], "source.paths"),
    ):
        with pytest.raises(ConfigError, match=word.replace("*", r"\*")):
            SourceConfig(name="s", paths=tuple(paths)).input_files()
    with pytest.raises(ConfigError, match="not under source.root"):
        SourceConfig(name="s", paths=("in",), root=tmp_path / "in" / "deeper").input_files()
    assert list(SourceConfig(name="s", paths=("in/*.jsonl",), root=tmp_path).input_files()) == [
        "in/a.jsonl"
    ]


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
