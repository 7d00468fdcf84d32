"""Bounds the bytes that rows of an Arrow batch become in Python, before they are converted.

A value that a batch holds once may be that of many rows, or of many places in one row: through a
dictionary, a view, or runs. Others take nothing in a batch and much in Python, as a list of two
billion nulls does. So batches are halved until a part is within the limit of a record; a row that
is beyond it alone is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

VALUE_BYTES = 8
"""What a value takes in Python at least: its place in a list."""


def bounded_parts(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch | None]:
    """Parts of a batch that take hardly more than `max_bytes`, and None for each row that does."""
    if sum(map(upper_bytes, batch.columns)) <= max_bytes:
        yield batch
    elif batch.num_rows == 1:
        yield None
    else:
        half = batch.num_rows // 2
        yield from bounded_parts(batch.slice(0, half), max_bytes)
        yield from bounded_parts(batch.slice(half), max_bytes)


def upper_bytes(values: Any) -> int:
    """At least as many bytes as the texts and places of all values in an array take."""
    kind, count = values.type, len(values)
    places = count * VALUE_BYTES
    if not count:
        return 0
    if isinstance(values, pa.ExtensionArray):
        return upper_bytes(values.storage)
    if types.is_dictionary(kind):
        return count * (VALUE_BYTES + upper_bytes(values.dictionary))
    if types.is_run_end_encoded(kind):
        return count * (VALUE_BYTES + upper_bytes(values.values))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return places + _view_bytes(values)
    if types.is_struct(kind):
        return places + sum(upper_bytes(values.field(i)) for i in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        return places + upper_bytes(values.values.slice(values.offset * size, count * size))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        num_values = int(np.maximum(np.asarray(values.sizes), 0).sum(dtype=np.float64))
        inner = values.values
        plain = upper_bytes(inner) if types.is_nested(inner.type) else _largest(inner)
        return places + num_values * (VALUE_BYTES + plain)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[count].as_py()
        keys = [values.keys, values.items] if types.is_map(kind) else [values.values]
        return places + sum(upper_bytes(one.slice(first, last - first)) for one in keys)
    if types.is_union(kind):
        members = [upper_bytes(values.field(i)) for i in range(kind.num_fields)]
        return count * (VALUE_BYTES + max(members, default=0))
    return places + int(values.nbytes)


def _largest(values: Any) -> int:
    """At least the bytes of the largest value of an array that is not nested."""
    kind = values.type
    if types.is_primitive(kind) or types.is_null(kind):
        return VALUE_BYTES
    return upper_bytes(values)


def _view_bytes(values: Any) -> int:
    """The length of a text is in the first four of the sixteen bytes of its view."""
    views = np.frombuffer(values.buffers()[1], np.int32)[::4]
    lengths = views[values.offset : values.offset + len(values)]
    return int(np.maximum(lengths, 0).sum(dtype=np.int64))  # that of a null may be anything
