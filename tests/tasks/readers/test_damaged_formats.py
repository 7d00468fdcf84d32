"""No file, however broken, crashes a reader or loses a record in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.readers import Dropped, Fault, Record, Skipped
from tests.support.data.every_format import FILES, WANTED, faults, found
from tests.support.data.input_files import (
    COMPRESS,
    as_tar,
    as_zip,
    http_response,
    read_items,
    warc_record,
)

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


def test_damaged_member_is_a_fault_and_the_others_are_read(tmp_path: Path) -> None:
    members = {f"{i}.jsonl": FILES["r.jsonl"] for i in range(3)}
    data = bytearray(as_zip(members))
    data[data.find(b"1.jsonl") + 60] ^= 0xFF
    (tmp_path / "m.zip").write_bytes(data)
    items = read_items(tmp_path / "m.zip")
    assert len(found(items)) >= 2 * len(WANTED) and found(items)[-len(WANTED) :] == WANTED
    assert any("broken zip" in fault.error for fault in faults(items))
