"""Reads the records of a file, in every format as one stream of records and faults.

A file is one stream of items, an archive one per member. What cannot be read becomes a `Fault` with
file position and error: a bad record costs that record, and damage in the middle of a file keeps
what is before it. The name of a file says its format (formats.py), its first bytes correct the name
(contents.py); then there is one module per format. Memory is one block plus the longest record,
which `Limits` bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import BinaryIO, TypeVar, cast

from tasks.readers.archives import read_members
from tasks.readers.contents import recognise
from tasks.readers.delimited import DELIMITED, read_delimited
from tasks.readers.encodings import as_found, as_utf8
from tasks.readers.formats import ARCHIVES, BY_NAME, Format, Layout, format_of
from tasks.readers.items import Columns, Dropped, Fault, Item, Reader, Record, Skipped, json_type
from tasks.readers.jsonfiles import read_json
from tasks.readers.recordlimits import USUAL, Limits
from tasks.readers.tables.arrowtables import read_arrow, read_parquet
from tasks.readers.warc import read_warc
from tasks.readers.wholefiles import read_html, read_pieces_of_text, read_text

T = TypeVar("T")
PARSER_TROUBLE = (RecursionError, MemoryError, ArithmeticError, LookupError)
READERS: Mapping[str, Reader] = {
    "jsonl": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "text": read_text,
    "html": read_html,
    "warc": read_warc,
}
TEXTUAL = ("jsonl", "csv", "tsv", "text")
"""Formats of text without a word of its encoding."""

__all__ = [
    "Columns",
    "Dropped",
    "Fault",
    "Item",
    "Layout",
    "Record",
    "Skipped",
    "json_type",
    "read_streams",
]


def read_streams(
    file: BinaryIO,
    relative: str,
    columns: Columns,
    layout: Layout = BY_NAME,
    limits: Limits = USUAL,
) -> Iterator[tuple[str, Iterator[Item]]]:
    """(name, items) of an open file, or of each member of an archive.

    Items must be taken before the next stream is.
    """
    form = format_of(relative, layout.format)
    assert form is not None, f"{relative} was listed but has no reader"
    known = recognise(file, form)
    if isinstance(known, Fault) or known[1].kind not in ARCHIVES:
        yield relative, _items(known, relative, columns, layout, limits)
        return
    for member in _guarded(read_members(known[0], *known[1], limits), known[1].kind):
        if isinstance(member, (Fault, Skipped)):
            yield relative, iter((member,))
        else:
            name, member_form, member_stream = member
            inner, found = f"{relative}!{name}", recognise(member_stream, member_form)
            yield inner, _items(found, inner, columns, layout, limits)


def _items(
    known: tuple[BinaryIO, Format] | Fault,
    name: str,
    columns: Columns,
    layout: Layout,
    limits: Limits,
) -> Iterator[Item]:
    if isinstance(known, Fault):
        return iter((known,))
    stream, form = known
    read, compression = _reader(form.kind, layout), form.compression
    if form.kind not in TEXTUAL:
        return _guarded(read(stream, compression, name, columns, limits), form.kind)
    stream, text = as_utf8(stream, compression, layout.encoding, limits)
    if text is None:
        return _guarded(read(stream, compression, name, columns, limits), form.kind)
    read_text = read(cast(BinaryIO, text), "", name, columns, limits)
    return as_found(_guarded(read_text, form.kind), text)


def _guarded(items: Iterator[T], kind: str) -> Iterator[T | Fault]:
    """The items of a file or a member; where its parser fails, the rest is lost.

    A parser may fail on hostile input in more ways than it says. These few kinds come from the
    input; any other is a fault of ours.
    """
    try:
        yield from items
    except PARSER_TROUBLE as error:
        failed = f"unreadable {kind}: its reader failed ({type(error).__name__})"
        yield Fault(1, None, failed, ends=True)


def _reader(kind: str, layout: Layout) -> Reader:
    if kind == "text" and layout.unit != "file":
        return partial(read_pieces_of_text, unit=layout.unit)
    if kind not in DELIMITED:
        return READERS[kind]
    usual = DELIMITED[kind]
    quote = usual.quote if layout.quote is None else layout.quote
    return partial(read_delimited, layout=Layout(kind, layout.delimiter or usual.delimiter, quote))
