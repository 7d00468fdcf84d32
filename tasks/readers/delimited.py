"""Comma and tab separated values: the first row names the columns, every other row is a record.

In CSV (RFC 4180) quoted fields may hold separators and line ends. TSV (IANA
text/tab-separated-values) has no quotes: a field that begins with one is text, not the beginning of
a field that swallows rows. A source can say otherwise of both. Blank lines are not rows. A row with
another number of fields than the first is a fault. A quote that is never closed takes the rest of
the file with it, as one fault. Memory is one block plus the longest row.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Literal

from tasks.readers.bytestreams import DamagedStream
from tasks.readers.formats import Layout
from tasks.readers.items import Columns, Fault, Item, Record, damaged
from tasks.readers.jsonlines import BOM, LongLine, split_lines
from tasks.readers.recordlimits import Limits

MAX_FIELD_CHARS = 1 << 30
"""The library's own limit is 131,072. What a field can hold is bounded by its row."""

SURROGATE = re.compile("[\ud800-\udfff]")
DELIMITED: Mapping[str, Layout] = {"csv": Layout("csv", ",", '"'), "tsv": Layout("tsv", "\t", "")}
"""What a format has where the source says nothing."""


def read_delimited(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits, layout: Layout
) -> Iterator[Item]:
    """Records at the byte offset of their first line; an empty quote in `layout` means none."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    lines = _Lines(stream, compression, limits, layout.quote or "")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if layout.quote else csv.QUOTE_NONE
    reader = csv.reader(
        lines,
        delimiter=layout.delimiter or ",",
        quotechar=layout.quote or None,
        quoting=quoting,
        strict=True,
    )
    header: list[str] | None = None
    while True:
        number, offset = lines.begin_row()
        try:
            row = next(reader, None)
        except csv.Error as error:
            # The rest was read in search of the end of a quotation, so how far a compressed file
            # was read before is not known.
            stopped_at = None if compression else offset
            yield Fault(number, offset, f"broken CSV: {error}", lines.ended, stopped_at)
            if lines.ended:
                break
            continue
        if row is None:
            break
        if lines.is_long:
            yield Fault(number, offset, limits.over("a row"), ends=header is None)
            if header is None:
                return
            continue
        if not row:
            continue
        wrong = _fault_of(row, header)
        if wrong:
            yield Fault(number, offset, wrong, ends=header is None)
            if header is None:
                return
        elif header is None:
            header = row
        else:
            yield Record(offset, number, offset, dict(zip(header, row, strict=True)))
    if damage := lines.damage:
        yield Fault(lines.number, lines.offset, damaged(damage), True, damage.stopped_at)


class _Lines:
    """Lines as text, bytes that are not UTF-8 as surrogates; knows where the next one begins.

    Of the lines of a row over the limit, only whether they leave a quotation open is kept.
    """

    def __init__(self, stream: BinaryIO, compression: str, limits: Limits, quote: str) -> None:
        self._max_row_bytes, self._quote = limits.record_bytes, quote
        self._lines = split_lines(stream, compression, limits, quote.encode() or b"\0")
        self._row_offset = 0
        self.is_long = False
        """Whether the row of the last line is over the limit."""
        self.number, self.offset = 1, 0
        self.ended = False
        self.damage: DamagedStream | None = None

    def begin_row(self) -> tuple[int, int]:
        """Line and byte offset of the next row."""
        self._row_offset, self.is_long = self.offset, False
        return self.number, self.offset

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        number, offset, line = next(self._lines, (self.number, self.offset, None))
        if isinstance(line, DamagedStream) or line is None:
            self.ended, self.damage = True, line
            raise StopIteration
        num_bytes = line.num_bytes if isinstance(line, LongLine) else len(line)
        self.number, self.offset = number + 1, offset + num_bytes + 1
        self.is_long = self.is_long or self.offset - 1 - self._row_offset > self._max_row_bytes
        if self.is_long:
            if not self._quote:
                return "\n"
            mark = self._quote.encode()
            num_marks = line.num_marks if isinstance(line, LongLine) else line.count(mark)
            return self._quote * (num_marks % 2) + "\n"
        assert isinstance(line, bytes), "a long line makes a long row"
        text = line.removeprefix(BOM) if number == 1 else line
        return text.decode("utf-8", "surrogateescape") + "\n"


def _fault_of(row: list[str], header: list[str] | None) -> str | None:
    for field in row:
        if not field.isascii() and (bad := SURROGATE.search(field)):
            return f"invalid UTF-8: byte 0x{ord(bad[0]) - 0xDC00:02x}"
    if header is None:
        return "broken CSV: a column is named twice" if len(set(row)) < len(row) else None
    if len(row) != len(header):
        return f"broken CSV: the row has {len(row)} fields, the first row {len(header)}"
    return None
