"""Looks at what a Parquet file claims before Arrow believes it: the depth of its schema and the
sizes of its pages.

Arrow follows a schema by calls within calls, so ten thousand levels end the process. It takes the
memory that the header of a page asks for, up to 2 GiB. Both are read here first: the footer and the
headers of pages are structs in Thrift's compact protocol (parquet-format, thrift-compact-protocol).
What cannot be decoded is left to Arrow, which refuses it with the rows before it kept.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, NamedTuple

from tasks.readers.recordlimits import Limits

MAGIC = b"PAR1"
TAIL_BYTES = 8
MAX_FOOTER_BYTES = 1 << 27
MAX_SCHEMA_DEPTH = 254
MAX_STRUCT_DEPTH = 32
"""Of structs and lists in Thrift; those of Parquet need eight."""
PAGE_HEADER_BYTES = 1 << 10
MAX_PAGE_HEADER_BYTES = 1 << 20
"""Statistics hold values, so a header may be long; Arrow takes up to 16 MiB, which no writer
needs."""
MAX_PAGE_RATIO = 100
"""Text compresses ten times. A page beyond the limit of a record that is this much smaller in the
file is a bomb; others may hold many records."""
VALUE_BYTES, MAX_VALUES_PER_BYTE = 4, 64
"""A value takes so many bytes in Arrow, at least. All of a column may be those of one row, and runs
of nulls take no bytes in the file."""
DICTIONARY_PAGE, DELTA_BYTE_ARRAY = 2, 7
BATCH_ROWS = 256


class OverLimit(ValueError):
    """The file asks for more than it may; the message is a fault's error."""


class Undecodable(ValueError):
    """Bytes that are not a struct in the compact protocol."""


def batch_rows(stream: BinaryIO, limits: Limits) -> int:
    """How many rows may be read at once, so that they do not take much more than a record may.
    Raises OverLimit.

    A value that is in the file once may be that of every row: in a dictionary, or as the beginning
    of the next one.
    """
    stream.seek(0, os.SEEK_END)
    size = stream.tell()
    try:
        footer = _read_footer(stream, size)
        _require_shallow(footer.get(2))
        repeatable = _largest_repeatable(stream, footer.get(4), limits)
    except Undecodable:
        return BATCH_ROWS
    finally:
        stream.seek(0)
    return max(1, min(BATCH_ROWS, limits.record_bytes // max(1, repeatable)))


def _read_footer(stream: BinaryIO, size: int) -> dict[int, Any]:
    stream.seek(max(0, size - TAIL_BYTES))
    tail = stream.read(TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length + TAIL_BYTES > size:
        raise Undecodable("no footer")
    if length > MAX_FOOTER_BYTES:
        raise OverLimit(f"over the limit: a Parquet footer of more than {MAX_FOOTER_BYTES:,} bytes")
    stream.seek(size - TAIL_BYTES - length)
    return Compact(stream.read(length)).struct()


def _require_shallow(schema: Any) -> None:
    """Follow the tree of columns, which is written as a list of nodes with their numbers of
    children, from its root on."""
    left: list[int] = []
    """Of each open node, the children that are still to come."""
    for node in _structs(schema):
        while left and not left[-1]:
            left.pop()
        if left:
            left[-1] -= 1
        children = node.get(5, 0)
        if isinstance(children, int) and children > 0:
            left.append(children)
            if len(left) > MAX_SCHEMA_DEPTH:
                raise OverLimit(
                    f"over the limit: a Parquet schema of more than {MAX_SCHEMA_DEPTH} levels"
                )


def _largest_repeatable(stream: BinaryIO, row_groups: Any, limits: Limits) -> int:
    """Bytes of the largest page whose values may come again without being written again. Raises
    OverLimit."""
    largest, seen = 0, set[int]()
    for group in _structs(row_groups):
        for column in _structs(group.get(1)):
            found = column.get(3)
            if isinstance(found, dict) and _number(found, 5) > 0:
                largest = max(largest, _walk_pages(stream, found, limits, seen))
    return largest


def _walk_pages(stream: BinaryIO, column: dict[int, Any], limits: Limits, seen: set[int]) -> int:
    place, dictionary = _number(column, 9), _number(column, 11)
    place = dictionary if 0 < dictionary < place else place
    begin, end, left, largest = place, place + _number(column, 7), _number(column, 5), 0
    num_values = 0
    if place in seen:
        raise OverLimit("over the limit: a Parquet file whose columns share their pages")
    while 0 <= place < end and left > 0:
        seen.add(place)
        try:
            page = _read_page_header(stream, place)
        except Undecodable:
            break
        if (
            page.num_bytes > limits.record_bytes
            and page.num_bytes > MAX_PAGE_RATIO * page.compressed_bytes
        ):
            raise OverLimit(limits.over("a Parquet page"))
        num_values += page.num_values
        if num_values > max(
            limits.record_bytes // VALUE_BYTES, MAX_VALUES_PER_BYTE * (page.end - begin)
        ):
            raise OverLimit(limits.over("the values of a Parquet column"))
        largest = max(largest, page.num_bytes if page.is_repeatable else 0)
        place, left = page.end, left - page.num_values
    return largest


class _Page(NamedTuple):
    num_bytes: int
    compressed_bytes: int
    num_values: int
    is_repeatable: bool
    end: int


def _read_page_header(stream: BinaryIO, place: int) -> _Page:
    num_bytes = PAGE_HEADER_BYTES
    while True:
        stream.seek(place)
        data = stream.read(num_bytes)
        compact = Compact(data)
        try:
            header = compact.struct()
            break
        except Undecodable:
            if len(data) < num_bytes or num_bytes >= MAX_PAGE_HEADER_BYTES:
                raise
            num_bytes *= 4
    compressed = _number(header, 3)
    if compressed < 0:
        raise Undecodable("a size below zero")
    is_dictionary = header.get(1) == DICTIONARY_PAGE
    first, second = header.get(5), header.get(8)
    encodings = [
        one.get(field) for one, field in ((first, 2), (second, 4)) if isinstance(one, dict)
    ]
    num_values = max(
        (_number(one, 1) for one in (first, second) if isinstance(one, dict)), default=0
    )
    return _Page(
        _number(header, 2),
        compressed,
        0 if is_dictionary else max(0, num_values),
        is_dictionary or DELTA_BYTE_ARRAY in encodings,
        place + compact.place + compressed,
    )


def _structs(value: Any) -> list[dict[int, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(struct: dict[int, Any], field: int) -> int:
    value = struct.get(field, 0)
    return value if isinstance(value, int) else 0


class Compact:
    """Thrift's compact protocol, as far as structs go: {field: value}, of texts their lengths
    alone."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct that begins here. Raises Undecodable."""
        if depth > MAX_STRUCT_DEPTH:
            raise Undecodable("nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 8:
            return self._pass(self._varint())
        if kind in (1, 2, 3):
            return self._byte()
        if kind == 7:
            return self._pass(8)
        if kind == 13:
            return self._pass(16)
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return self._values(count, (head & 15,), depth)
        if kind == 11:
            count = self._varint()
            kinds = self._byte() if count else 0
            return self._values(count, (kinds >> 4, kinds & 15), depth)
        raise Undecodable("an unknown type")

    def _values(self, count: int, kinds: tuple[int, ...], depth: int) -> list[Any]:
        # Every value takes a byte, at least.
        if depth > MAX_STRUCT_DEPTH or count > len(self._data) - self.place:
            raise Undecodable("a list that is too long or too deep")
        return [self._value(kind, depth + 1) for _ in range(count) for kind in kinds]

    def _byte(self) -> int:
        if self.place >= len(self._data):
            raise Undecodable("cut off")
        self.place += 1
        return self._data[self.place - 1]

    def _pass(self, num_bytes: int) -> int:
        if num_bytes > len(self._data) - self.place:
            raise Undecodable("cut off")
        self.place += num_bytes
        return num_bytes

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise Undecodable("a number of too many bytes")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
