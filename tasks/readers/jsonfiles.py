"""Reads JSON files: lines, arrays of records, and records over several lines, whichever the file
begins with.

The name does not tell them apart, so the beginning of the file does. JSON lines take the fast way
of tasks.readers.jsonlines; everything else is read value by value (tasks.readers.jsonvalues). A
file without a record is one fault that says what it holds: an array of numbers, an object around an
array, many lines that are not JSON. Left out: arrays within an object, as in `{"data": [...]}`;
which of its members are records is not ours to guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import orjson

from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.items import Columns, Fault, Item, Record, damaged, find_column, json_type
from tasks.readers.jsonlines import may_be_rounded, read_lines, read_odd_line
from tasks.readers.jsonvalues import BOM, Value, Values, opens_values
from tasks.readers.recordlimits import Limits

BEGINNING_BYTES = 1 << 16
MAX_BEGINNING_BYTES = 1 << 21
"""Where only white space follows the first line."""
MAX_FIRST_FAULTS = 100
"""Lines without a record at the beginning of a file count one by one, up to so many; more are one
fault."""


def read_json(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at the byte offset of their line, or of the object where the file is not one of
    lines."""
    blocks = read_blocks(stream, compression, limits)
    start, is_all, damage = b"", False, None
    try:
        while not (is_all or _is_enough(start)):
            block = next(blocks, b"")
            start, is_all = start + block, not block
    except DamagedStream as error:
        is_all, damage = True, error
    again = _again(start, blocks, damage)
    if opens_values(start, is_all):
        return _as_one_without_records(
            _read_values(again, start.startswith(BOM), limits), columns, "value"
        )
    return _as_one_without_records(read_lines(again, limits), columns, "line")


def _is_enough(start: bytes) -> bool:
    """Whether the beginning of a file shows what follows its first line, or that the line is
    long."""
    if len(start) > MAX_BEGINNING_BYTES:
        return True
    _, found, rest = start.removeprefix(BOM).lstrip().partition(b"\n")
    return len(start) >= BEGINNING_BYTES and (not found or bool(rest.strip()))


def _again(start: bytes, blocks: Iterator[bytes], damage: DamagedStream | None) -> Iterator[bytes]:
    if start:
        yield start
    if damage is not None:
        raise damage
    yield from blocks


def _as_one_without_records(items: Iterator[Item], columns: Columns, unit: str) -> Iterator[Item]:
    """The items of a file, with one fault in place of many before the first record, or of all where
    there is none."""
    faults: list[Fault] = []
    count, item = 0, None
    for item in items:
        if not isinstance(item, Fault) or item.ends:
            break
        faults, count, item = (
            [*faults, item] if count < MAX_FIRST_FAULTS else faults,
            count + 1,
            None,
        )
    has_record = isinstance(item, Record)
    if count > MAX_FIRST_FAULTS or (count and unit == "value" and not has_record):
        first, place = faults[0], " before the first record" if has_record else ""
        what = (
            f"no records: {count:,} {unit}(s){place}, none of them a JSON object (the first:"
            f" {first.error})"
        )
        yield Fault(first.line, first.byte_offset, what)
    elif unit == "value" and not count and item is None:
        yield Fault(1, 0, "no records: an empty JSON array")
    else:
        yield from faults
    if isinstance(item, Record) and not count and not _has_text(item, columns):
        second = next(items, None)
        yield item if second is not None else _describe(item, columns)
        item = second
    if item is not None:
        yield item
    yield from items


def _has_text(record: Record, columns: Columns) -> bool:
    """Whether a record has a column of text, or of lists that are its own."""
    return any(find_column(record.values, name) for name in (columns.text, *columns.lists))


def _describe(record: Record, columns: Columns) -> Item:
    """The only object of a file, or what it is where it holds records instead of being one."""
    lists = [
        value
        for value in record.values.values()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    if not lists:
        return record
    return Fault(
        record.line,
        record.byte_offset,
        f"no records: one JSON object without column {columns.text}, in which {len(lists)} array(s)"
        f" hold {sum(map(len, lists)):,} objects; write those as an array or as lines, e.g. with jq"
        " -c '.[] | arrays | .[]'",
    )


def _read_values(blocks: Iterator[bytes], has_bom: bool, limits: Limits) -> Iterator[Item]:
    values, in_damage, cut_off = Values(blocks, limits.record_bytes), False, None
    for value in values:
        if value.is_long and (value.is_whole or values.damage is None):
            yield Fault(
                value.line, value.offset, limits.over("a JSON value"), ends=not value.is_whole
            )
            in_damage = True
            continue
        item = _read_value(value)
        is_broken = not value.is_whole or (
            isinstance(item, Fault) and item.error.startswith("broken JSON")
        )
        if is_broken and in_damage and value.data[:1] not in (b"{", b"["):
            continue  # what a broken record leaves behind
        in_damage = is_broken
        if is_broken and not values.step_back(value) and not value.is_whole:
            cut_off = value
            break
        if has_bom and isinstance(item, Record):
            item.repaired, has_bom = ("BOM", *item.repaired), False
        yield item
    line, offset = (cut_off.line, cut_off.offset) if cut_off else values.position
    if values.damage is not None:
        yield Fault(line, offset, damaged(values.damage), True, values.damage.stopped_at)
    elif cut_off or (values.in_array and not in_damage):
        what = "it ends within a JSON value" if cut_off else "a JSON array has no end"
        yield Fault(line, offset, damaged(what), True, 0, 0)  # nothing behind it was read over


def _read_value(value: Value) -> Record | Fault:
    try:
        parsed = orjson.loads(value.data)
    except orjson.JSONDecodeError:
        return read_odd_line(value.data, value.line, value.offset)
    if type(parsed) is not dict:
        return Fault(
            value.line,
            value.offset,
            f"wrong type: the record is {json_type(parsed)}, not an object",
        )
    if may_be_rounded(parsed):
        return read_odd_line(value.data, value.line, value.offset)
    return Record(value.offset, value.line, value.offset, parsed)
