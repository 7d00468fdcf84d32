"""Tables that Arrow knows: Parquet, Arrow IPC files (also Feather) and Arrow IPC streams. One
record per row.

Rows come a batch at a time. First what a file claims is checked (parquetfooters.py, ipcbodies.py),
then what its rows become in Python (rowsizes.py). Arrow trusts the offsets in IPC buffers, so every
batch is checked in full before a value of it is touched. A file that is unreadable from some batch
on keeps the rows before it and becomes one fault. Streams that are appended to each other are read
one after the other. A time that Python has no form for (the year 10000, an overflow that somebody
wrote) is given as its count of units, one in a zone that nobody knows in UTC.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.readers.items import Columns, Fault, Item, Record
from tasks.readers.recordlimits import Limits
from tasks.readers.tables.ipcbodies import require_small_bodies
from tasks.readers.tables.parquetfooters import BATCH_ROWS, OverLimit, batch_rows
from tasks.readers.tables.rowsizes import bounded_parts

IPC_FILE_MAGIC = b"ARROW1"
FREE_ROWS, MAX_ROWS_PER_BYTE = 1 << 20, 8
"""A file may have this many rows, or this many for each of its bytes if that is more. Runs of one
value, and of nulls, take no bytes at all."""
TOO_MANY_ROWS = "over the limit: more than {rows:,} rows, too many for the bytes of the file"
NO_FORM = (ValueError, OverflowError, KeyError)
"""What Arrow raises for values that Python has no form for; a zone that is not known is a
KeyError."""
NO_VALUE = (*NO_FORM, ArithmeticError)
"""Values that are none, too: a decimal of more digits than its type has."""


def read_parquet(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at their row number."""
    try:
        num_rows = batch_rows(stream, limits)
    except OverLimit as error:
        yield Fault(1, None, str(error), ends=True)
        return
    yield from _read_rows("Parquet", stream, lambda: _parquet_batches(stream, num_rows), limits)


def read_arrow(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at their row number, from a file or a stream, whichever it is."""
    try:
        require_small_bodies(stream, limits)
    except OverLimit as error:
        yield Fault(1, None, str(error), ends=True)
        return
    yield from _read_rows("Arrow", stream, lambda: _ipc_batches(stream), limits)


def _parquet_batches(stream: BinaryIO, num_rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(stream) as file:
        yield from file.iter_batches(batch_size=num_rows, use_threads=False)


def _ipc_batches(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    start = stream.read(len(IPC_FILE_MAGIC))
    stream.seek(0)
    if start == IPC_FILE_MAGIC:
        with pa.ipc.open_file(stream) as file:
            batches = (file.get_batch(i) for i in range(file.num_record_batches))
            yield from _small(batches)
        return
    while stream.read(1):
        stream.seek(-1, io.SEEK_CUR)
        with pa.ipc.open_stream(stream) as file:
            yield from _small(file)


def _small(batches: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        batch.validate(full=True)
        for begin in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(begin, BATCH_ROWS)


def _read_rows(
    kind: str,
    stream: BinaryIO,
    batches: Callable[[], Iterator[pa.RecordBatch]],
    limits: Limits,
) -> Iterator[Item]:
    row, max_rows = 0, max(FREE_ROWS, MAX_ROWS_PER_BYTE * stream.seek(0, io.SEEK_END))
    stream.seek(0)
    try:
        for batch in batches():
            if len(set(batch.schema.names)) < len(batch.schema.names):
                yield Fault(row + 1, None, f"unreadable {kind}: a column is named twice", ends=True)
                return
            if row + batch.num_rows > max_rows:
                yield Fault(row + 1, None, TOO_MANY_ROWS.format(rows=max_rows), ends=True)
                return
            for values in _rows(batch, limits):
                if isinstance(values, str):
                    yield Fault(row + 1, None, values)
                else:
                    yield Record(row, row + 1, None, values)
                row += 1
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the file
        yield Fault(
            row + 1,
            None,
            f"unreadable {kind}: from row {row + 1} on ({type(error).__name__})",
            ends=True,
        )


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python has no nanoseconds: without this, what a row holds would depend on whether pandas is
    installed."""
    coarser = {
        "timestamp[ns]": pa.timestamp("us"),
        "time64[ns]": pa.time64("us"),
        "duration[ns]": pa.duration("us"),
    }
    columns = []
    for column in batch.columns:
        kind = str(column.type).partition(",")[0].rstrip("]") + "]"
        target = (
            pa.timestamp("us", column.type.tz)
            if pa.types.is_timestamp(column.type)
            else coarser.get(kind)
        )
        columns.append(column.cast(target, safe=False) if kind in coarser and target else column)
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _rows(batch: pa.RecordBatch, limits: Limits) -> Iterator[dict[str, Any] | str]:
    for part in bounded_parts(batch, limits.record_bytes):
        if part is None:
            yield limits.over("a row")
            continue
        coarser = _in_microseconds(part)
        try:
            rows = coarser.to_pylist()
        except NO_VALUE:
            for i in range(coarser.num_rows):
                yield _row(coarser.slice(i, 1))
        else:
            yield from rows


def _row(row: pa.RecordBatch) -> dict[str, Any] | str:
    try:
        return {
            name: _in_python(column[0])
            for name, column in zip(row.schema.names, row.columns, strict=True)
        }
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: byte 0x{error.object[error.start]:02x}"
    except NO_VALUE as error:
        return f"wrong type: {type(error).__name__} where a value becomes one of Python"


def _in_python(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except NO_FORM:
        if not hasattr(scalar, "value") and not isinstance(
            scalar, (pa.StructScalar, pa.MapScalar, pa.ListScalar)
        ):
            raise
    if isinstance(scalar, pa.StructScalar):
        return {name: _in_python(member) for name, member in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [tuple(_in_python(member) for member in pair.values()) for pair in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_in_python(member) for member in scalar.values]
    if pa.types.is_timestamp(scalar.type) and scalar.type.tz:
        return _in_python(
            scalar.cast(pa.timestamp(scalar.type.unit, None if scalar.type.tz == "UTC" else "UTC"))
        )
    value = scalar.value
    return _in_python(value) if isinstance(value, pa.Scalar) else value
