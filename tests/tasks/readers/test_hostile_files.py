"""Files that are made to end the process that reads them cost themselves, and what is sound around
them is kept."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.readers import Fault, Item, Record
from tasks.readers.recordlimits import Limits
from tasks.readers.tables.parquetfooters import batch_rows
from tests.support.data.input_files import (
    COMPRESS,
    RECORDS,
    as_parquet,
    as_tar,
    as_zip,
    read_bytes,
)

pytestmark = pytest.mark.timeout(60)
LINE = b'{"text": "sound"}\n'
FIRST = as_tar({"first.jsonl": LINE})[:1024]
LAST = as_tar({"last.jsonl": LINE})


def kinds(items: list[Item]) -> list[str]:
    """`sound`, or the error of a fault."""
    return [
        item.error if isinstance(item, Fault) else "sound"
        for item in items
        if isinstance(item, (Fault, Record))
    ]


def header(kind: bytes, size: int | bytes, name: bytes = b"x.jsonl", middle: bytes = b"") -> bytes:
    """A header of a tar archive. middle: what GNU tar writes from byte 345 on."""
    number = b"%011o\0" % size if isinstance(size, int) else size
    block = bytearray(
        name.ljust(100, b"\0")
        + b"0000644\0"
        + b"0000000\0" * 2
        + number
        + b"00000000000\0"
        + b" " * 8
        + kind
    )
    block = block.ljust(257, b"\0") + b"ustar  \0"
    block = block.ljust(345, b"\0") + middle
    block = block.ljust(512, b"\0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 512)


def pax(kind: bytes = b"x", **fields: str) -> bytes:
    """An extension header. Names have _ for the dots of GNU.sparse."""
    records = b""
    for name, value in fields.items():
        tail = f" {name.replace('_', '.')}={value}\n".encode()
        length = len(tail) + 1
        while length != len(tail) + len(str(length)):
            length = len(tail) + len(str(length))
        records += b"%d" % length + tail
    return header(kind, len(records)) + padded(records)


def large_number(value: int) -> bytes:
    return b"\x80" + value.to_bytes(11, "big")


def sparse(real_size: int) -> bytes:
    """A GNU member whose only data is at its end."""
    spans = (
        large_number(real_size - 512)
        + large_number(512)
        + b"\0" * 72
        + b"\0"
        + large_number(real_size)
    )
    return header(b"S", 512, middle=b"\0" * 41 + spans) + padded(LINE)


@pytest.mark.parametrize("size", [2**62, 2**80], ids=["2e62", "2e80"])
@pytest.mark.parametrize("name", [b"x.jsonl", b"x.bin"])
def test_a_size_beyond_the_end_of_a_tar_archive_ends_with_the_archive(
    size: int, name: bytes
) -> None:
    first, *rest = kinds(read_bytes("a.tar", FIRST + header(b"0", large_number(size), name) + LAST))
    assert first == "sound" and rest[-1] == "damaged file: broken tar (unexpected end of data)"


@pytest.mark.parametrize("size", ["-1024", "-1536", "9" * 20])
def test_a_size_in_an_extension_header_leads_neither_back_nor_beyond_the_end(size: str) -> None:
    first, *rest = kinds(
        read_bytes("a.tar", FIRST + pax(size=size) + header(b"0", 18) + padded(LINE) + LAST)
    )
    assert (
        first == "sound"
        and rest[-1].startswith("damaged file: broken tar")
        and rest.count("sound") < 2
    )


@pytest.mark.parametrize("kind", [b"L", b"x", b"g"])
def test_a_chain_of_extension_headers_ends_by_its_length(kind: bytes) -> None:
    one = header(kind, 9) + padded(b"9 path=a\n")
    first, *rest = kinds(read_bytes("a.tar.gz", COMPRESS[".gz"](FIRST + one * 3000 + LAST)))
    assert first == "sound" and rest == [
        "damaged file: broken tar (more than 16 headers for one member)"
    ]


@pytest.mark.parametrize("kind", [b"L", b"x", b"g"])
def test_an_extension_header_takes_no_more_memory_than_a_header_may(kind: bytes) -> None:
    data = FIRST + header(kind, 1 << 26) + b"1" * (1 << 26) + LAST
    first, *rest = kinds(read_bytes("a.tar.gz", COMPRESS[".gz"](data)))
    assert first == "sound" and rest == [
        "damaged file: broken tar (a header of more than 1,048,576 bytes)"
    ]


def test_digits_without_end_in_an_extension_header_take_no_time() -> None:
    first, *rest = kinds(
        read_bytes("a.tar", FIRST + header(b"x", 1 << 19) + b"1" * (1 << 19) + LAST)
    )
    assert first == "sound" and rest == ["damaged file: broken tar (a number of too many digits)"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.txt", "x.html", "x.parquet", "x.warc"])
def test_holes_over_the_limit_cost_their_member(name: str) -> None:
    member = bytearray(sparse(1 << 60))
    member[:512] = header(b"S", 512, name.encode(), bytes(member[345:512]))
    first, fault, last = kinds(read_bytes("a.tar", FIRST + bytes(member) + LAST))
    assert (
        (first, last) == ("sound", "sound")
        and "over the limit: holes" in fault
        and "source.max_record_bytes" in fault
    )


def test_members_with_few_holes_are_read() -> None:
    items = read_bytes("a.tar", FIRST + sparse(2048) + LAST)
    first, zeros, padding, last = kinds(items)
    assert (
        (first, last) == ("sound", "sound") and "broken JSON" in zeros and "broken JSON" in padding
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"GNU_sparse_size": str(10**12), "GNU_sparse_offset": "0", "GNU_sparse_numbytes": "18"},
        {"GNU_sparse_map": "0,18", "GNU_sparse_size": str(10**12)},
        {"GNU_sparse_map": "18,0,0,-5", "GNU_sparse_size": "18"},
        {"GNU_sparse_map": "x", "GNU_sparse_size": "18"},
    ],
)
def test_maps_of_holes_in_extension_headers_are_held_to_the_limit(fields: dict[str, str]) -> None:
    first, *rest = kinds(
        read_bytes("a.tar", FIRST + pax(**fields) + header(b"0", 18) + padded(LINE) + LAST)
    )
    assert first == "sound" and rest and "sound" not in rest[:1]


def test_headers_of_a_large_archive_are_not_kept() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for i in range(300):
            entry = tarfile.TarInfo(f"{'folder/' * 40}größe-{i}.jsonl")
            entry.size = len(LINE)
            archive.addfile(entry, io.BytesIO(LINE))
    assert kinds(read_bytes("a.tar", out.getvalue())) == ["sound"] * 300


def test_a_member_that_would_fill_the_disk_costs_itself() -> None:
    limits = Limits(10)
    members = {"a.parquet": as_parquet(RECORDS), "b.txt": b"sound"}
    for name, data in (("m.zip", as_zip(members)), ("m.tar", as_tar(members))):
        fault, last = kinds(read_bytes(name, data, limits))
        assert (
            "a member in parquet of more than 160 bytes, 16 times source.max_record_bytes" in fault
            and last == "sound"
        )


def test_members_of_a_zip_archive_that_share_bytes_are_refused() -> None:
    data = bytearray(as_zip({"a.jsonl": LINE, "b.jsonl": LINE, "c.jsonl": LINE}))
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[second + 42 : second + 46] = (0).to_bytes(4, "little")  # where its bytes begin
    assert kinds(read_bytes("m.zip", bytes(data)))[-1] == "sound"
    assert "broken zip: a member overlaps another" in kinds(read_bytes("m.zip", bytes(data)))


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]
)
def test_every_method_of_zip_is_read_in_small_pieces(method: int) -> None:
    limits = Limits(1 << 20)
    items = read_bytes(
        "m.zip", as_zip({"a.txt": b"x" * 30_000_000, "b.txt": b"sound"}, method), limits
    )
    assert kinds(items) == [limits.over("a file that is one document"), "sound"]


def test_a_dictionary_of_a_member_in_lzma_is_held_to_the_limit() -> None:
    data = bytearray(as_zip({"a.jsonl": LINE, "b.jsonl": LINE}, zipfile.ZIP_LZMA))
    place = data.index(b"a.jsonl") + len("a.jsonl") + 5
    data[place : place + 4] = b"\xff" * 4
    fault, last = kinds(read_bytes("m.zip", bytes(data)))
    assert fault.startswith("over the limit: a window of a member") and last == "sound"


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def nested_schema(levels: int) -> bytes:
    """A Parquet file without rows whose schema is so deep."""
    node = b"\x48\x01a\x15\x02\x00"  # name, one child
    leaf = b"\x15\x0c\x38\x01a\x00"  # type BYTE_ARRAY, name
    schema = b"\x19\xfc" + varint(levels + 1) + node * levels + leaf
    footer = b"\x15\x02" + schema + b"\x16\x00" + b"\x19\x0c" + b"\x00"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


@pytest.mark.parametrize("levels", [1000, 10_000, 100_000])
def test_a_schema_of_many_levels_does_not_end_the_process(levels: int) -> None:
    assert kinds(read_bytes("deep.parquet", nested_schema(levels))) == [
        "over the limit: a Parquet schema of more than 254 levels"
    ]


def parquet_of(texts: list[str], **how: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), out, **how)
    return out.getvalue()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_that_is_a_bomb_is_refused_by_its_header(version: str) -> None:
    data = parquet_of(["x" * 2_000_000], compression="zstd", data_page_version=version)
    (error,) = kinds(read_bytes("bomb.parquet", data, Limits(1 << 20)))
    assert error == Limits(1 << 20).over("a Parquet page")


@pytest.mark.parametrize(
    "how", [{}, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}]
)
def test_values_that_are_repeated_without_being_written_are_read_a_few_at_a_time(
    how: dict[str, object],
) -> None:
    texts = ["x" * 100_000 + str(i % 2) for i in range(600)]
    data = parquet_of(texts, row_group_size=600, **how)
    limits = Limits(1 << 20)
    assert 1 <= batch_rows(io.BytesIO(data), limits) <= 10
    items = read_bytes("r.parquet", data, limits)
    assert [item.values["text"] for item in items if isinstance(item, Record)] == texts


def test_a_decimal_of_an_impossible_scale_costs_its_row() -> None:
    bits = pa.py_buffer(b"".join(i.to_bytes(16, "little") for i in range(3)))
    prices = pa.Array.from_buffers(pa.decimal128(38, 2_147_483_647), 3, [None, bits])
    table, out = pa.table({"text": ["a", "b", "c"], "price": prices}), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    assert (
        kinds(read_bytes("d.arrows", out.getvalue()))
        == ["wrong type: InvalidOperation where a value becomes one of Python"] * 3
    )


def changed_checksum(data: bytes) -> bytes:
    """The member with one bit of its checksum changed."""
    place = -8 if data[:2] == b"\x1f\x8b" else -1
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.txt", "r.csv", "r.tar"])
def test_nothing_is_read_of_a_member_whose_checksum_fails(name: str, suffix: str) -> None:
    whole = {
        "r.jsonl": LINE * 400_000,
        "r.json": b"[\n" + LINE + b"]\n",
        "r.txt": b"text",
        "r.csv": b"text\nsound\n",
        "r.tar": as_tar({"first.jsonl": LINE}),
    }[name]
    data = COMPRESS[suffix](whole)
    assert "sound" in kinds(read_bytes(name + suffix, data))
    (fault,) = read_bytes(name + suffix, changed_checksum(data))
    assert isinstance(fault, Fault) and fault.error.endswith("; 0 bytes of it were read before")
    if fault.stopped_at is not None:
        assert fault.ends and fault.stopped_at == 0


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_what_was_read_of_a_long_member_whose_checksum_fails_is_said(suffix: str) -> None:
    long = Limits(1 << 20)
    data = COMPRESS[suffix](LINE * 400_000)
    *records, fault = read_bytes("r.jsonl" + suffix, changed_checksum(data), long)
    assert isinstance(fault, Fault) and set(kinds(records)) == {"sound"}
    given = int(fault.error.split("; ")[1].split(" ")[0].replace(",", ""))
    assert 0 <= given - len(LINE) * len(records) < len(LINE)


def test_members_before_and_sound_bytes_before_a_cut_are_read() -> None:
    sound = COMPRESS[".gz"](LINE * 3)
    noise = b"".join(b'{"text": "%d"}\n' % (i * 2654435761 % 2**32) for i in range(5000))
    *first, fault = read_bytes("r.jsonl.gz", sound + changed_checksum(COMPRESS[".gz"](LINE * 5)))
    assert kinds(first) == ["sound"] * 3
    assert isinstance(fault, Fault) and fault.stopped_at == len(sound)
    cut = COMPRESS[".gz"](noise)
    *first, fault = read_bytes("r.jsonl.gz", cut[: len(cut) // 2])
    assert len(first) > 1000 and isinstance(fault, Fault) and "truncated" in fault.error
