"""Splits JSON that is not one record per line into its records: arrays of objects, and objects over
several lines.

A small scanner finds where each value ends, by brackets outside of texts; orjson parses one at a
time. So an array of any size takes the memory of its longest record and one block. No text of JSON
goes over a line end, so an unclosed one ends there. A record whose brackets do not match would
swallow the rest of the array: where one cannot be parsed, the next one is looked for by the white
space and the first key that the records of the file begin with.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from tasks.readers.bytestreams import DamagedStream

TOKEN = re.compile(rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+(?:"|(?=\n)|\\?\Z)|[\[{\]}]', re.DOTALL)
"""Texts, which may hold brackets, and brackets."""
TEXT = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'


def _shallow(depth: int) -> bytes:
    within = rb"|" + _shallow(depth - 1) if depth > 1 else b""
    return rb'[\[{](?:[^"\[\]{}]++|' + TEXT + within + rb")*+[\]}]"


SHALLOW = re.compile(_shallow(4), re.DOTALL)
"""A whole value of few levels, found in one call. Few, so that the beginnings of records that lack
their ends are passed over a few times and not as often as there are records."""
BETWEEN = re.compile(rb"[\s,]*+")
SCALAR = re.compile(rb'[^\s,"\[{\]}]++|.', re.DOTALL)
BEGINNING = re.compile(rb'\{\s*+"[^"\\\n]*"\s*+:')
BOM = b"\xef\xbb\xbf"
QUOTE, OPENING, CLOSING = b'"'[0], b"[{", b"]}"
MAX_HELD_BYTES = 1 << 26
"""Of a record without an end so far, before the next one is looked for within it."""
MAX_BEGINNING_BYTES = 256
"""Of a record, by which the next one is known."""


class Value(NamedTuple):
    """A value that stands on its own or in an array: where it is, its bytes, and whether its end
    was found."""

    line: int
    offset: int
    data: bytes
    is_whole: bool
    is_long: bool = False
    """Whether it is over the limit: it has no bytes then, and is whole where the next one was
    found."""


def opens_values(start: bytes, is_all: bool) -> bool:
    """Whether a file is read value by value: its first line begins an array, or an object, that
    goes on in the next one.

    start: the beginning of the file; is_all: whether there is no more. A first line that is a value
    of its own begins JSON lines, but for an array that is all there is.
    """
    first, found, rest = start.removeprefix(BOM).lstrip().partition(b"\n")
    first, second = first.rstrip(), rest.lstrip().partition(b"\n")[0].rstrip()
    if first[:1] not in (b"[", b"{"):
        return False
    if first[:1] == b"[" and not second and (is_all or not found):
        return True
    if not found:
        return False
    depth, token = 0, None
    for token in TOKEN.finditer(first):
        depth += (first[token.start()] in OPENING) - (first[token.start()] in CLOSING)
    assert token is not None, "the first sign is a bracket"
    if depth <= 0 or (token.end() == len(first) and _is_open(token.group())):
        return False
    if first[:1] == b"{" and first[-1:] in (b"{", b","):
        # Where a line of JSON lines was cut off there, the next one begins with a bracket and no
        # key.
        return second[:1] in (b'"', b"}")
    return first[-1:] in (b"[", b"{", b",", b":") or second[:1] in (b",", b"]", b"}")


def _is_open(token: bytes) -> bool:
    """Whether a token is a text that does not end."""
    return token[:1] == b'"' and (
        len(token) == 1
        or token[-1:] != b'"'
        or (len(token) - len(token[:-1].rstrip(b"\\"))) % 2 == 0
    )


_NONE = array("q")


class _Scan:
    """How far the brackets of the file are counted from a value on, so that no byte is scanned
    again for a record within it.

    Without it an array of n records that lack their ends takes n scans to the end of the file.
    """

    __slots__ = ("at", "depth", "depths", "floor", "offsets", "seen")

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, -1
        """Bytes of the file: where the scan goes on, and the end of what was held when it
        stopped."""
        self.depth = self.floor = 0
        """Open brackets, and how many of them are open where the value has ended."""
        self.depths, self.offsets = _NONE, _NONE
        """Of the open brackets within that begin as records do: how many are open with each, and
        its byte of the file."""

    def note(self, depth: int, offset: int) -> None:
        if self.depths is _NONE:
            self.depths, self.offsets = array("q"), array("q")
        self.depths.append(depth)
        self.offsets.append(offset)


class Values:
    """The values of a file in order, those of arrays one by one. `damage` and `in_array` say, at
    the end, how it ended."""

    def __init__(self, blocks: Iterator[bytes], max_value_bytes: int) -> None:
        self._blocks, self._max_value_bytes = blocks, max_value_bytes
        self._data = b""
        self._place = 0
        self._dropped_bytes = 0
        self._line = 1
        self._next: re.Pattern[bytes] | None = None
        self._begins = b""
        self._num_learned = 0
        self._scans: list[_Scan] = []
        self._is_all = False
        self.damage: DamagedStream | None = None
        self.in_array = False
        """Whether an array has begun that has not ended."""

    @property
    def position(self) -> tuple[int, int]:
        """Line and byte offset of what comes next."""
        return self._line, self._dropped_bytes + self._place

    def __iter__(self) -> Iterator[Value]:
        while len(self._data) < len(BOM) and self._more():
            pass
        self._place = len(BOM) if self._data.startswith(BOM) else 0
        while blank := self._skip():
            sign = self._data[self._place : self._place + 1]
            if sign == (b"]" if self.in_array else b"["):
                self.in_array = not self.in_array
                self._go_to(self._place + 1)
                continue
            if sign == b"{" and self._num_learned < 2:
                self._learn(blank)
            line, offset = self.position
            stop, is_whole = self._find_end()
            if stop - self._place > self._max_value_bytes:
                if not is_whole:
                    is_whole = self._go_to_next()
                else:
                    self._go_to(stop)
                yield Value(line, offset, b"", is_whole, True)
                continue
            value = Value(line, offset, self._data[self._place : stop], is_whole)
            self._go_to(stop)
            yield value

    def step_back(self, value: Value) -> bool:
        """Let what looks like another record within the broken value, which was just given, come
        next; whether there is one."""
        if not value.is_whole and self._place < len(self._data):
            return True  # it was given as far as there
        found = self._next.search(value.data, 1) if self._next is not None else None
        if found is not None:
            self._place -= len(value.data) - found.start()
            self._line = value.line + value.data.count(b"\n", 0, found.start())
        return found is not None

    def _skip(self) -> bytes:
        """Go to the next sign; the white space before it, at least a space. Empty at the end."""
        blank = b" "
        while True:
            found = BETWEEN.match(self._data, self._place)
            assert found is not None, "it matches nothing, too"
            blank = (blank + found.group()[-MAX_BEGINNING_BYTES:])[-MAX_BEGINNING_BYTES:]
            self._go_to(found.end())
            if self._place < len(self._data):
                return blank
            if not self._more():
                return b""

    def _go_to(self, place: int) -> None:
        self._line += self._data.count(b"\n", self._place, place)
        self._place = place

    def _more(self) -> bool:
        """Have more bytes, about as many again as are held, to the limit of a value; false at the
        end."""
        if self._is_all:
            return False
        held = self._data[self._place :]
        blocks, wanted = [held], max(0, min(len(held), self._max_value_bytes - len(held)))
        try:
            while wanted >= 0 and (block := next(self._blocks, b"")):
                blocks.append(block)
                wanted -= len(block)
        except DamagedStream as error:
            self.damage, self._blocks = error, iter(())
        self._dropped_bytes += self._place
        self._data, self._place = b"".join(blocks), 0
        self._is_all = len(self._data) == len(held)
        return not self._is_all

    def _learn(self, blank: bytes) -> None:
        """How a record begins, to know one again within a broken one. White space before the first
        may be unlike the rest."""
        found = BEGINNING.match(self._data, self._place, self._place + MAX_BEGINNING_BYTES)
        if found:
            line_end = blank.rfind(b"\n")
            before = re.escape(blank[line_end:]) if line_end >= 0 else rb"\s*"
            between = rb"(?<=,)" + before if self.in_array else rb"(?<=\n)"
            self._num_learned += 1
            self._begins = found.group()
            self._next = re.compile(between + re.escape(self._begins))

    def _find_end(self) -> tuple[int, bool]:
        """(where the value that comes next ends, whether it does). One without an end stops where a
        record begins within it."""
        if self._data[self._place] not in OPENING and self._data[self._place] != QUOTE:
            return self._end_of_scalar()
        if found := SHALLOW.match(self._data, self._place):
            return found.end(), True
        scan = self._scan_from(self._dropped_bytes + self._place)
        while True:
            if self._scan_on(scan):
                return scan.at - self._dropped_bytes, True
            if scan not in self._scans:
                # Two: where a record lacks a quote, every other one begins within what is a text to
                # the scan before.
                self._scans = [scan, *self._scans[:1]]
            held = len(self._data) - self._place
            if (
                held > MAX_HELD_BYTES
                and self._next
                and (found := self._next.search(self._data, self._place + 1))
            ):
                return found.start(), False
            if held > self._max_value_bytes:
                return len(self._data), False
            if not self._more():
                found = self._next.search(self._data, self._place + 1) if self._next else None
                return found.start() if found else len(self._data), False

    def _scan_from(self, start: int) -> _Scan:
        """A scan of the value that begins at this byte of the file: one that has passed it while
        looking for the end of another, or a new one."""
        for scan in self._scans:
            number = bisect_left(scan.offsets, start)
            if number < len(scan.offsets) and scan.offsets[number] == start:
                scan.floor = scan.depths[number] - 1
                return scan
        return _Scan(start)

    def _scan_on(self, scan: _Scan) -> bool:
        """Scan what is held and was not scanned; whether the value ends in it."""
        data, base, depth, begins = self._data, self._dropped_bytes, scan.depth, self._begins
        stop = base + len(data)
        if scan.seen == stop:
            return False
        place = scan.at - base
        for token in TOKEN.finditer(data, place):
            place, sign = token.start(), data[token.start()]
            if sign == QUOTE:
                if token.end() == len(data) and _is_open(data[place:]):
                    break  # it may go on
            elif sign in OPENING:
                depth += 1
                if depth > 1 and begins and data.startswith(begins, place):
                    scan.note(depth, base + place)
            else:
                if scan.depths and scan.depths[-1] == depth:
                    scan.depths.pop()
                    scan.offsets.pop()
                depth -= 1
            place = token.end()
            if depth == scan.floor:
                scan.at, scan.depth = base + place, depth
                return True
        else:
            place = len(data)
        scan.at, scan.depth, scan.seen = base + place, depth, stop
        return False

    def _go_to_next(self) -> bool:
        """Go to the next record that is known by its beginning, keeping nothing on the way; false
        where there is none."""
        while True:
            if self._next and (found := self._next.search(self._data, self._place + 1)):
                self._go_to(found.start())
                return True
            # What a record begins with may be cut; the look behind is one byte.
            self._go_to(max(self._place, len(self._data) - 2 * MAX_BEGINNING_BYTES))
            if not self._more():
                self._go_to(len(self._data))
                return False

    def _end_of_scalar(self) -> tuple[int, bool]:
        while True:
            found = SCALAR.match(self._data, self._place)
            assert found is not None, "there is a sign"
            if found.end() < len(self._data):
                return found.end(), True
            if len(self._data) - self._place > self._max_value_bytes:
                return len(self._data), False
            if not self._more():
                return len(self._data), True
