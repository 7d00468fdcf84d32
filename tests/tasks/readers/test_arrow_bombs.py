"""Tables that are small in a file and large in memory cost themselves, and little memory and
time."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.readers import Fault, Item, Record
from tasks.readers.recordlimits import Limits
from tasks.readers.tables import arrowtables
from tests.support.data.input_files import read_bytes

LIMIT_BYTES = 1 << 18
LIMITS = Limits(LIMIT_BYTES)
LONG = 1 << 24
"""Of texts and lists: beyond the limit."""
HALF = LIMIT_BYTES // 2


def ipc(form: str, *batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    stream = io.BytesIO()
    make = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with make(stream, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return stream.getvalue()


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def texts(items: list[Item]) -> list[Any]:
    return [item.values["text"] for item in items if isinstance(item, Record)]


def errors(items: list[Item]) -> list[str]:
    return [item.error for item in items if isinstance(item, Fault)]


def read_and_measure(name: str, data: bytes) -> tuple[list[Item], int]:
    """The items of a file, and the most bytes that Arrow has held for them."""
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        items = read_bytes(name, data, LIMITS)
    finally:
        pa.set_memory_pool(usual)
    return items, counting.max_memory()


@pytest.mark.parametrize("in_dictionary", [False, True])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_a_compressed_batch_that_expands_like_a_bomb_takes_no_memory(
    form: str, compression: str, in_dictionary: bool
) -> None:
    long = pa.array(["a" * LONG])
    data = ipc(
        form,
        batch(text=long.dictionary_encode() if in_dictionary else long),
        compression=compression,
    )
    assert 100 * len(data) < LONG
    items, arrow_bytes = read_and_measure("t.arrow", data)
    assert errors(items) == [LIMITS.over("a compressed Arrow batch")]
    assert arrow_bytes < LIMIT_BYTES


def test_many_dictionaries_that_are_a_bomb_together_take_no_memory() -> None:
    columns = {f"c{i}": pa.array(["a" * (HALF + i)]).dictionary_encode() for i in range(8)}
    data = ipc("stream", batch(**columns), compression="zstd")
    assert errors(read_bytes("t.arrow", data, LIMITS)) == [LIMITS.over("a compressed Arrow batch")]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_an_honest_batch_beyond_the_limit_of_a_record_is_read(
    form: str, compression: str | None
) -> None:
    words = [f"{i * 2654435761 % 2**32} {i}" for i in range(40_000)]
    data = ipc(form, batch(text=pa.array(words)), compression=compression)
    assert len("".join(words)) > LIMIT_BYTES and texts(read_bytes("t.arrow", data, LIMITS)) == words


def repeated_views(text: pa.Buffer, count: int) -> pa.Array:
    view = np.array([text.size, 0x61616161, 0, 0], np.int32)
    views = pa.py_buffer(np.tile(view, count))
    return pa.Array.from_buffers(pa.string_view(), count, [None, views, text])


REPEATED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "a dictionary": lambda long: pa.DictionaryArray.from_arrays(pa.array([0] * 100), long),
    "runs": lambda long: pa.RunEndEncodedArray.from_arrays(pa.array([100]), long),
    "views": lambda long: repeated_views(long.buffers()[2], 100),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_a_text_that_many_rows_share_is_in_memory_a_few_times(kind: str) -> None:
    data = ipc("stream", batch(text=REPEATED[kind](pa.array(["a" * HALF]))))
    num_rows = 0
    tracemalloc.start()
    for item in arrowtables.read_arrow(io.BytesIO(data), "", "t", None, LIMITS):  # type: ignore[arg-type]
        assert isinstance(item, Record) and len(item.values["text"]) == HALF
        num_rows += 1
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_rows == 100 and peak_bytes < 8 * LIMIT_BYTES


NULLS = pa.nulls(LONG)
LONG_ROWS: dict[str, Callable[[], pa.Array]] = {
    "a text": lambda: pa.array(["a" * (LIMIT_BYTES + 1)]),
    "nulls in a list": lambda: pa.ListArray.from_arrays(pa.array([0, LONG], pa.int32()), NULLS),
    "nulls in a large list": lambda: pa.LargeListArray.from_arrays(
        pa.array([0, LONG], pa.int64()), NULLS
    ),
    "nulls in a fixed list": lambda: pa.FixedSizeListArray.from_arrays(NULLS, LONG),
    "nulls in a view": lambda: pa.ListViewArray.from_arrays(
        pa.array([0], pa.int32()), pa.array([LONG], pa.int32()), NULLS
    ),
    "structs without fields in a list": lambda: pa.ListArray.from_arrays(
        pa.array([0, LONG], pa.int32()),
        pa.StructArray.from_buffers(pa.struct([]), LONG, [None]),
    ),
    "texts of a dictionary in a list": lambda: pa.ListArray.from_arrays(
        pa.array([0, 100], pa.int32()), REPEATED["a dictionary"](pa.array(["a" * HALF]))
    ),
    "a list of views": lambda: pa.ListArray.from_arrays(
        pa.array([0, 100], pa.int32()), REPEATED["views"](pa.array(["a" * HALF]))
    ),
    "keys of a map": lambda: pa.MapArray.from_arrays(
        pa.array([0, 100], pa.int32()),
        REPEATED["a dictionary"](pa.array(["a" * HALF])),
        pa.nulls(100),
    ),
}


@pytest.mark.parametrize("kind", LONG_ROWS)
def test_a_row_that_becomes_longer_than_a_record_costs_itself(kind: str) -> None:
    long = LONG_ROWS[kind]()
    short = pa.nulls(1, long.type)
    for rows, expected in (([short, long], 1), ([long, short], 1), ([long, long], 2)):
        expected = 2 if "fixed" in kind else expected  # whose nulls have values, too
        column = pa.concat_arrays(rows)
        data = ipc("stream", batch(text=pa.array(["a", "b"]), more=column))
        tracemalloc.start()
        items = read_bytes("t.arrow", data, LIMITS)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert errors(items) == [LIMITS.over("a row")] * expected
        assert len(texts(items)) == 2 - expected and peak_bytes < len(data) + 8 * LIMIT_BYTES


def test_a_parquet_row_of_many_nulls_takes_no_memory() -> None:
    stream = io.BytesIO()
    column = pa.ListArray.from_arrays(pa.array([0, LONG], pa.int32()), pa.nulls(LONG, pa.int32()))
    pq.write_table(pa.table({"text": ["a"], "more": column}), stream)
    assert len(stream.getvalue()) < LIMIT_BYTES
    items, arrow_bytes = read_and_measure("t.parquet", stream.getvalue())
    assert errors(items) == [LIMITS.over("the values of a Parquet column")]
    assert arrow_bytes < LIMIT_BYTES


@pytest.mark.parametrize("name", ["t.arrow", "t.parquet"])
def test_rows_that_take_no_bytes_in_a_file_come_to_an_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrowtables, "FREE_ROWS", 1000)
    rows = pa.table({"text": pa.nulls(50_000, pa.null())})
    stream = io.BytesIO()
    if name == "t.parquet":
        pq.write_table(rows, stream)
    else:
        stream.write(ipc("stream", *rows.to_batches()))
    items = read_bytes(name, stream.getvalue(), LIMITS)
    max_rows = max(1000, 8 * len(stream.getvalue()))
    assert errors(items) == [arrowtables.TOO_MANY_ROWS.format(rows=max_rows)]
    assert max_rows - 256 <= len(texts(items)) <= max_rows
