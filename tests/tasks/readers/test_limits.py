"""A record over the limit costs itself, before its memory is taken; what is around it is read as
ever."""

from __future__ import annotations

import bz2
import csv
import io
import json
import lzma
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tasks.readers import Fault, Item, Record, codecs
from tasks.readers.bytestreams import DamagedStream
from tasks.readers.jsonlines import LongLine, line_blocks
from tasks.readers.recordlimits import Limits
from tests.support.data.input_files import COMPRESS, as_tar, as_zip, read_bytes, warc_record

LIMITS = Limits(200)
SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=8)


def read(name: str, data: bytes, limits: Limits = LIMITS) -> list[Item]:
    return read_bytes(name, data, limits)


def places(items: list[Item]) -> list[tuple[int, int, bool]]:
    """(line, byte offset, whether it is over the limit) of each."""
    assert all(
        isinstance(item, Record) or (isinstance(item, Fault) and "over the limit" in item.error)
        for item in items
    )
    return [
        (item.line, item.byte_offset or 0, isinstance(item, Fault))
        for item in items
        if isinstance(item, (Record, Fault))
    ]


def line_starts(
    rows: list[bytes], first_line: int = 1, first_offset: int = 0
) -> Iterator[tuple[int, int, bool]]:
    """What `places` should be of rows that end with a line end."""
    line, offset = first_line, first_offset
    for row in rows:
        yield line, offset, len(row) - 1 > LIMITS.record_bytes
        line, offset = line + row.count(b"\n"), offset + len(row)


@given(SIZES, st.sampled_from(["r.jsonl", "r.jsonl.gz", "r.jsonl.zst"]))
def test_a_line_over_the_limit_costs_itself(sizes: list[int], name: str) -> None:
    rows = [json.dumps({"text": "x" * size}).encode() + b"\n" for size in sizes]
    data = COMPRESS[name[7:]](b"".join(rows))
    assert places(read(name, data)) == list(line_starts(rows))


@given(SIZES, st.sampled_from(['"', "x", "\n", ",", 'a"\nb']))
def test_a_row_over_the_limit_costs_itself_wherever_its_quotes_are(
    sizes: list[int], sign: str
) -> None:
    out = io.StringIO(newline="")
    rows = []
    for size in sizes:
        csv.writer(out, lineterminator="\n").writerow([sign * size, "b"])
        rows.append(out.getvalue().encode())
        out.seek(out.truncate(0))
    assert places(read("r.csv", b"id,text\n" + b"".join(rows))) == list(line_starts(rows, 2, 8))


@given(SIZES, st.sampled_from(["x", "]", "\\", '"', "}"]))
def test_a_value_of_an_array_over_the_limit_costs_itself(sizes: list[int], sign: str) -> None:
    values = [json.dumps({"text": sign * size}).encode() for size in sizes]
    wanted, offset = [], 2
    for line, value in enumerate(values, 2):
        wanted.append((line, offset, len(value) > LIMITS.record_bytes))
        offset += len(value) + 2
    if all(is_long for _, _, is_long in wanted):
        return  # a file without a record is one fault
    assert places(read("r.json", b"[\n" + b",\n".join(values) + b"\n]")) == wanted


def test_a_value_over_the_limit_that_goes_over_blocks_costs_itself() -> None:
    short, long = b'{"text": "short"}', b'{"text": "' + b"x" * 5_000_000 + b'"}'
    data = b"[\n" + b",\n".join([short, long, short]) + b"\n]"
    assert places(read("r.json", data)) == [
        (2, 2, False),
        (3, 21, True),
        (4, len(data) - len(short) - 2, False),
    ]


def test_a_record_of_a_web_archive_over_the_limit_costs_itself() -> None:
    short, long = (
        warc_record("conversion", b"x" * size, Content_Type="text/plain") for size in (10, 300)
    )
    items = read("r.warc.wet", short + long + short)
    assert [
        (item.byte_offset, type(item)) for item in items if isinstance(item, (Record, Fault))
    ] == [
        (0, Record),
        (len(short), Fault),
        (len(short) + len(long), Record),
    ]


@pytest.mark.parametrize("archive", ["m.zip", "m.tar"])
def test_a_document_over_the_limit_costs_its_member(archive: str) -> None:
    members = {"a.txt": b"short", "b.txt": b"x" * 201, "c.html": b"<p>" * 100, "d.txt": b"short"}
    items = read(archive, as_zip(members) if archive == "m.zip" else as_tar(members))
    assert [isinstance(item, Record) for item in items] == [True, False, False, True]


@given(
    st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")),
    st.integers(1, 9),
    st.integers(1, 30),
)
def test_lines_do_not_depend_on_how_they_are_cut_into_blocks(
    data: bytes, max_line_bytes: int, block_bytes: int
) -> None:
    blocks = iter([data[i : i + block_bytes] for i in range(0, len(data), block_bytes)])
    found: list[bytes | tuple[int, int]] = []
    for lines in line_blocks(blocks, max_line_bytes, b"x"):
        assert not isinstance(lines, DamagedStream)
        found += [tuple(lines)] if isinstance(lines, LongLine) else lines
    wanted = [
        line if len(line) <= max_line_bytes else (len(line), line.count(b"x"))
        for line in data.split(b"\n")
    ]
    assert found == (wanted[:-1] if wanted[-1] == b"" else wanted)


BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "r.jsonl": lambda filling: b'{"text": "' + filling + b'"}\n',
    "r.json": lambda filling: b'[\n{"text": "' + filling + b'"}\n]',
    "r.csv": lambda filling: b"id,text\n1," + filling + b"\n",
    "quoted.csv": lambda filling: (
        b'id,text\n1,"' + filling.replace(b"x" * 5000, b"x" * 4999 + b"\n") + b'"\n'
    ),
    "r.txt": bytes,
    "r.html": bytes,
    "blank.jsonl": lambda filling: b'{"text": 1}' + (b" " * 5000 + b"\n") * (len(filling) // 5000),
    "r.warc": lambda filling: warc_record("conversion", filling, Content_Type="text/plain"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_that_of_the_limit_and_not_of_what_is_compressed(name: str) -> None:
    limits = Limits(1 << 20)
    data = COMPRESS[".gz"](BOMBS[name](b"x" * 48_000_000))
    tracemalloc.start()
    try:
        items = read(f"{name}.gz", data, limits)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000_000, f"{peak_bytes:,}"
    assert name == "blank.jsonl" or [
        item.error.partition(":")[0] for item in items if isinstance(item, Fault)
    ]


def xz_with_dictionary(prop: int) -> bytes:
    """A few bytes in xz that ask for a dictionary of 2 to 4 GiB (prop 38 to 40)."""
    data = bytearray(lzma.compress(b'{"text": "a"}\n', check=lzma.CHECK_NONE))
    header = data[12 : 12 + (data[12] + 1) * 4]
    place = header.index(b"\x21\x01") + 2
    header[place] = prop
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    data[12 : 12 + len(header)] = header
    return bytes(data)


ZSTD_WINDOW_2_GIB = b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"


@pytest.mark.parametrize(
    ("name", "data"),
    [("r.jsonl.xz", xz_with_dictionary(prop)) for prop in (38, 39, 40)]
    + [("r.jsonl.zst", ZSTD_WINDOW_2_GIB)],
)
def test_a_window_over_the_limit_is_refused_and_the_setting_named(name: str, data: bytes) -> None:
    (fault,) = read(name, data, Limits())
    assert (
        isinstance(fault, Fault) and "needs a window of more than 536,870,912 bytes" in fault.error
    )
    assert fault.error.endswith("raise source.max_record_bytes")


def test_what_the_tools_write_at_most_is_read_whatever_the_limit() -> None:
    line = b'{"text": "a"}\n'
    long = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27)
    ).compressobj()
    for name, data in (
        ("r.jsonl.xz", lzma.compress(line, preset=9)),
        ("r.jsonl.zst", long.compress(line) + long.flush()),
    ):
        (record,) = read(name, data)
        assert isinstance(record, Record)


def test_blocks_of_one_repeated_byte_in_zstd_are_given_a_few_at_a_time() -> None:
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(
        (is_last | 1 << 1 | (1 << 17) << 3).to_bytes(3, "little") + b"x"
        for is_last in [0] * 999 + [1]
    )
    tracemalloc.start()
    try:
        (fault,) = read("r.txt.zst", frame, Limits(1 << 20))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(fault, Fault) and "over the limit" in fault.error
    assert peak_bytes < 50_000_000, f"{peak_bytes:,}"


LINE = b'{"text": "a"}\n'
FILLED = {
    "r.jsonl.zst": zstandard.ZstdCompressor(level=19).compress,
    "r.jsonl.bz2": bz2.compress,
    "r.jsonl.xz": lzma.compress,
    "r.jsonl.gz": COMPRESS[".gz"],
}


@pytest.mark.parametrize("name", FILLED)
def test_a_stream_that_expands_more_than_any_of_gzip_ends(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "FREE_BYTES", 1 << 20)
    filling = b" " * 199 + b"\n"
    data = FILLED[name](LINE + filling * 400_000)
    items = read(name, data)
    assert items[0] == Record(0, 1, 0, {"text": "a"})
    if name == "r.jsonl.gz":
        assert items[1:] == []
        return
    (fault,) = items[1:]
    assert isinstance(fault, Fault) and fault.ends and "more than 1,032 times" in fault.error
    assert fault.byte_offset and fault.byte_offset < 1032 * len(data) + (4 << 20)


def test_a_member_of_a_web_archive_that_expands_like_a_bomb_costs_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codecs, "FREE_BYTES", 1 << 20)
    pack = zstandard.ZstdCompressor(level=19).compress
    sound = pack(warc_record("conversion", b"words", Content_Type="text/plain"))
    bomb = pack(warc_record("conversion", b"x" * 80_000_000, Content_Type="text/plain"))
    items = read("r.warc.zst", sound + bomb + sound, Limits(1 << 27))
    first, fault, last = items
    assert isinstance(first, Record) and isinstance(last, Record)
    assert isinstance(fault, Fault) and "more than 1,032 times" in fault.error and not fault.ends


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_of_a_zip_archive_that_expands_like_a_bomb_costs_itself(
    method: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "FREE_BYTES", 1 << 20)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("a.jsonl", LINE + (b" " * 199 + b"\n") * 400_000)
        archive.writestr("b.jsonl", LINE)
    first, fault, last = read("r.zip", stream.getvalue())
    assert isinstance(first, Record) and isinstance(last, Record)
    assert isinstance(fault, Fault) and "expands by more than 1,032 times" in fault.error
