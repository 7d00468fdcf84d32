"""Documents and records are found by the names their source gives them."""

from __future__ import annotations

from pathlib import Path

from tasks.explain.explain import find_documents, find_records
from tests.support.data.make_artifacts import ingest_files, read_documents, write_jsonl


def test_a_document_is_found_by_whatever_its_source_calls_it(tmp_path: Path) -> None:
    names = ["0123456789abcdef" * 2, "https://x.org/?page=2", "-", "store=1", "a b"]
    ingested = ingest_files(
        tmp_path,
        "ingest",
        [write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": "t"} for n in names])],
    )
    own = [row["id"].hex() for row in read_documents(ingested)]
    for given in (names, own, [name.upper() for name in own]):
        assert [[p.row for p in find_documents(ingested, name)] for name in given] == [
            [i] for i in range(len(names))
        ]


def test_files_without_a_row_hold_nothing_that_is_asked_for(tmp_path: Path) -> None:
    nothing_dropped = [write_jsonl(tmp_path / "a.jsonl", [{"id": "x", "text": "t"}])]
    assert find_records(ingest_files(tmp_path, "whole", nothing_dropped), "x") == []
    no_document_in_one = [
        *nothing_dropped,
        write_jsonl(tmp_path / "b.jsonl", [{"id": "y", "text": ""}]),
    ]
    partly = ingest_files(tmp_path, "partly", no_document_in_one)
    assert len(find_documents(partly, "x")) == 1 and len(find_records(partly, "y")) == 1


def test_a_page_of_a_web_archive_is_found_by_its_url(tmp_path: Path) -> None:
    pages = [{"id": f"urn:uuid:{i}", "url": f"https://x.org/{i}", "text": "t"} for i in range(2)]
    pages.append({"id": "https://x.org/0", "url": None, "text": "t"})
    ingested = ingest_files(tmp_path, "ingest", [write_jsonl(tmp_path / "a.jsonl", pages)])
    assert [p.row for p in find_documents(ingested, "https://x.org/1")] == [1]
    assert [p.row for p in find_documents(ingested, "https://x.org/0")] == [2], (
        "an id that a source gives goes first"
    )
