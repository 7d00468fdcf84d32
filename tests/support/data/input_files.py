"""The same records in every format that is read, and what a reader makes of a file."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tasks.readers import Columns, Item, Layout, read_streams
from tasks.readers.formats import BY_NAME
from tasks.readers.recordlimits import USUAL, Limits

Records = Sequence[Mapping[str, str]]

RECORDS = [
    {
        "id": f"r{i}",
        "text": f'text number {i}, with "quotes"\nand a second line\tof größere 数据 '
        + "lorem " * (i % 7),
        "url": f"u{i}",
    }
    for i in range(24)
]
COLUMNS = Columns("text", "id", "url", "added")
QUOTED = Layout(quote='"')
COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def in_two(compress: Callable[[bytes], bytes], data: bytes) -> bytes:
    """Two members, cut in the middle of a line."""
    return compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


def as_jsonl(records: Records) -> bytes:
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


def as_separated(records: Records, delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(records[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode()


def as_parquet(records: Records) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(map(dict, records))), out, row_group_size=7)
    return out.getvalue()


def as_arrow(
    records: Records,
    new: Callable[..., pa.ipc.RecordBatchStreamWriter],
    compression: str | None = None,
) -> bytes:
    table, out = pa.Table.from_pylist(list(map(dict, records))), io.BytesIO()
    with new(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=7)
    return out.getvalue()


def warc_record(kind: str, body: bytes, **headers: str) -> bytes:
    """A WARC record; header names have _ for -."""
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
    ]
    return (
        "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body + b"\r\n\r\n"
    )


def http_response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def as_wet(records: Records, compress: Callable[[bytes], bytes] = bytes) -> bytes:
    """A record per member, as crawlers write it."""
    made = [
        warc_record("warcinfo", b"software: by hand\r\n", Content_Type="application/warc-fields")
    ]
    for r in records:
        named = {
            "WARC_Record_ID": f"<{r['id']}>",
            "WARC_Target_URI": r["url"],
            "Content_Type": "text/plain",
        }
        made.append(warc_record("conversion", r["text"].encode(), **named))
    return b"".join(map(compress, made))


def as_zip(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def as_tar(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def every_format(records: Records = RECORDS) -> dict[str, bytes]:
    """{name of a file: its bytes}: the same records each time."""
    jsonl, half = as_jsonl(records), len(records) // 2
    first, second = as_jsonl(records[:half]), as_parquet(records[half:])
    members = {
        "folder/a.jsonl": first,
        "folder/picture.png": b"\x89PNG",
        "folder/b.parquet": second,
    }
    packed = {
        "folder/a.jsonl.gz": COMPRESS[".gz"](first),
        "folder/b.csv": as_separated(records[half:], ","),
    }
    files = {f"r.jsonl{suffix}": in_two(compress, jsonl) for suffix, compress in COMPRESS.items()}
    files |= {
        f"r.csv{suffix}": compress(as_separated(records, ","))
        for suffix, compress in COMPRESS.items()
    }
    files |= {f"r.tar{suffix}": compress(as_tar(members)) for suffix, compress in COMPRESS.items()}
    files |= {
        f"r.warc.wet{suffix}": as_wet(records, COMPRESS[suffix]) for suffix in ("", ".gz", ".zst")
    }
    return files | {
        "r.json": jsonl,
        "r.tgz": COMPRESS[".gz"](as_tar(packed)),
        "r.zip": as_zip(members),
        "stored.zip": as_zip(packed, zipfile.ZIP_STORED),
        "r.tsv": as_separated(records, "\t"),
        "r.parquet": as_parquet(records),
        "r.arrow": as_arrow(records, pa.ipc.new_file),
        "r.feather": as_arrow(records, pa.ipc.new_file, "zstd"),
        "r.arrows": as_arrow(records, pa.ipc.new_stream),
    }


def read_items(path: Path, layout: Layout = BY_NAME) -> list[Item]:
    # The records have tabs and line ends, for which TSV has no place without quotes.
    layout = QUOTED if path.name == "r.tsv" else layout
    with path.open("rb") as file:
        return [
            item for _, items in read_streams(file, path.name, COLUMNS, layout) for item in items
        ]


def read_bytes(
    name: str, data: bytes, limits: Limits = USUAL, layout: Layout = BY_NAME
) -> list[Item]:
    """What a reader makes of the bytes of a file of this name."""
    streams = read_streams(io.BytesIO(data), name, COLUMNS, layout, limits)
    return [item for _, items in streams for item in items]
