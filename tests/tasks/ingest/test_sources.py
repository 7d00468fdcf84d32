"""Several sources in one run keep their names, their mappings and their finished parts."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError, build, to_plain
from tasks.ingest.sources import InputConfig, SourceConfig
from tasks.ingest.stage import ingest, list_parts
from tasks.runtime.inputs import InputDigests
from tasks.runtime.keys import canonical_json, key_config
from tasks.runtime.parts import PartRunner
from tasks.runtime.plan import make_nodes
from tasks.runtime.store import Node, Store
from tests.support.data.ingested import quarantine, texts
from tests.support.data.make_artifacts import empty_dir, read_documents, write_jsonl


@pytest.fixture
def two(tmp_path: Path) -> dict[str, Any]:
    write_jsonl(tmp_path / "crawl" / "a.jsonl", [{"text": "from the web"}, {"text": None}])
    write_jsonl(
        tmp_path / "wiki" / "a.jsonl",
        [{"body": "from a wiki", "key": 7, "part": "talk"}, {"body": "x", "part": "x"}],
    )
    return {
        "web": {"paths": [str(tmp_path / "crawl")]},
        "wiki": {
            "paths": [str(tmp_path / "wiki" / "*.jsonl")],
            "text_column": "body",
            "id_column": "key",
            "include": {"part": ["talk"]},
        },
    }


def test_every_document_carries_the_name_of_its_source(two: dict[str, Any], tmp_path: Path) -> None:
    config = build(SourceConfig, {"name": "mix", "sources": two})
    artifact = ingest(empty_dir(tmp_path / "out"), config)
    assert [(r["source"], r["text"], r["source_id"]) for r in read_documents(artifact)] == [
        ("web", "from the web", None),
        ("wiki", "from a wiki", "7"),
    ]
    assert list(config.input_files()) == ["web/a.jsonl", "wiki/a.jsonl"]
    assert [q["file"] for q in quarantine(artifact)] == ["web/a.jsonl"]
    assert artifact.metrics["by_source"] == {
        "web": {"documents": 1, "bytes": 12},
        "wiki": {"documents": 1, "bytes": 11},
    }
    assert artifact.counters["dropped"]["EXCLUDED"] == 1


def test_documents_have_the_same_identities_alone_and_among_others(
    two: dict[str, Any], tmp_path: Path
) -> None:
    together = ingest(empty_dir(tmp_path / "together"), build(SourceConfig, {"sources": two}))
    alone = [
        ingest(empty_dir(tmp_path / f"out-{name}"), build(SourceConfig, {"name": name, **settings}))
        for name, settings in two.items()
    ]
    assert [r["id"] for r in read_documents(together)] == [
        r["id"] for a in alone for r in read_documents(a)
    ]


def test_key_holds_the_mapping_of_every_source_and_no_path(
    two: dict[str, Any], tmp_path: Path
) -> None:
    config = build(SourceConfig, {"sources": two})
    text = canonical_json(key_config(config))
    assert '"text_column":"body"' in text and str(tmp_path) not in text
    assert build(SourceConfig, to_plain(config)) == config
    other = build(SourceConfig, {"sources": two | {"wiki": {**two["wiki"], "text_column": "key2"}}})
    assert canonical_json(key_config(other)) != text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"paths": ["a"], "sources": {"x": {"paths": ["b"]}}}, "exclude each other"),
        ({"sources": {"a/b": {"paths": ["b"]}}}, "name ('a/b')"),
        ({"name": ""}, "name ('')"),
        (
            {"sources": {"x": {"path": ["b"]}}},
            "source.sources.x.path is not a known setting; did you mean paths?",
        ),
        ({"max_bad_frac": 1.5}, "max_bad_frac (1.5)"),
        ({"html": {"timeout_s": 0}}, "source.html.timeout_s (0)"),
        ({"html": {"max_memory_bytes": 1}}, "max_memory_bytes (1)"),
        ({"format": "pptx"}, "format (pptx) has no reader"),
        ({"delimiter": ";;"}, "delimiter (';;') must be one character"),
        ({"delimiter": '"', "quote": '"'}, "must differ"),
        (
            {"query": "-- all of them"},
            "source.query ('-- all of them') must be one SELECT statement",
        ),
        ({"query": "select 1; select 2"}, "must be one SELECT statement; try query='select id"),
        ({"query": "delete from posts"}, "must be one SELECT statement"),
        ({"text_kind": "pdf"}, "text_kind (pdf) is not a choice"),
    ],
)
def test_config_says_what_is_wrong(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SourceConfig, config, "source")
    assert words in str(caught.value)


def test_another_source_leaves_the_finished_parts_of_the_others_good(
    two: dict[str, Any], tmp_path: Path
) -> None:
    def nodes_and_parts(sources: dict[str, Any]) -> tuple[Node, dict[str, str]]:
        config = build(SourceConfig, {"sources": sources})
        node = make_nodes(
            "ingest", {"ingest": config}, InputDigests(tmp_path / "digests.json"), ""
        )["ingest"]
        return node, {part.name: part.digest for part in list_parts(config)}

    one, one_parts = nodes_and_parts({"web": two["web"]})
    both, both_parts = nodes_and_parts(two)
    assert one.key != both.key and one.part_key == both.part_key
    assert one_parts.items() < both_parts.items()
    _, changed = nodes_and_parts(two | {"wiki": {**two["wiki"], "text_column": "part"}})
    assert [name for name in both_parts if changed[name] != both_parts[name]] == ["wiki/a.jsonl"]


def test_source_without_paths_is_named(two: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"source\.sources\.web\.paths is empty"):
        build(SourceConfig, {"sources": two | {"web": {}}}).input_files()


def test_files_without_a_reader_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    write_jsonl(folder / "a.jsonl", [{"text": "one"}])
    for name in (
        "b.json",
        "c.jsonl.lz4",
        "d.pptx",
        "part-00000",
        "sub/part-00001",
        ".hidden",
        "_ok/.crc",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b'{"text": "more"}\n')
    caplog.set_level("WARNING", "tasks.ingest.stage")
    artifact = ingest(empty_dir(tmp_path / "out"), SourceConfig(name="s", paths=(str(folder),)))
    assert artifact.counters["files"] == 2 and artifact.counters["files_left_out"] == 4
    assert artifact.metrics["files_left_out"] == {
        "by_ending": {"(none)": 2, ".lz4": 1, ".pptx": 1},
        "examples": ["c.jsonl.lz4", "d.pptx", "part-00000", "sub/part-00001"],
    }
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("skipped, unsupported format: 4 ((none) 2") and "source.format" in said
    # One that another entry reads is not left out.
    both = SourceConfig(name="s", paths=(str(folder), str(folder / "part-*")), format="jsonl")
    assert ingest(empty_dir(tmp_path / "both"), both).metrics["files_left_out"]["by_ending"] == {}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_in_a_folder_is_read_compressed_or_not(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    files = {
        "lines": b'{"text": "one"}\n{"text": "two"}\n',
        "array": b'[\n {"text": "three"}\n]',
        "other": b'{"data": [{"text": "x"}]}',
    }
    for name, data in files.items():
        path = folder / "sub" / f"{name}.json{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if suffix else data)
    for number, paths in enumerate(((str(folder),), (str(folder / "**"),), (str(folder / "*"),))):
        artifact = ingest(empty_dir(tmp_path / f"out{number}"), SourceConfig(name="s", paths=paths))
        assert sorted(row["text"] for row in read_documents(artifact)) == ["one", "three", "two"]
        assert (
            artifact.counters["quarantined_by"] == {"no records": 1}
            and artifact.counters["lost_estimate"] == 0
        )


def test_files_whose_names_say_nothing_are_read_by_the_format_of_their_source(
    tmp_path: Path,
) -> None:
    for number in range(2):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"part-0000{number}").write_text(
            f'{{"text": "text {number}"}}\n', "utf-8"
        )
    config = SourceConfig(name="s", paths=(str(tmp_path / "in"),), format="jsonl")
    artifact = ingest(empty_dir(tmp_path / "out"), config)
    assert [r["text"] for r in read_documents(artifact)] == ["text 0", "text 1"]
    assert artifact.counters["files_left_out"] == 0
    with pytest.raises(ConfigError, match=r"part-00000 has no reader; it is plain text"):
        SourceConfig(paths=(str(tmp_path / "in" / "part-00000"),)).input_files()


def test_input_config_maps_a_column_once() -> None:
    with pytest.raises(ConfigError, match="mapped twice"):
        InputConfig(text_column="id")


@pytest.mark.parametrize("name", ["a.sqlite", "a.jsonl", "a"])
def test_a_database_with_changes_beside_it_is_refused_before_anything_is_kept(
    name: str, tmp_path: Path
) -> None:
    path, log = tmp_path / name, tmp_path / f"{name}-wal"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("create table documents (text text)")
    config = SourceConfig(paths=(str(path),), format="auto")
    log.write_bytes(b"frames")
    with pytest.raises(ConfigError, match=rf"{name} is not its whole database: its -wal file"):
        config.data_files()
    log.write_bytes(b"")
    assert list(config.data_files()) == [name]


@pytest.mark.parametrize("name", ["a.sqlite", "a.jsonl"])
def test_a_database_of_several_tables_is_read_again_once_the_settings_say_which(
    name: str, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / name)) as database:
        for table in ("drafts", "posts"):
            database.execute(f"create table {table} (text text)")
            database.execute(f"insert into {table} values ('of {table}')")
        database.commit()
    write_jsonl(tmp_path / "b.jsonl", [{"text": "of a file"}])
    store = Store(tmp_path / "store")

    def read(number: int, **settings: str) -> list[str]:
        config = SourceConfig(paths=(str(tmp_path / name), str(tmp_path / "b.jsonl")), **settings)
        digests = InputDigests(tmp_path / "digests.json")
        node = make_nodes("ingest", {"ingest": config}, digests, "")["ingest"]
        runner = PartRunner(parts_dir=store.parts_dir(node))
        return texts(ingest(empty_dir(tmp_path / str(number)), config, runner))

    assert read(1) == ["of a file"]
    assert read(2, query="select text from posts") == ["of posts", "of a file"]
