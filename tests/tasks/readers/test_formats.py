"""A file is read by its content where its name says nothing or something else."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from tasks.readers import Fault, Layout, Record, Skipped
from tasks.readers.formats import format_of
from tests.support.data.every_format import FILES, WANTED, faults, found
from tests.support.data.input_files import COMPRESS, as_tar, as_zip, read_bytes, read_items


@pytest.mark.parametrize(
    ("name", "layout", "data"),
    [
        ("a.csv", Layout(delimiter=";"), b'id;text\n1;a,b\n2;"c;d"\n'),
        ("a.tsv", Layout(quote="'"), b"id\ttext\n1\ta,b\n2\t'c;d'\n"),
        ("a.csv", Layout(delimiter="|", quote=""), b"id|text\n1|a,b\n2|c;d\n"),
        ("part-00000", Layout("csv", ";"), b'id;text\n1;a,b\n2;"c;d"\n'),
        ("part-00000.gz", Layout("tsv"), COMPRESS[".gz"](b"id\ttext\n1\ta,b\n2\tc;d\n")),
        (
            "part.00001",
            Layout("jsonl.zst"),
            COMPRESS[".zst"](b'{"id": "1", "text": "a,b"}\n{"id": "2", "text": "c;d"}'),
        ),
    ],
)
def test_a_source_says_what_names_do_not(
    name: str, layout: Layout, data: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    items = read_items(tmp_path / name, layout)
    assert [(i.values["id"], i.values["text"]) for i in items if isinstance(i, Record)] == [
        ("1", "a,b"),
        ("2", "c;d"),
    ]
    assert faults(items) == []


def test_a_known_ending_wins_over_what_a_source_says() -> None:
    assert format_of("a.csv", "jsonl") == ("csv", "") and format_of("a.tar.xz", "jsonl") == (
        "tar",
        ".xz",
    )
    assert format_of("a.parquet.gz", "jsonl") is None and format_of("part-0.gz", "parquet") is None
    assert format_of("part-0", "parquet") == ("parquet", "") and format_of("part-0", "pptx") is None


SPREADSHEET = as_zip({"[Content_Types].xml": b"", "xl/workbook.xml": b""})


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tar", "warc.wet"])
def test_compressed_content_is_read_under_any_name(kind: str, suffix: str, tmp_path: Path) -> None:
    data = COMPRESS[suffix](FILES[f"r.{kind}"])
    for name in (f"r.{kind}", f"r.{kind}.gz", f"r.{kind}.zst"):
        (tmp_path / name).write_bytes(data)
        items = read_items(tmp_path / name)
        assert found(items) == WANTED and not faults(items)
    (tmp_path / "m.tar").write_bytes(as_tar({f"r.{kind}": data}))
    assert kind == "tar" or found(read_items(tmp_path / "m.tar")) == WANTED


@pytest.mark.parametrize("name", ["r.jsonl", "r.tar", "r.warc.wet"])
def test_plain_content_is_read_under_the_name_of_a_compressed_file(
    name: str, tmp_path: Path
) -> None:
    for suffix in (".gz", ".zst", ".bz2", ".xz"):
        (tmp_path / f"{name}{suffix}").write_bytes(FILES[name])
        items = read_items(tmp_path / f"{name}{suffix}")
        assert found(items) == WANTED and not faults(items)


@pytest.mark.parametrize("table", ["r.parquet", "r.arrow", "r.feather"])
def test_tables_are_read_under_another_name(table: str, tmp_path: Path) -> None:
    for name in ("r.jsonl", "r.csv", "r.txt", "r.parquet", "r.arrow"):
        (tmp_path / name).write_bytes(FILES[table])
        assert found(read_items(tmp_path / name)) == WANTED


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", SPREADSHEET, "a spreadsheet under the name of jsonl; rename"),
        ("a.docx", SPREADSHEET, "a spreadsheet under the name of docx; rename"),
        ("a.html", b"\x89PNG\r\n\x1a\n", "a picture under the name of html; rename"),
        ("a.parquet", FILES["r.csv"], "plain text under the name of parquet; rename it"),
        ("a.zip", FILES["r.csv"], "plain text under the name of zip; rename it"),
        (
            "a.parquet",
            COMPRESS[".gz"](FILES["r.parquet"]),
            "a file in .gz under the name of parquet; rename or unpack it",
        ),
        (
            "a.txt.gz",
            b"a text that is not compressed",
            "plain text under a name in .gz; take that off its name",
        ),
        ("a.csv.zst", FILES["r.csv"], "plain text under a name in .zst; take that off its name"),
    ],
)
def test_a_file_of_another_kind_is_one_fault_that_says_what_it_is(
    name: str, data: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    (fault,) = read_items(tmp_path / name)
    assert isinstance(fault, Fault) and fault.error.startswith(f"another format: {said}")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "PAR1 is a magic number",
            "ARROW1 too",
            "BZh9 is one",
            "PK is short for more",
            "GIF is a format",
            "7z",
            "Obj",
        ),
        *(
            "MZ is what a program begins with, and then come a good many bytes that no text has",
            "GIF89a was its last version",
        ),
    ],
)
def test_a_text_that_begins_like_a_magic_number_stays_a_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    (record,) = read_items(tmp_path / "a.txt")
    assert isinstance(record, Record) and record.values["text"] == text


@pytest.mark.parametrize("content", ["r.jsonl", "r.zip", "r.tar", "r.warc.wet", "r.parquet"])
def test_content_is_read_under_any_other_name_and_under_none(content: str, tmp_path: Path) -> None:
    for name in ("r.csv", "r.parquet", "r.html", "r.zip", "r.txt", "part-0"):
        # A text may be JSON, and a zip archive may have anything before it.
        if (name, content) in (("r.txt", "r.jsonl"), ("r.zip", "r.tar")):
            continue
        (tmp_path / name).write_bytes(FILES[content])
        items = read_items(tmp_path / name, Layout("auto"))
        assert found(items) == WANTED and not faults(items), name


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2", ".xz"])
def test_files_without_a_name_are_read_by_their_content(suffix: str) -> None:
    read = {
        "jsonl": read_bytes("part-0", COMPRESS[suffix](FILES["r.jsonl"]), layout=Layout("auto")),
        "text": read_bytes("LICENSE", COMPRESS[suffix](b"Some words."), layout=Layout("auto")),
    }
    assert found(read["jsonl"]) == WANTED and [i.values["text"] for i in read["text"]] == [  # type: ignore[union-attr]
        "Some words."
    ]
    (fault,) = read_bytes("core", COMPRESS[suffix](bytes(range(256))), layout=Layout("auto"))
    assert isinstance(fault, Fault) and "binary data under no known name" in fault.error


MAILBOX = b"From a@b.example Sun Nov 29 07:54:49 2026\nSubject: x\n\nwords\n"


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.txt", b"<!DOCTYPE html>\n<p>words", "html"),
        ("a.jsonl", b"  <html lang=en><p>words", "html"),
        ("a.txt", MAILBOX, "mail"),
        ("a.txt", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "pdf"),
        ("a.zip", as_zip({"META-INF/container.xml": b""}), "epub"),
        ("a.txt", as_zip({"word/document.xml": b""}), "docx"),
        ("a.tex", b"<html>", "latex"),
        ("a.eml", b"<html>", "mail"),
    ],
)
def test_documents_are_known_by_their_content(name: str, data: bytes, kind: str) -> None:
    (record,) = read_bytes(name, data)
    assert isinstance(record, Record) and record.values["text"].kind == kind


def test_links_in_archives_are_counted_and_what_they_name_is_no_text() -> None:
    zipped, packed = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "../a.txt")
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            entry = tarfile.TarInfo("link.txt")
            entry.type, entry.linkname = kind, "a.txt"
            tar.addfile(entry)
    assert read_bytes("m.zip", zipped.getvalue()) == [Skipped("archive_member")]
    assert read_bytes("m.tar", packed.getvalue()) == [Skipped("archive_member")] * 3
