"""Every format gives the same records, and no file, however broken, crashes a reader or loses a
record in silence."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.readers import Dropped, Fault, Item, Layout, Record, Skipped, read_streams
from tasks.readers.formats import format_of
from tests.support.data.input_files import (
    COLUMNS,
    COMPRESS,
    RECORDS,
    as_tar,
    as_zip,
    every_format,
    http_response,
    read_items,
    warc_record,
)

FILES = every_format()
WANTED = [(r["id"], r["text"], r["url"]) for r in RECORDS]
HTML = "<html><body><p>größere 数据</p></body></html>".encode()
PAGE = http_response(HTML, "Content-Type: text/html", "Transfer-Encoding: chunked")
WHOLE = {
    "r.txt": "größere 数据\n\nand a second line\n".encode(),
    "r.md": "# größere 数据\n\n* one\n* two\n".encode(),
    "r.html": HTML,
    "r.warc": warc_record("request", b"GET / HTTP/1.1\r\n\r\n")
    + warc_record(
        "response", PAGE, Content_Type="application/http", WARC_Target_URI="http://a.example/"
    )
    + warc_record("response", PAGE.replace(b"chunked", b"gzip"), Content_Type="application/http"),
}
"""Files that are one document, and a web archive of pages."""
FUZZED = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def found(items: list[Item]) -> list[tuple[str, str, str]]:
    return [
        (i.values.get("id"), i.values.get("text"), i.values.get("url"))
        for i in items
        if isinstance(i, Record)
    ]


def faults(items: list[Item]) -> list[Fault]:
    return [item for item in items if isinstance(item, Fault)]


@pytest.mark.parametrize("name", FILES)
def test_same_records_in_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    items = read_items(tmp_path / name)
    assert found(items) == WANTED
    assert faults(items) == []
    positions = [item.position for item in items if isinstance(item, Record)]
    assert "tar" in name or "zip" in name or "tgz" in name or positions == sorted(set(positions))


@pytest.mark.parametrize(
    "name", [n for n in FILES if n.startswith(("r.jsonl.", "r.csv.", "r.warc.wet.", "r.tar."))]
)
def test_identity_does_not_depend_on_compression(name: str, tmp_path: Path) -> None:
    plain = name.rpartition(".")[0]
    for one in (name, plain):
        (tmp_path / one).write_bytes(FILES[one])
    compressed, uncompressed = (
        [(i.position, i.line) for i in read_items(tmp_path / one) if isinstance(i, Record)]
        for one in (name, plain)
    )
    assert compressed == uncompressed


@pytest.mark.parametrize("name", FILES)
@FUZZED
@given(st.floats(0, 1, exclude_max=True))
def test_cut_off_file_keeps_its_whole_records_in_order(
    name: str, tmp_path: Path, frac: float
) -> None:
    data = FILES[name][: int(len(FILES[name]) * frac)]
    (tmp_path / name).write_bytes(data)
    items = read_items(tmp_path / name)
    got = found(items)
    if name in ("r.csv", "r.tsv") and not data.endswith(b"\n"):
        got = got[:-1]  # the last row needs no line end, so its last field may be short
    assert got == WANTED[: len(got)]
    # Only where a line or a record ends can a file end unnoticed: lines also where only the end of
    # the last one is missing.
    line_ends = data.endswith(b"\n") or (
        name in ("r.json", "r.jsonl") and FILES[name][len(data) : len(data) + 1] == b"\n"
    )
    at_an_end = (
        not data
        or name in ("r.csv", "r.tsv", "r.arrows")
        or line_ends
        or name.startswith("r.warc.wet")
    )
    assert len(got) == len(WANTED) or faults(items) or at_an_end


@pytest.mark.parametrize("name", FILES)
@FUZZED
@given(
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=8
    )
)
def test_flipped_bits_are_survived(
    name: str, tmp_path: Path, flips: list[tuple[float, int]]
) -> None:
    data = bytearray(FILES[name])
    for frac, bit in flips:
        data[int(len(data) * frac)] ^= 1 << bit
    (tmp_path / name).write_bytes(data)
    items = read_items(tmp_path / name)
    assert all(isinstance(item, (Record, Fault, Dropped, Skipped)) for item in items)


@pytest.mark.parametrize("name", FILES)
@FUZZED
@given(st.binary(max_size=400))
def test_bytes_that_are_no_file_are_faults_and_no_texts(
    name: str, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    items = read_items(tmp_path / name)
    assert not any(text for _, text, _ in found(items))
    if name not in ("r.csv", "r.tsv"):  # there, anything is a row
        blank = not data.replace(b"\xef\xbb\xbf", b"").strip(b"\0 \t\r\n\x0b\x0c")
        assert items or blank or name.startswith("r.warc.wet")


@pytest.mark.parametrize("name", WHOLE)
@FUZZED
@given(
    st.binary(max_size=400),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=8),
)
def test_any_bytes_of_texts_pages_and_answers_of_servers_are_survived(
    name: str, tmp_path: Path, data: bytes, flips: list[tuple[float, int]]
) -> None:
    damaged = bytearray(WHOLE[name])
    for frac, bit in flips:
        damaged[int(len(damaged) * frac)] ^= 1 << bit
    for content in (data, bytes(damaged), WHOLE[name] + data, WHOLE[name][:-7] + data):
        (tmp_path / name).write_bytes(content)
        items = read_items(tmp_path / name)
        assert all(isinstance(item, (Record, Fault, Dropped, Skipped)) for item in items)
        assert items or name == "r.warc" or not content


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_garbage_after_a_compressed_stream_costs_nothing_but_a_fault(
    suffix: str, tmp_path: Path
) -> None:
    (tmp_path / f"r.jsonl{suffix}").write_bytes(
        COMPRESS[suffix](FILES["r.jsonl"]) + b"garbage that is not a stream"
    )
    items = read_items(tmp_path / f"r.jsonl{suffix}")
    assert found(items) == WANTED
    assert [f.error.partition(":")[0] for f in faults(items)] == ["damaged file"]


def test_members_without_a_reader_are_skipped_and_members_of_one_name_are_told_apart(
    tmp_path: Path,
) -> None:
    line = b'{"text": "a"}\n'
    members = {
        "a.txt": b"plain",
        "b.exe": b"MZ",
        ".hidden.txt": b"",
        "inner.zip": as_zip({"c.jsonl": line}),
        "d.jsonl": line,
    }
    for name, data in (("m.zip", as_zip(members)), ("m.tar", as_tar(members))):
        (tmp_path / name).write_bytes(data)
        items = read_items(tmp_path / name)
        assert [i.values["text"] for i in items if isinstance(i, Record)] == ["plain", "a"]
        assert [i.kind for i in items if isinstance(i, Skipped)] == ["archive_member"] * 3
    twice = as_tar({"d.jsonl": line})[:1024] * 2 + b"\0" * 1024
    names = [
        name for name, items in read_streams(io.BytesIO(twice), "twice.tar", COLUMNS) if list(items)
    ]
    assert names == ["twice.tar!d.jsonl", "twice.tar!d.jsonl#2"]


def test_members_are_named_without_the_folder_that_an_archive_was_made_in() -> None:
    line = b'{"text": "a"}\n'
    members = {
        "./d.jsonl": line,
        "/e.jsonl": line,
        "../up.jsonl": line,
        "./.hidden/f.jsonl": line,
        "./sub//g.jsonl": line,
    }
    for name, data in (("m.zip", as_zip(members)), ("m.tar", as_tar(members))):
        streams = [
            (inner, list(items)) for inner, items in read_streams(io.BytesIO(data), name, COLUMNS)
        ]
        read = [inner for inner, items in streams if isinstance(items[0], Record)]
        assert read == [
            f"{name}!{member}" for member in ("d.jsonl", "e.jsonl", "../up.jsonl", "sub/g.jsonl")
        ]
        assert [items for _, items in streams if not isinstance(items[0], Record)] == [
            [Skipped("archive_member")]
        ]


def test_what_stands_after_the_end_of_a_file_is_read_or_a_fault(tmp_path: Path) -> None:
    (tmp_path / "twice.arrows").write_bytes(FILES["r.arrows"] * 2)
    assert found(read_items(tmp_path / "twice.arrows")) == WANTED * 2
    for name in ("r.arrows", "r.tar"):
        for more in (b"no stream at all", FILES["r.tar"]):
            (tmp_path / name).write_bytes(FILES[name] + more)
            items = read_items(tmp_path / name)
            assert found(items) == WANTED and len(faults(items)) == 1, name
    (tmp_path / "r.tar").write_bytes(FILES["r.tar"] + bytes(20_000))
    assert faults(read_items(tmp_path / "r.tar")) == []


def test_broken_header_in_a_tar_archive_is_not_taken_for_its_end(tmp_path: Path) -> None:
    data = bytearray(as_tar({"a.txt": b"one", "b.txt": b"two", "c.txt": b"three"}))
    data[1024 + 150] ^= 1  # in the checksum of the second header
    (tmp_path / "m.tar").write_bytes(data)
    first, fault = read_items(tmp_path / "m.tar")
    assert isinstance(first, Record) and first.values["text"] == "one"
    assert (
        isinstance(fault, Fault)
        and fault.error == "damaged file: broken tar (no header where one should be)"
    )


def test_bad_row_of_a_table_costs_itself(tmp_path: Path) -> None:
    rows = [
        b"\xef\xbb\xbfid,text",
        b"1,caf\xe9",
        b"2,too,many",
        b'3,"a ""quote"""',
        b"",
        b'4,"x"y',
        b'5,"over',
        b'lines"',
        b"6,last",
    ]
    (tmp_path / "a.csv").write_bytes(b"\r\n".join(rows))
    items = read_items(tmp_path / "a.csv")
    assert [i.values for i in items if isinstance(i, Record)] == [
        {"id": "3", "text": 'a "quote"'},
        {"id": "5", "text": "over\r\nlines"},
        {"id": "6", "text": "last"},
    ]
    assert [(f.line, f.error) for f in faults(items)] == [
        (2, "invalid UTF-8: byte 0xe9"),
        (3, "broken CSV: the row has 3 fields, the first row 2"),
        (6, "broken CSV: ',' expected after '\"'"),
    ]
    positions = [i.position for i in items if isinstance(i, Record)]
    assert positions == [sum(len(r) + 2 for r in rows[:n]) for n in (3, 6, 8)]


def test_a_quote_in_tab_separated_values_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(
        b'id\ttext\n1\t"Hello, he said\n2\tsecond "x"\n3\t"third"\n4\tone\ttoo many\n5\t\n'
    )
    items = read_items(tmp_path / "a.tsv")
    texts = [i.values["text"] for i in items if isinstance(i, Record)]
    assert texts == ['"Hello, he said', 'second "x"', '"third"', ""]
    assert [fault.line for fault in faults(items)] == [5]


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
    assert format_of("part-0", "parquet") == ("parquet", "") and format_of("part-0", "docx") is None


def test_damaged_member_is_a_fault_and_the_others_are_read(tmp_path: Path) -> None:
    members = {f"{i}.jsonl": FILES["r.jsonl"] for i in range(3)}
    data = bytearray(as_zip(members))
    data[data.find(b"1.jsonl") + 60] ^= 0xFF
    (tmp_path / "m.zip").write_bytes(data)
    items = read_items(tmp_path / "m.zip")
    assert len(found(items)) >= 2 * len(WANTED) and found(items)[-len(WANTED) :] == WANTED
    assert any("broken zip" in fault.error for fault in faults(items))


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
        (
            "a.jsonl",
            FILES["r.zip"],
            "a zip archive (also .docx, .xlsx, .epub) under the name of jsonl; rename",
        ),
        ("a.csv", FILES["r.tar"], "a tar archive under the name of csv; rename"),
        (
            "a.txt",
            b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj",
            "a PDF file under the name of text; rename",
        ),
        ("a.html", b"\x89PNG\r\n\x1a\n", "a picture under the name of html; rename"),
        ("a.parquet", FILES["r.jsonl"], "plain text under the name of parquet; rename it"),
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
