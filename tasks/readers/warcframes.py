"""Splits a web archive into records, and finds the next one after a damaged one.

A record is `WARC/1.x`, header lines, an empty line, `Content-Length` bytes and two line ends (ISO
28500). Its length is believed only where it leads to that end, to the header of another record or
to the end of the file; then nothing in the content can split the record. Where it leads elsewhere,
or is not a length, the record is damaged and reading resumes at the next header in sight. A member
of a compressed archive that begins with a header ends the record before it in any case, so a length
that is too long is noticed there. After a damaged member reading resumes at the next sound one that
begins with a header.

Offsets count uncompressed bytes. A damaged member counts with the length it states, so that offsets
behind it are those of the undamaged archive; where it states none that is possible, it counts with
what could be decompressed of it. A record that says it is longer than the limit is taken for
damaged. Memory is one record and one block.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from fastwarc.warc import HeaderMap

from tasks.readers.bytestreams import DamagedStream, Gap, MemberStart, read_pieces
from tasks.readers.items import damaged
from tasks.readers.recordlimits import Limits

MAGIC = b"WARC/"
HEADER = re.compile(rb"WARC/\d+\.\d+\r\n[A-Za-z][A-Za-z-]*:")
"""What reading resumes at. With carriage returns only: pages about web archives show headers
without them."""
HEADER_BYTES = 64
"""A match of HEADER is hardly longer."""
BARE_LINE_END = re.compile(rb"(?<!\r)\n")
LINE_ENDS = re.compile(rb"[\r\n]*")
MAX_HEADER_BYTES = 1 << 16
WRONG_LENGTH = "the Content-Length does not lead to the end of the record"
STEP_BYTES = 1 << 20
"""Taken of a record at once, between looks for the next member."""


class Frame(NamedTuple):
    """A record: where it is, its parsed header and its bytes."""

    offset: int
    headers: Any
    body: bytes


class Broken(NamedTuple):
    """A record, or what is there instead of one, that cannot be read."""

    offset: int
    error: str
    ends: bool = False
    stopped_at: int | None = None
    """As in tasks.readers.items.Fault."""
    resumed_at: int | None = None


def read_frames(stream: BinaryIO, compression: str, limits: Limits) -> Iterator[Frame | Broken]:
    """The records of an archive in order, a damaged one in its place."""
    window = _Window(stream, compression, limits)
    while True:
        window.skip_line_ends()
        if window.data:
            yield _read_frame(window, limits)
        elif window.stop is not None:
            yield window.cross_stop(window.offset)
        else:
            return


class _Window:
    """The bytes of an archive from `offset` on, as many as asked for, up to the next damage."""

    def __init__(self, stream: BinaryIO, compression: str, limits: Limits) -> None:
        self._pieces = read_pieces(stream, compression, MAGIC, limits)
        self.data = bytearray()
        self.offset = 0
        self.starts: list[int] = []
        """Offsets from `offset` on at which members begin."""
        self.first_of: int | None = None
        """Where the member begins whose first record is at `offset`; None for a later record."""
        self.stop: Gap | DamagedStream | None = None
        """Damage after `data`."""
        self._member = (0, 0)
        """Compressed and uncompressed bytes before the last member of which bytes were taken."""

    def fill(self, num_bytes: int) -> bool:
        """Have so many bytes from `offset` on; false if damage or the end comes first."""
        while len(self.data) < num_bytes and self.stop is None:
            try:
                piece = next(self._pieces, None)
            except DamagedStream as error:
                piece, self.stop = None, error
            if piece is None:
                break
            if isinstance(piece, MemberStart):
                self._member = (piece.offset, self.offset + len(self.data))
                if self.starts[-1:] != [self._member[1]]:
                    self.starts.append(self._member[1])
            elif isinstance(piece, Gap):
                self.stop = piece
            else:
                self.data += piece
        return len(self.data) >= num_bytes

    def drop(self, num_bytes: int) -> None:
        del self.data[:num_bytes]
        self.offset += num_bytes
        self.starts = [start for start in self.starts if start >= self.offset]

    def skip_line_ends(self) -> None:
        self.first_of = None
        while self.fill(1):
            num_bytes = LINE_ENDS.match(self.data).end()  # type: ignore[union-attr]  # it matches nothing, too
            passed = [start for start in self.starts if start <= self.offset + num_bytes]
            self.first_of = passed[-1] if passed else self.first_of
            if not num_bytes:
                return
            self.drop(num_bytes)

    def seek_header(self, start: int) -> bool:
        """Drop what is before the next header, looked for from `start` on; false, and all dropped,
        where there is none before damage or the end."""
        while (found := HEADER.search(self.data, start)) is None:
            self.drop(max(start, len(self.data) - HEADER_BYTES))
            start = 0
            if not self.fill(len(self.data) + 1):
                self.drop(len(self.data))
                return False
        self.drop(found.start())
        return True

    def next_member(self, num_bytes: int) -> bool:
        """Whether, before so many bytes from `offset` on, another member begins with a header."""
        # A list, since `fill` adds to the starts.
        places = [start - self.offset for start in self.starts]
        return any(
            self.fill(place + len(MAGIC)) and self.data.startswith(MAGIC, place)
            for place in places
            if 0 < place < num_bytes
        )

    def is_damaged(self, offset: int) -> bool:
        """Whether the member that what is at `offset` is in is the damaged one."""
        return self.stop is not None and not any(start > offset for start in self.starts)

    def explains(self, offset: int) -> bool:
        """Whether damage to its member explains what is wrong with the record at `offset`.

        The window begins there. Not all of a long member is read to find out.
        """
        if self.first_of is None:
            return False
        while not any(start > offset for start in self.starts) and len(self.data) < STEP_BYTES:
            if not self.fill(len(self.data) + 1):
                break
        return self.is_damaged(offset)

    def cross_stop(self, offset: int) -> Broken:
        """Go to what is behind the damage, which cost the record at `offset` and all after it."""
        stop, self.stop = self.stop, None
        assert stop is not None, "there is no damage to cross"
        if self.first_of is not None:
            # Line ends before the record may be damaged bytes of it.
            offset = min(offset, self.first_of)
        end = self.offset + len(self.data)
        # Damage is noticed late, at the latest by the checksum. What was not read begins where the
        # record does.
        begin, uncompressed_begin = self._member
        read_frac = max(0, offset - uncompressed_begin) / max(1, end - uncompressed_begin)
        stopped_at = begin + int((stop.stopped_at - begin) * read_frac)
        self.drop(len(self.data))
        self.starts.clear()
        if isinstance(stop, DamagedStream):
            return Broken(offset, damaged(stop), True, stopped_at)
        self.offset = end + stop.missing_bytes if end + stop.missing_bytes > offset else end
        where = f"bytes {stopped_at:,} to {stop.resumed_at:,} of the compressed file"
        return Broken(offset, damaged(f"{stop.error}, {where}"), False, stopped_at, stop.resumed_at)


def _read_frame(window: _Window, limits: Limits) -> Frame | Broken:
    """The record at the beginning of the window, which moves on to where the next one begins."""
    if not window.fill(len(MAGIC)) and MAGIC.startswith(window.data):
        return _cut_off(window)
    if not window.data.startswith(MAGIC):
        return _resume(window, 1, "no header where a record should begin")
    while (begin := header_end(window.data, MAX_HEADER_BYTES)) is None:
        if len(window.data) >= MAX_HEADER_BYTES:
            return _resume(window, len(MAGIC), f"a header of more than {MAX_HEADER_BYTES:,} bytes")
        if not window.fill(len(window.data) + 1):
            return _cut_off(window)
    header = bytes(window.data[:begin])
    if MAGIC in header[1:] and HEADER.search(header, 1):
        return _resume(window, 1, "a header that is cut off")
    headers, trouble = _parse(header)
    length = (headers.get("Content-Length") or "").strip()
    if not (length.isdecimal() and len(length) < 19):
        no_length = "the Content-Length is not a length"
        missing = no_length if length else "a record without Content-Length"
        return _resume(window, begin, trouble or missing)
    if int(length) > limits.record_bytes:
        return _resume(window, begin, limits.over("a record"), "")
    stop = begin + int(length)
    while not window.next_member(stop) and len(window.data) < stop:
        if not window.fill(min(stop, len(window.data) + STEP_BYTES)):
            return _cut_off(window, begin)
    after = _after_end(window, stop)
    if window.next_member(stop) or after is None:
        return _resume(window, begin, trouble or WRONG_LENGTH)
    has_next = window.fill(after + len(MAGIC)) and window.data.startswith(MAGIC, after)
    # A wrong length may lead to an empty line of a later record, whose header is then in between;
    # but not to a new member.
    beginning = window.data[after : after + len(MAGIC)]
    may_have_next = MAGIC.startswith(beginning) or window.offset + after in window.starts
    if not may_have_next and HEADER.search(window.data, begin, stop):
        return _resume(window, begin, trouble or WRONG_LENGTH)
    with memoryview(window.data) as view:
        offset, body = window.offset, bytes(view[begin:stop])
    # Where nothing else is in the member, what is damaged is this record.
    if (trouble or not has_next) and window.explains(offset):
        return window.cross_stop(offset)
    window.drop(stop)
    return Broken(offset, f"broken WARC: {trouble}") if trouble else Frame(offset, headers, body)


def header_end(data: bytes | bytearray, limit: int) -> int | None:
    """Where the empty line after a header ends, whatever its lines end with; None if not so far."""
    whole = data.find(b"\r\n\r\n", 0, limit)
    stop = limit if whole < 0 else whole
    bare = [place for end in (b"\n\n", b"\n\r\n") if (place := data.find(end, 0, stop)) >= 0]
    if bare:
        return min(bare) + 2
    return whole + 4 if whole >= 0 else None


def with_carriage_returns(header: bytes) -> bytes:
    """The header with CR LF at the end of every line."""
    is_whole = header.count(b"\n") == header.count(b"\r\n")
    return header if is_whole else BARE_LINE_END.sub(b"\r\n", header)


def _parse(header: bytes) -> tuple[Any, str | None]:
    """The fields of a header, and what is wrong with it."""
    headers, trouble = HeaderMap("utf-8"), None
    if (whole := with_carriage_returns(header)) is not header:
        trouble, header = "a line of the header ends without carriage return", whole
    try:
        headers.parse(io.BytesIO(header), True)
    except (OSError, ValueError) as error:
        return headers, f"the header cannot be parsed ({error})"
    if not (headers.get("WARC-Type") or "").strip():
        trouble = trouble or "a record without WARC-Type"
    return headers, trouble


def _after_end(window: _Window, stop: int) -> int | None:
    """Where what follows a record begins, if that ends at `stop`: with two line ends, or, as some
    programs write them, others before the next header. None where it does not."""
    window.fill(stop + 4 + len(MAGIC))
    if window.data.startswith(b"\r\n\r\n", stop):
        return stop + 4
    while (after := LINE_ENDS.match(window.data, stop).end()) == len(window.data):  # type: ignore[union-attr]
        if after - stop > MAX_HEADER_BYTES or not window.fill(after + 1):
            return after
    window.fill(after + len(MAGIC))
    return after if MAGIC.startswith(window.data[after : after + len(MAGIC)]) else None


def _resume(window: _Window, start: int, error: str, kind: str = "broken WARC: ") -> Broken:
    """Go to the next header, looked for from `start` on."""
    offset = window.offset
    if window.explains(offset) or (not window.seek_header(start) and window.is_damaged(offset)):
        return window.cross_stop(offset)
    return Broken(offset, kind + error)


def _cut_off(window: _Window, begin: int = 0) -> Broken:
    """What to make of a record whose bytes end too soon; its content begins at `begin`."""
    offset = window.offset
    if window.stop is not None:
        return window.cross_stop(offset)
    if window.seek_header(max(begin, 1)):
        return Broken(offset, "broken WARC: the Content-Length leads beyond the end of the file")
    # Nothing behind it was read over.
    return Broken(offset, damaged("the last WARC record is cut off"), True, 0, 0)
