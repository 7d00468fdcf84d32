"""Which records does a file hold? Every format as one stream of records and faults, never a crash or a silence.

A file is one stream of items, an archive one per member. Everything that is no record becomes a `Fault` with file
position and error: one bad record costs that record, and a file that is damaged in the middle keeps what stands before. Memory
is one block plus the longest record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import BinaryIO

from tasks.readers.archives import read_members
from tasks.readers.arrowtables import read_arrow, read_parquet
from tasks.readers.delimited import DELIMITED, read_delimited
from tasks.readers.formats import ARCHIVES, BY_NAME, Layout, format_of
from tasks.readers.items import Columns, Dropped, Fault, Item, Reader, Record, Skipped, json_type
from tasks.readers.jsonlines import read_json_lines
from tasks.readers.warc import read_warc
from tasks.readers.wholefiles import read_html, read_text

READERS: Mapping[str, Reader] = {
    "jsonl": read_json_lines,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "text": read_text,
    "html": read_html,
    "warc": read_warc,
}

__all__ = ["Columns", "Dropped", "Fault", "Item", "Layout", "Record", "Skipped", "json_type", "read_streams"]


def read_streams(
    file: BinaryIO, relative: str, columns: Columns, layout: Layout = BY_NAME
) -> Iterator[tuple[str, Iterator[Item]]]:
    """(name, items) of a file that is open, or of each member where it is an archive. Items must be taken before the next
    stream is."""
    form = format_of(relative, layout.format)
    assert form is not None, f"{relative} was listed but has no reader"
    if form.kind not in ARCHIVES:
        yield relative, _reader(form.kind, layout)(file, form.compression, relative, columns)
        return
    for member in read_members(file, form.kind, form.compression):
        if isinstance(member, (Fault, Skipped)):
            yield relative, iter((member,))
        else:
            name, member_form, member_stream = member
            inner = f"{relative}!{name}"
            yield inner, _reader(member_form.kind, layout)(member_stream, member_form.compression, inner, columns)


def _reader(kind: str, layout: Layout) -> Reader:
    if kind not in DELIMITED:
        return READERS[kind]
    usual = DELIMITED[kind]
    quote = usual.quote if layout.quote is None else layout.quote
    return partial(read_delimited, layout=Layout(kind, layout.delimiter or usual.delimiter, quote))
