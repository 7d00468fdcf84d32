"""Reads text in any encoding as UTF-8, line by line.

`source.encoding` names the encoding of the files, or has it found (`auto`): a byte order mark;
UTF-8; else what statistics guess (uchardet) of the lines that are not UTF-8. A file may be mixed:
each line is read in the encoding of most of the file, else in the other one. A line that has no
meaning in either becomes a byte that UTF-8 does not have, so that the reader of its format
quarantines the record and nothing else. A byte order mark of UTF-16 or UTF-32 is believed under
every setting.

Byte offsets, and so ids, are those of the text in UTF-8. Memory: the sample, one block and the
longest line.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, cast

from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.contents import CONTROL, HEAD_BYTES, peek
from tasks.readers.items import Fault, Item, Record
from tasks.readers.recordlimits import Limits

SUPERSETS = {
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
    "gb2312": "gb18030",
    "gbk": "gb18030",
}
"""What browsers decode with where a page names the smaller set."""
WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, the longer first: that of UTF-16 begins that of UTF-32."""
WITHOUT_MARK = "-le"
"""The order of bytes in text of a wide encoding that has no mark."""
NOT_FOR_FILES = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs")
ASCII_SIGNS = '\t\n\r 09AZaz+"{},'
"""What lines and records are found by, so that every encoding must write them as ASCII does. UTF-7
and EBCDIC do not."""
SAMPLE_BYTES, SAMPLE_OTHERS = 1 << 23, 1 << 16
"""Of a file, and bytes beyond ASCII among them, of which the smaller is enough."""
MULTI_BYTE = ("gb18030", "big5hkscs", "cp949", "cp932", "euc_jp")
SURE_BYTES = 10
"""Beyond ASCII, in a line in one of these. So many are valid UTF-8 by chance in one of some
thousand lines of Chinese; the word 联通 in GBK is. In other encodings hardly any word is."""
ASCII = bytes(range(128))
C1_CONTROL = re.compile("[\x80-\x9f]")
"""In a text that was read in the wrong encoding."""
_MARK = "textmill-no-meaning"


def is_encoding(name: str) -> bool:
    """Whether files can be read in the encoding of this name."""
    try:
        written, codec = ASCII_SIGNS.encode(name), codecs.lookup(name).name
        is_wide = codec.startswith(("utf-16", "utf-32"))
        return codec not in NOT_FOR_FILES and (is_wide or written == ASCII_SIGNS.encode())
    except (LookupError, UnicodeError):
        return False


class Utf8Stream:
    """A stream as UTF-8. `encodings`: those that a line may have, the most likely first."""

    def __init__(self, blocks: Iterator[bytes], encodings: tuple[str, ...], limits: Limits) -> None:
        codecs.register_error(_MARK, lambda error: ("\udcff", cast(UnicodeDecodeError, error).end))
        self.encodings = encodings
        self.ranges: deque[tuple[int, int]] = deque()
        """Places, from and to, in UTF-8, of text that is in another encoding in the file."""
        is_wide = codecs.lookup(encodings[0]).name.startswith(("utf-16", "utf-32"))
        self._blocks = self._wide(blocks) if is_wide else self._lines(blocks, limits.record_bytes)
        self._offset = 0

    def read(self, size: int = -1) -> bytes:
        """The next block, whatever its size. Raises DamagedStream."""
        return next((block for block in self._blocks if block), b"")

    def _wide(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(self.encodings[0])(_MARK)
        for block in blocks:
            yield self._recoded(decoder.decode(block).encode("utf-8", "surrogateescape"))
        yield self._recoded(decoder.decode(b"", True).encode("utf-8", "surrogateescape"))

    def _lines(self, blocks: Iterator[bytes], max_line_bytes: int) -> Iterator[bytes]:
        held: list[bytes] = []
        held_bytes = 0
        for block in blocks:
            whole, end, rest = block.rpartition(b"\n")
            # A line that is too long to be a record may be cut anywhere.
            if end or held_bytes > max_line_bytes:
                yield self._decode(b"".join([*held, whole, end]))
                held, held_bytes = [], 0
            held.append(rest)
            held_bytes += len(rest)
        yield self._decode(b"".join(held))

    def _decode(self, data: bytes) -> bytes:
        if data.isascii() and b"\x1b" not in data and b"~{" not in data:
            return self._kept(data)
        first = self.encodings[0]
        if first == "utf-8" or len(self.encodings) == 1:
            try:
                text = data.decode(first)
                return self._kept(data) if first == "utf-8" else self._recoded(text.encode())
            except UnicodeDecodeError:
                pass
        *lines, last = data.split(b"\n")
        return b"".join([*(self._line(line + b"\n") for line in lines), self._line(last)])

    def _line(self, line: bytes) -> bytes:
        order = self.encodings
        least = SURE_BYTES if order[0] in MULTI_BYTE else 1
        if len(order) > 1 and len(line.translate(None, ASCII)) >= least:
            order = ("utf-8", *order)
        for name in order:
            try:
                text = line.decode(name)
            except UnicodeDecodeError:
                continue
            is_same = name == "utf-8" or text == line.decode("ascii", "replace")
            return self._kept(line) if is_same else self._recoded(text.encode())
        if order[0] == "utf-8":
            return self._kept(line)
        return self._kept(line.decode(order[0], _MARK).encode("utf-8", "surrogateescape"))

    def _kept(self, data: bytes) -> bytes:
        self._offset += len(data)
        return data

    def _recoded(self, data: bytes) -> bytes:
        begin, self._offset = self._offset, self._offset + len(data)
        if self.ranges and self.ranges[-1][1] == begin:
            begin = self.ranges.pop()[0]
        self.ranges.append((begin, self._offset))
        return data


def as_utf8(
    stream: BinaryIO, compression: str, encoding: str, limits: Limits
) -> tuple[BinaryIO, Utf8Stream | None]:
    """The stream where it is read as it is, and one in UTF-8 where it is not."""
    stream, head = peek(stream)
    try:
        head = (
            next(read_blocks(io.BytesIO(head), compression, limits), b"") if compression else head
        )
    except DamagedStream:
        return stream, None
    wide = next(((mark, name) for mark, name in WIDE_MARKS if head.startswith(mark)), None)
    if encoding == "utf-8" and wide is None:
        return stream, None
    blocks = read_blocks(stream, compression, limits)
    if wide:
        return stream, Utf8Stream(_without(wide[0], blocks), (wide[1],), limits)
    if encoding != "auto":
        name = encoding + WITHOUT_MARK if encoding in ("utf-16", "utf-32") else encoding
        return stream, Utf8Stream(blocks, (name,), limits)
    sample, damage = _sample(blocks)
    return stream, Utf8Stream(_again(sample, blocks, damage), _find(b"".join(sample)), limits)


def as_found(items: Iterator[Item], stream: Utf8Stream) -> Iterator[Item]:
    """The items of a file that is read as UTF-8 and is not: which of them are in another encoding,
    and what no byte of UTF-8 stands for."""
    held: Record | None = None
    for item in items:
        if held is not None:
            yield _settled(held, item.byte_offset if isinstance(item, Record) else None, stream)
            held = None
        if isinstance(item, Record):
            held = item
        else:
            yield _renamed(item, stream) if isinstance(item, Fault) else item
    if held is not None:
        yield _settled(held, None, stream)


def _settled(record: Record, end: int | None, stream: Utf8Stream) -> Record:
    """The record, with its repair where text from its place on, up to `end`, was recoded."""
    begin, ranges = record.byte_offset or 0, stream.ranges
    while ranges and ranges[0][1] <= begin:
        ranges.popleft()
    if ranges and (end is None or ranges[0][0] < end):
        record.repaired = (*record.repaired, "RECODED")
    return record


def _renamed(fault: Fault, stream: Utf8Stream) -> Fault:
    # Where the text was damaged in UTF-8 says nothing of the bytes of the file.
    known = fault.stopped_at if fault.error.startswith("damaged file") else None
    error = fault.error
    if error.startswith("invalid UTF-8") and stream.encodings[0] != "utf-8":
        error = f"undecodable: bytes without a meaning in {stream.encodings[0]}"
    return replace(fault, error=error, stopped_at=known)


def _without(mark: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    begin = b""
    for block in blocks:
        begin += block
        if len(begin) >= len(mark):
            break
    yield begin.removeprefix(mark)
    yield from blocks


def _sample(blocks: Iterator[bytes]) -> tuple[list[bytes], DamagedStream | None]:
    """The beginning of a file, as much as tells its encoding, and the damage after it."""
    sample: list[bytes] = []
    num_bytes = num_others = 0
    try:
        while num_bytes < SAMPLE_BYTES and num_others < SAMPLE_OTHERS:
            if not (block := next(blocks, b"")):
                break
            sample.append(block)
            num_bytes, num_others = (
                num_bytes + len(block),
                num_others + len(block.translate(None, ASCII)),
            )
    except DamagedStream as error:
        return sample, error
    return sample, None


def _again(
    sample: list[bytes], blocks: Iterator[bytes], damage: DamagedStream | None
) -> Iterator[bytes]:
    yield from sample
    if damage is not None:
        raise damage
    yield from blocks


def _find(sample: bytes) -> tuple[str, ...]:
    """The encodings of a file, by its beginning."""
    if wide := _wide_without_mark(sample):
        return (wide,)
    others = [line for line in sample.split(b"\n") if not line.isascii() or b"\x1b" in line]
    bad = [line for line in others if not _is_utf8(line)]
    if not bad or CONTROL.search(sample):
        return ("utf-8",)
    guess = guess_encoding(b"\n".join(bad))
    if guess is None:
        return ("utf-8",)
    is_most = 2 * sum(map(len, bad)) > sum(map(len, others))
    return (guess, "utf-8") if is_most else ("utf-8", guess)


def guess_encoding(data: bytes) -> str | None:
    """The encoding of bytes by statistics, if it is plausible."""
    from resiliparse.parse.encoding import detect_encoding

    found = detect_encoding(data, html5_compatible=False)
    name = (found or "").lower().replace("-", "_")
    name = SUPERSETS.get(name, "cp1252" if name in ("iso8859_1", "iso_8859_1") else name)
    if not is_encoding(name) or codecs.lookup(name).name in ("utf-8", "ascii"):
        return None
    text = data.decode(name, "replace")
    is_likely = text.count("\ufffd") * 100 < len(text) and not C1_CONTROL.search(text)
    return name if is_likely else None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    # Encodings that shift between character sets are ASCII.
    return b"\x1b" not in line


def _wide_without_mark(sample: bytes) -> str | None:
    """Text in UTF-16 without a mark has NUL in every other byte, if it is mostly ASCII."""
    half = max(1, min(len(sample), 4 * HEAD_BYTES) // 2)
    nulls = [sample[i : 2 * half : 2].count(0) / half for i in (0, 1)]
    if max(nulls) < 0.4 or min(nulls) > 0.05:
        return None
    return "utf-16-be" if nulls[0] > nulls[1] else "utf-16-le"
