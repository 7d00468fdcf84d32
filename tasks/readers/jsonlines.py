"""JSON lines: one record per line that is not blank; one bad line costs that line.

JSON is parsed by orjson. What it refuses is parsed again by the standard library, which tells three
things apart: broken JSON (a fault), NaN and infinities (not JSON, but common in dumps of data
frames; they become null), and lone surrogates (become U+FFFD, and the record says so). Integers
beyond 64 bits, which orjson rounds, keep their digits the same way, wherever in the record they
are. Memory is one block plus the longest line. Records over several lines: tasks.readers.jsonfiles.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import orjson

from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.items import MAX_NESTING, TOO_DEEP, Fault, Item, Record, damaged, json_type
from tasks.readers.recordlimits import Limits

BOM = b"\xef\xbb\xbf"
LONE_SURROGATES = re.compile("[\ud800-\udfff]")
BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{\]}]', re.DOTALL)
"""Texts, which may hold brackets, and brackets."""


class LongLine(NamedTuple):
    """A line over the limit, of which nothing was kept."""

    num_bytes: int
    num_marks: int
    """How often the sign that was asked for occurs in it."""


def read_lines(blocks: Iterator[bytes], limits: Limits) -> Iterator[Item]:
    """Records at the byte offset of their line."""
    loads, number, offset = orjson.loads, 1, 0
    # One loop over the lines of a block: a generator for each line would cost as much as parsing a
    # short one.
    for lines in line_blocks(blocks, limits.record_bytes):
        if isinstance(lines, DamagedStream):
            yield Fault(number, offset, damaged(lines), True, lines.stopped_at)
            return
        if isinstance(lines, LongLine):
            yield Fault(number, offset, limits.over("a line"))
            number, offset = number + 1, offset + lines.num_bytes + 1
            continue
        for line in lines:
            try:
                values = loads(line)
            except orjson.JSONDecodeError:
                if line.removeprefix(BOM).strip():
                    yield read_odd_line(line, number, offset)
            else:
                if type(values) is not dict:
                    yield Fault(
                        number,
                        offset,
                        f"wrong type: the record is {json_type(values)}, not an object",
                    )
                else:
                    for value in values.values():
                        kind = type(value)
                        if kind is str or kind is int:
                            continue
                        if (kind is float and abs(value) >= 2**63) or (
                            (kind is dict or kind is list) and may_be_rounded(value)
                        ):
                            yield read_odd_line(line, number, offset)
                            break
                    else:
                        yield Record(offset, number, offset, values)
            number, offset = number + 1, offset + len(line) + 1


def line_blocks(
    blocks: Iterator[bytes], max_line_bytes: int, mark: bytes = b"\0"
) -> Iterator[list[bytes] | LongLine | DamagedStream]:
    """Lists of whole lines without their ends, and longer lines between them; at last the damage,
    where the stream has some.

    mark: a sign that is counted in longer lines.
    """
    held: list[bytes] = []  # the beginning of a line that goes on in the next block
    held_bytes = num_marks = 0
    try:
        for block in blocks:
            lines = block.split(b"\n")
            held.append(lines[0])
            held_bytes += len(lines[0])
            if held_bytes > max_line_bytes:
                num_marks += sum(part.count(mark) for part in held)
                held = []
            if len(lines) > 1:
                last = lines.pop()
                if held_bytes > max_line_bytes:
                    yield LongLine(held_bytes, num_marks)
                    del lines[0]
                else:
                    lines[0] = b"".join(held)
                held, held_bytes, num_marks = [last], len(last), 0
                if len(block) <= max_line_bytes:
                    yield lines
                else:
                    yield from _without_long(lines, max_line_bytes, mark)
    except DamagedStream as error:
        yield error
        return
    if held_bytes > max_line_bytes:
        yield LongLine(held_bytes, num_marks + sum(part.count(mark) for part in held))
    elif any(held):
        yield [b"".join(held)]


def _without_long(
    lines: list[bytes], max_line_bytes: int, mark: bytes
) -> Iterator[list[bytes] | LongLine]:
    """Lines that are within the limit in lists, and the others between them."""
    for is_long, some in groupby(lines, lambda line: len(line) > max_line_bytes):
        if is_long:
            yield from (LongLine(len(line), line.count(mark)) for line in some)
        else:
            yield list(some)


def split_lines(
    stream: BinaryIO, compression: str, limits: Limits, mark: bytes
) -> Iterator[tuple[int, int, bytes | LongLine | DamagedStream]]:
    """(line number from 1, byte offset, line); the last one is the damage, where a stream has
    some."""
    number, offset = 1, 0
    for lines in line_blocks(read_blocks(stream, compression, limits), limits.record_bytes, mark):
        if isinstance(lines, DamagedStream):
            yield number, offset, lines
            return
        if isinstance(lines, LongLine):
            yield number, offset, lines
            number, offset = number + 1, offset + lines.num_bytes + 1
            continue
        for line in lines:
            yield number, offset, line
            number, offset = number + 1, offset + len(line) + 1


def parse_json(line: bytes) -> tuple[Any, bool]:
    """The value of a JSON text, and whether lone surrogates were replaced in it. Raises
    ValueError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _repaired(json.loads(line.decode("utf-8")))
    return json.loads(line) if may_be_rounded([value]) else value, False


def may_be_rounded(value: Any) -> bool:
    """Whether a list or object holds a number so large that it may have been an integer beyond 64
    bits, which orjson rounds."""
    held = [value]
    for one in held:  # grows while it is walked
        for member in one.values() if type(one) is dict else one:
            kind = type(member)
            if kind is float:
                if abs(member) >= 2**63:
                    return True
            elif kind is dict or kind is list:
                held.append(member)
    return False


def read_odd_line(line: bytes, number: int, offset: int) -> Record | Fault:
    """The slow and thorough way, for what orjson refuses or rounds."""
    repaired: tuple[str, ...] = ()
    if line.startswith(BOM):
        line, repaired = line.removeprefix(BOM), ("BOM",)
    if _nesting(line) > MAX_NESTING:
        return Fault(number, offset, TOO_DEEP)
    try:
        values, surrogates = parse_json(line)
    except UnicodeDecodeError as error:
        return Fault(
            number,
            offset,
            f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start} of the line",
        )
    except json.JSONDecodeError as error:
        return Fault(
            number,
            offset,
            f"broken JSON: {error.msg.removesuffix(' starting at')} at character {error.pos}",
        )
    except ValueError:  # of int(), whose time grows with the square of the digits
        most = sys.get_int_max_str_digits()
        return Fault(
            number,
            offset,
            f"over the limit: a whole number of more than {most:,} digits; write it as a text",
        )
    if not isinstance(values, dict):
        return Fault(
            number, offset, f"wrong type: the record is {json_type(values)}, not an object"
        )
    return Record(
        offset, number, offset, values, repaired + (("LONE_SURROGATE",) if surrogates else ())
    )


def _nesting(line: bytes) -> int:
    """How many brackets are open at once, counted as far as there is something to count."""
    if line.count(b"[") + line.count(b"{") <= MAX_NESTING:
        return 0
    deepest = level = 0
    for found in BRACKETS.finditer(line):
        mark = found.group()
        if mark in (b"[", b"{"):
            level += 1
            deepest = max(deepest, level)
        elif mark in (b"]", b"}"):
            level -= 1
    return deepest


def _repaired(value: Any) -> tuple[Any, bool]:
    """A JSON value without NaN, infinities (null) and lone surrogates (U+FFFD), and whether it had
    any of the last."""
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
