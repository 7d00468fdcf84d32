"""Pages become documents in workers that a bad page may take along."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.ingest import stage
from tasks.ingest.sources import HtmlConfig, SourceConfig
from tasks.ingest.stage import ingest
from tasks.runtime.parts import PartRunner, process_executor, thread_executor
from tests.support.data.ingested import quarantine
from tests.support.data.input_files import http_response, warc_record
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl

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
