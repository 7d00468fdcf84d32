"""Which records does a file hold? JSON lines, Parquet, plain text and Markdown, as one stream of records and faults.

A record is a mapping of columns and the place it came from: the byte offset of its line in the uncompressed
stream, or its row number. Everything that is no record becomes a `Fault` with file position and error, and
never a crash or a silence: one bad line costs that line. Memory is one block plus the longest record.

JSON is parsed by orjson. What it refuses is parsed again by the standard library, which tells three things apart:
broken JSON (a fault), NaN and infinities (not JSON, but common in dumps of data frames; they become null), and
lone surrogates (become U+FFFD, and the record says so). Integers beyond 64 bits, which orjson rounds, keep
their digits the same way. Left out: JSON arrays over many lines, WARC and HTML.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.bytestreams import COMPRESSIONS, DamagedStream, read_blocks

BOM = b"\xef\xbb\xbf"
BATCH_ROWS = 256
LONE_SURROGATES = re.compile("[\ud800-\udfff]")

FORMATS: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
    ".markdown": "text",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `position` names it for ever: a byte offset, or a row number in Parquet."""

    position: int
    line: int
    byte_offset: int | None
    values: Mapping[str, Any]
    repaired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """What could not be read, and where. The error never quotes the input."""

    line: int
    byte_offset: int | None
    error: str


def format_of(path: Path) -> str | None:
    """`jsonl`, `parquet` or `text` by the name of a file, None for names this version does not read."""
    name = path.name.lower()
    for compression in COMPRESSIONS:
        if name.endswith(compression):
            name = name.removesuffix(compression)
            return None if name.endswith(".parquet") else FORMATS.get(Path(name).suffix)
    return FORMATS.get(Path(name).suffix)


def read_records(path: Path, relative: str, text_column: str, id_column: str | None) -> Iterator[Record | Fault]:
    """Records and faults of a file, in file order. A text file is one record, named by its relative path."""
    kind = format_of(path)
    if kind == "jsonl":
        yield from read_json_lines(path)
    elif kind == "parquet":
        yield from read_parquet(path)
    else:
        assert kind == "text", f"{relative} was listed but has no reader"
        yield read_text(path, {id_column: relative} if id_column else {}, text_column)


def read_json_lines(path: Path) -> Iterator[Record | Fault]:
    """One record per line that is not blank."""
    for number, offset, line in _lines(path):
        if isinstance(line, str):
            yield Fault(number, offset, line)
            continue
        repaired: tuple[str, ...] = ()
        if line.startswith(BOM):
            line, repaired = line.removeprefix(BOM), ("BOM",)
        if not line or line.isspace():
            continue
        try:
            values, surrogates = parse_json(line)
        except UnicodeDecodeError as error:
            yield Fault(number, offset, f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start} of the line")
        except json.JSONDecodeError as error:
            yield Fault(number, offset, f"broken JSON: {error.msg} at character {error.pos}")
        except (ValueError, RecursionError) as error:
            yield Fault(number, offset, f"broken JSON: {type(error).__name__}")
        else:
            if isinstance(values, dict):
                yield Record(offset, number, offset, values, repaired + (("LONE_SURROGATE",) if surrogates else ()))
            else:
                yield Fault(number, offset, f"wrong type: the record is {json_type(values)}, not an object")


def parse_json(line: bytes) -> tuple[Any, bool]:
    """The value of a JSON text, and whether lone surrogates were replaced in it. Raises ValueError, RecursionError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _repaired(json.loads(line.decode("utf-8")))
    if isinstance(value, dict) and any(isinstance(v, float) and abs(v) >= 2**63 for v in value.values()):
        value = json.loads(line)
    return value, False


def read_parquet(path: Path) -> Iterator[Record | Fault]:
    """One record per row, a batch at a time."""
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                for values in _rows(_in_microseconds(batch)):
                    if isinstance(values, str):
                        yield Fault(row + 1, None, values)
                    else:
                        yield Record(row, row + 1, None, values)
                    row += 1
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the file
        yield Fault(row + 1, None, f"unreadable Parquet from row {row + 1} on ({type(error).__name__})")


def read_text(path: Path, values: Mapping[str, Any], text_column: str) -> Record | Fault:
    """The whole file as one text."""
    blocks: list[bytes] = []
    try:
        blocks.extend(read_blocks(path))
    except DamagedStream as error:
        return Fault(1, 0, str(error))
    data = b"".join(blocks)
    repaired = ("BOM",) if data.startswith(BOM) else ()
    try:
        return Record(0, 1, 0, {**values, text_column: data.removeprefix(BOM).decode("utf-8")}, repaired)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Fault(line, error.start, f"invalid UTF-8: byte 0x{error.object[error.start]:02x}")


def json_type(value: Any) -> str:
    """What JSON calls the type of a value."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _lines(path: Path) -> Iterator[tuple[int, int, bytes | str]]:
    """(line number from 1, byte offset, line); the line is the error, as text, where a stream is damaged."""
    number, offset = 1, 0
    held: list[bytes] = []  # the beginning of a line that goes on in the next block
    try:
        for block in read_blocks(path):
            pieces = block.split(b"\n")
            held.append(pieces[0])
            if len(pieces) == 1:
                continue
            for line in (b"".join(held), *pieces[1:-1]):
                yield number, offset, line
                number, offset = number + 1, offset + len(line) + 1
            held = [pieces[-1]]
    except DamagedStream as error:
        yield number, offset, str(error)
        return
    if any(held):
        yield number, offset, b"".join(held)


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python has no nanoseconds: without this, what a row holds would depend on whether pandas is installed."""
    coarser = {"timestamp[ns]": pa.timestamp("us"), "time64[ns]": pa.time64("us"), "duration[ns]": pa.duration("us")}
    columns = []
    for column in batch.columns:
        kind = str(column.type).partition(",")[0].rstrip("]") + "]"
        target = pa.timestamp("us", column.type.tz) if pa.types.is_timestamp(column.type) else coarser.get(kind)
        columns.append(column.cast(target, safe=False) if kind in coarser and target else column)
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            yield f"invalid UTF-8: byte 0x{error.object[error.start]:02x}"
            return
        for i in range(batch.num_rows):
            yield from _rows(batch.slice(i, 1))


def _repaired(value: Any) -> tuple[Any, bool]:
    """A JSON value without NaN, infinities (null) and lone surrogates (U+FFFD), and whether it had any of the last."""
    if isinstance(value, str):
        repaired, count = LONE_SURROGATES.subn("\ufffd", value)
        return repaired, count > 0
    if isinstance(value, list):
        items = [_repaired(item) for item in value]
        return [item for item, _ in items], any(changed for _, changed in items)
    if isinstance(value, dict):
        pairs = [(_repaired(k), _repaired(v)) for k, v in value.items()]
        return {k[0]: v[0] for k, v in pairs}, any(k[1] or v[1] for k, v in pairs)
    if isinstance(value, float) and not math.isfinite(value):
        return None, False
    return value, False
