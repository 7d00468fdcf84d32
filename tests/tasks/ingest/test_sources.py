"""Several sources in one run, pages that cost too much, and how much may be lost: ingest as a
stage."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError, build, to_plain
from tasks.ingest import stage
from tasks.ingest.damagedfiles import FileExtent, estimate_lost
from tasks.ingest.sources import HtmlConfig, InputConfig, SourceConfig
from tasks.ingest.stage import ingest, list_parts, require_budget
from tasks.runtime.artifact import Artifact
from tasks.runtime.execute import make_artifact
from tasks.runtime.inputs import InputDigests
from tasks.runtime.keys import canonical_json, key_config
from tasks.runtime.parts import PartRunner, process_executor, thread_executor
from tasks.runtime.plan import make_nodes, make_plan
from tasks.runtime.stage import StageFailure
from tasks.runtime.store import Node, Store
from tests.support.data.input_files import http_response, warc_record
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl


def quarantine(artifact: Artifact) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in artifact.file("quarantine.jsonl").read_text("utf-8").splitlines()
    ]


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
        ({"format": "docx"}, "format (docx) has no reader"),
        ({"delimiter": ";;"}, "delimiter (';;') must be one character"),
        ({"delimiter": '"', "quote": '"'}, "must differ"),
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


PAGE = b"<html><body><main><p>Words of page %d, and more of them, so that it is a text.</main>"


def write_pages(folder: Path) -> None:
    """Web archives, HTML files and tables of pages; some are bad ones (fake_pages)."""
    responses = [PAGE % i for i in range(6)]
    responses[2], responses[4] = b"hang", b"eat"
    blocks = [http_response(r, "Content-Type: text/html") for r in responses]
    named = [
        warc_record("response", b, WARC_Record_ID=f"<{i}>", Content_Type="application/http")
        for i, b in enumerate(blocks)
    ]
    empty_dir(folder)
    (folder / "a.warc").write_bytes(warc_record("request", b"GET /") + b"".join(named))
    (folder / "b.html").write_bytes(PAGE % 7)
    write_jsonl(
        folder / "c.jsonl",
        [{"text": (PAGE % 8).decode(), "id": "c"}, {"text": "hang"}, {"text": 5}],
    )


def test_bad_page_is_quarantined_and_the_rest_goes_on_the_same_for_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "READ_PAGE", "tests.support.data.fake_pages:read_page")
    write_pages(tmp_path / "in")
    config = SourceConfig(
        name="s",
        paths=(str(tmp_path / "in"),),
        text_kind="html",
        html=HtmlConfig(timeout_s=1.0, max_memory_bytes=300_000_000),
    )
    runners = [PartRunner(), PartRunner(make_executor=thread_executor(3))]
    artifacts = [
        ingest(empty_dir(tmp_path / f"out{i}"), config, runner) for i, runner in enumerate(runners)
    ]
    assert [r["source_id"] for r in read_documents(artifacts[0])] == [
        "0",
        "1",
        "3",
        "5",
        "b.html",
        "c",
    ]
    assert [(q["file"], q["line"], q["error"]) for q in quarantine(artifacts[0])] == [
        ("a.warc", 4, "page out of bounds: took longer than 1 s"),
        ("a.warc", 6, "page out of bounds: took more memory than it may"),
        ("c.jsonl", 2, "page out of bounds: took longer than 1 s"),
        ("c.jsonl", 3, "wrong type: column text is a number, not text"),
    ]
    assert artifacts[0].counters["quarantined_by"] == {"page out of bounds": 3, "wrong type": 1}
    assert artifacts[0].counters["skipped"] == {"warc_request": 1}
    for file in artifacts[0].files("**/*.*"):
        assert (
            file.read_bytes()
            == (artifacts[1].path / file.relative_to(artifacts[0].path)).read_bytes()
        )
    assert artifacts[0].counters == artifacts[1].counters


def test_pages_keep_their_title_and_encoding_as_metadata(tmp_path: Path) -> None:
    page = (
        "<title>Ein Titel</title><meta charset=latin1><p>Größe und Maß, und noch einige Worte mehr"
        " als das."
    )
    (tmp_path / "a.html").write_bytes(page.encode("latin-1"))
    artifact = ingest_files(
        tmp_path, "out", [tmp_path / "a.html"], html=HtmlConfig(main_content=False)
    )
    (row,) = read_documents(artifact)
    assert row["text"] == "Größe und Maß, und noch einige Worte mehr als das."
    assert json.loads(row["metadata"]) == {"encoding": "cp1252", "title": "Ein Titel"}


def test_bytes_without_a_meaning_in_a_page_are_a_repair(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_bytes(b"\xef\xbb\xbf<p>some words and \xff")
    artifact = ingest_files(
        tmp_path, "out", [tmp_path / "a.html"], html=HtmlConfig(main_content=False)
    )
    assert read_documents(artifact)[0]["text"] == "some words and \ufffd"
    assert artifact.counters["repaired"]["ENCODING"] == 1


def with_bad(tmp_path: Path, bad: int, good: int, **config: Any) -> tuple[Artifact, SourceConfig]:
    lines = ['{"text": "good"}'] * good + ["{broken"] * (bad - 1) + ['{"text": 1}'] * min(bad, 1)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    settings = SourceConfig(name="s", paths=(str(tmp_path / "a.jsonl"),), **config)
    return ingest(empty_dir(tmp_path / "out"), settings), settings


def test_more_faults_than_the_budget_are_refused_with_their_kinds_and_places(
    tmp_path: Path,
) -> None:
    artifact, config = with_bad(tmp_path, 6, 94)
    with pytest.raises(StageFailure) as caught:
        require_budget(artifact, config)
    said = str(caught.value)
    assert (
        "6 of 100 records (6.0%)" in said
        and "(broken JSON 5, wrong type 1)" in said
        and "source.max_bad_frac" in said
    )
    assert [f"a.jsonl line {n}" in said for n in (95, 96, 97, 98)] == [True, True, True, False]
    assert str(artifact.path / "quarantine.jsonl") in said and "\n" not in said


@pytest.mark.parametrize(("bad", "budget"), [(5, 0.05), (6, 0.06), (0, 0.0)])
def test_faults_within_the_budget_are_accepted(tmp_path: Path, bad: int, budget: float) -> None:
    require_budget(*with_bad(tmp_path, bad, 100 - bad, max_bad_frac=budget))


def lines_of(num_records: int) -> bytes:
    """Records as lines of JSON, of text that does not shrink to nothing."""
    rng = random.Random(num_records)
    return b"".join(
        b'{"text": "%s"}\n' % rng.randbytes(200).hex().encode() for _ in range(num_records)
    )


def harmed(tmp_path: Path, name: str, num_records: int = 40) -> None:
    """A file of so many records that cannot be read."""
    if name.endswith(".parquet"):
        path = tmp_path / "in" / name
        pq.write_table(
            pa.table(
                {
                    "text": [
                        line["text"] for line in map(json.loads, lines_of(num_records).splitlines())
                    ]
                }
            ),
            path,
        )
        path.write_bytes(path.read_bytes()[:-1] + b"X")
    else:
        (tmp_path / "in" / name).write_bytes(b"X" + gzip.compress(lines_of(num_records))[1:])


@pytest.mark.parametrize("bad", ["bad.jsonl.gz", "bad.parquet"])
def test_an_unreadable_file_counts_as_the_records_it_would_hold(tmp_path: Path, bad: str) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        (tmp_path / "in" / f"{i}.jsonl.gz").write_bytes(gzip.compress(lines_of(40)))
    harmed(tmp_path, bad)
    config = SourceConfig(name="s", paths=(str(tmp_path / "in"),))
    artifact = ingest(empty_dir(tmp_path / "out"), config)
    lost = artifact.counters["lost_estimate"]
    assert artifact.counters["read"] == 121 and artifact.counters["quarantined"] == 1
    assert 30 <= lost + 1 <= (41 if bad.endswith("gz") else 80), (
        "parquet takes another number of bytes for a record"
    )
    said = (
        rf"1 of 121 records and some {lost} that 1 damaged file\(s\) would hold more"
        rf" \({(1 + lost) / (121 + lost):.1%}\)"
    )
    with pytest.raises(StageFailure, match=said):
        require_budget(artifact, config)


def test_a_lone_file_that_breaks_off_counts_what_is_behind_the_break(tmp_path: Path) -> None:
    frames = [
        zstandard.ZstdCompressor(write_checksum=True).compress(lines_of(50)) for _ in range(40)
    ]
    frames[10] = frames[10][:-1] + bytes([frames[10][-1] ^ 0xFF])
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.jsonl.zst"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert counters["read"] < 600 and 1600 <= counters["read"] + counters["lost_estimate"] <= 2400


def test_a_lone_gzip_that_is_corrupt_near_its_beginning_counts_the_rest(tmp_path: Path) -> None:
    data = bytearray(b"".join(gzip.compress(lines_of(50)) for _ in range(40)))
    data[len(data) // 4] ^= 0xFF
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.jsonl.gz"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert counters["read"] < 600 and 1200 <= counters["read"] + counters["lost_estimate"] <= 2800


def test_a_quotation_that_never_ends_counts_the_rows_it_swallows(tmp_path: Path) -> None:
    row = "some words of a row of text"
    (tmp_path / "a.csv").write_text("\n".join(["text", *[row] * 100, f'"{row}', *[row] * 900]))
    config = SourceConfig(name="s", paths=(str(tmp_path / "a.csv"),))
    counters = ingest(empty_dir(tmp_path / "out"), config).counters
    assert (
        counters["read"] == 101
        and counters["files_damaged"] == 1
        and 950 <= 101 + counters["lost_estimate"] <= 1050
    )


FILES = st.builds(
    FileExtent,
    st.sampled_from(["jsonl", "warc.gz"]),
    st.integers(1, 10**6),
    st.integers(1, 500),
    st.integers(0, 1),
    st.none(),
)


@given(st.lists(FILES))
def test_a_damaged_file_loses_no_more_than_the_densest_whole_one_would_hold(
    files: list[FileExtent],
) -> None:
    whole = [file for file in files if not file.breaks]
    densest = max((file.records / file.size_bytes for file in whole), default=0.0)
    assert (
        0 <= estimate_lost(files) <= densest * sum(file.size_bytes for file in files if file.breaks)
    )
    assert estimate_lost(whole) == 0


def test_budget_is_in_no_key() -> None:
    keys = [
        canonical_json(key_config(SourceConfig(name="s", max_bad_frac=frac))) for frac in (0.0, 1.0)
    ]
    assert keys[0] == keys[1]


def test_file_that_changes_while_it_is_read_is_kept_under_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        write_jsonl(tmp_path / "in" / name, [{"text": name}]) for name in ("a.jsonl", "b.jsonl")
    ]
    config = SourceConfig(name="s", paths=(str(tmp_path / "in"),))
    read = stage.read_streams

    def read_and_append(file: BinaryIO, *arguments: Any) -> Any:
        if file.name == str(files[1]):
            with files[1].open("a") as more:
                more.write('{"text": "more"}\n')
        return read(file, *arguments)

    runner = PartRunner(parts_dir=tmp_path / "parts")
    with (
        monkeypatch.context() as patch,
        pytest.raises(StageFailure, match=r"b\.jsonl changed while it was read"),
    ):
        patch.setattr(stage, "read_streams", read_and_append)
        ingest(empty_dir(tmp_path / "o1"), config, runner)
    assert [p.name for p in (tmp_path / "parts").glob("[!.]*")] == [list_parts(config)[0].digest]
    assert len(read_documents(ingest(empty_dir(tmp_path / "o2"), config, runner))) == 3


@pytest.mark.parametrize(
    "harm",
    [lambda file: file.write_text('{"text": "other"}'), Path.unlink],
    ids=["changed", "gone"],
)
@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
def test_input_that_changes_after_the_plan_gives_no_artifact_of_that_key(
    harm: Any, early: bool, tmp_path: Path
) -> None:
    store, file = (
        Store(tmp_path / "store"),
        write_jsonl(tmp_path / "list" / "a.jsonl", [{"text": "a"}]),
    )
    config = SourceConfig(
        name="s", paths=(str(write_jsonl(tmp_path / "b.jsonl", [{"text": "b"}])), str(file))
    )
    (step,) = make_plan(
        store,
        make_nodes("ingest", {"ingest": config}, InputDigests(store.digests_file), ""),
        "ingest",
    ).steps

    def harmed(*arguments: Any) -> Artifact:
        if early:
            harm(file)
        made = ingest(*arguments)
        if not early:
            harm(file)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ingest", harmed)
        with pytest.raises(
            (StageFailure, ConfigError), match=r"a\.jsonl (changed|was removed|does not exist)"
        ):
            make_artifact(store, step, {}, config, PartRunner(), print)
    assert store.find("ingest", step.node.key) is None


@pytest.mark.slow
def test_pages_of_a_source_are_read_in_processes_too(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / "in" / f"{i}.html").parent.mkdir(exist_ok=True)
        (tmp_path / "in" / f"{i}.html").write_bytes(PAGE % i)
    config = SourceConfig(name="s", paths=(str(tmp_path / "in"),))
    artifact = ingest(
        empty_dir(tmp_path / "out"), config, PartRunner(make_executor=process_executor(2))
    )
    assert [r["text"][:15] for r in read_documents(artifact)] == [
        "Words of page 0",
        "Words of page 1",
    ]


def test_files_without_a_reader_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    write_jsonl(folder / "a.jsonl", [{"text": "one"}])
    for name in (
        "b.json",
        "c.jsonl.lz4",
        "d.docx",
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
        "by_ending": {"(none)": 2, ".docx": 1, ".lz4": 1},
        "examples": ["c.jsonl.lz4", "d.docx", "part-00000", "sub/part-00001"],
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
    with pytest.raises(
        ConfigError, match=r"part-00000 has no reader; say what it is with source\.format"
    ):
        SourceConfig(paths=(str(tmp_path / "in" / "part-00000"),)).input_files()


def test_input_config_maps_a_column_once() -> None:
    with pytest.raises(ConfigError, match="mapped twice"):
        InputConfig(text_column="id")
