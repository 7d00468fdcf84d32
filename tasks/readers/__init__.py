"""Reads the records of a file, in every format as one stream of records and faults.

A file is one stream of items, an archive one per member, also of archives within it. What cannot be
read becomes a `Fault` with file position and error: a bad record costs that record, and damage in
the middle of a file keeps what is before it. The name of a file says its format (formats.py), its
first bytes correct the name (contents.py), and text in other encodings becomes UTF-8
(encodings.py); then there is one module per format. Memory is one block plus the longest record,
which `Limits` bounds.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from typing import BinaryIO, NamedTuple, TypeVar, cast

from tasks.readers.archives import Budget, Member, read_members
from tasks.readers.contents import recognise
from tasks.readers.delimited import DELIMITED, read_delimited
from tasks.readers.dumps.mailboxes import read_mailbox
from tasks.readers.dumps.mediawiki import read_mediawiki
from tasks.readers.encodings import as_found, as_utf8
from tasks.readers.formats import ARCHIVES, BY_NAME, DOCUMENTS, Format, Layout, format_of
from tasks.readers.items import Columns, Dropped, Fault, Item, Reader, Record, Skipped, json_type
from tasks.readers.jsonfiles import read_json
from tasks.readers.recordlimits import USUAL, Limits
from tasks.readers.samples import Member as SampleMember
from tasks.readers.samples import join_samples
from tasks.readers.tables.arrowtables import read_arrow, read_parquet
from tasks.readers.tables.mds import read_mds
from tasks.readers.tables.queries import query_parquet, read_sqlite
from tasks.readers.warc import read_warc
from tasks.readers.wholefiles import read_document, read_pieces_of_text, read_text

T = TypeVar("T")
PARSER_TROUBLE = (RecursionError, MemoryError, ArithmeticError, LookupError)
READERS: Mapping[str, Reader] = {
    "jsonl": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "text": read_text,
    "warc": read_warc,
    "mailbox": read_mailbox,
    "mediawiki": read_mediawiki,
    "mds": read_mds,
}
MAX_DEPTH = 3
"""Archives around a member that is read."""
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
    yield from _streams(file, form, relative, _Rules(columns, layout, limits))


class _Rules(NamedTuple):
    """How the files of a source are read."""

    columns: Columns
    layout: Layout
    limits: Limits


def _streams(
    stream: BinaryIO,
    form: Format,
    name: str,
    rules: _Rules,
    depth: int = 0,
    budget: Budget | None = None,
) -> Iterator[tuple[str, Iterator[Item]]]:
    """depth: archives around the stream; budget: what these may expand to."""
    known = recognise(stream, form)
    if isinstance(known, Fault) or known[1].kind not in ARCHIVES:
        yield name, _items(known, name, rules)
        return
    stream, form = known
    if depth > MAX_DEPTH:
        error = f"over the limit: an archive in more than {MAX_DEPTH} archives; unpack one of them"
        yield name, iter((Fault(1, None, error, ends=True),))
        return
    is_sample = rules.layout.archive_unit == "sample"
    layout = BY_NAME if is_sample else rules.layout
    members = read_members(stream, *form, rules.limits, budget, layout)
    if budget is None:
        budget = Budget(stream.seek(0, io.SEEK_END))
        stream.seek(0)
    if is_sample:
        read = _read_samples(_guarded(members, form.kind), rules)
        yield from join_samples(read, name, rules.columns.id, rules.limits)
        return
    for member in _guarded(members, form.kind):
        if isinstance(member, (Fault, Skipped)):
            yield name, iter((member,))
        else:
            within, member_form, content = member
            inner = f"{name}!{within}"
            yield from _streams(content, member_form, inner, rules, depth + 1, budget)


def _read_samples(members: Iterator[Member], rules: _Rules) -> Iterator[SampleMember]:
    rules = rules._replace(columns=rules.columns._replace(id=None))
    last = ""
    for member in members:
        if isinstance(member, (Fault, Skipped)):
            # Where it is, is not known; it is counted with the sample before.
            yield SampleMember(last, iter((member,)))
            continue
        last, form, content = member
        known = recognise(content, form)
        if not isinstance(known, Fault) and known[1].kind in ARCHIVES:
            yield SampleMember(last, iter((Skipped("archive_member"),)))
        else:
            yield SampleMember(last, _items(known, last, rules))


def _items(known: tuple[BinaryIO, Format] | Fault, name: str, rules: _Rules) -> Iterator[Item]:
    if isinstance(known, Fault):
        return iter((known,))
    stream, form = known
    read, text = _reader(form.kind, rules.layout), None
    if form.kind in TEXTUAL:
        stream, text = as_utf8(stream, form.compression, rules.layout.encoding, rules.limits)
    if text is None:
        items = read(stream, form.compression, name, rules.columns, rules.limits)
        return _guarded(items, form.kind)
    items = read(cast(BinaryIO, text), "", name, rules.columns, rules.limits)
    return as_found(_guarded(items, form.kind), text)


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
    if kind == "sqlite":
        return partial(read_sqlite, query=layout.query)
    if kind == "parquet" and layout.query is not None:
        return partial(query_parquet, query=layout.query)
    if kind == "text" and layout.unit != "file":
        return partial(read_pieces_of_text, unit=layout.unit)
    if kind in DOCUMENTS:
        encoding = None if layout.encoding in ("utf-8", "auto") else layout.encoding
        return partial(read_document, kind=kind, encoding=encoding)
    if kind not in DELIMITED:
        return READERS[kind]
    usual = DELIMITED[kind]
    quote = usual.quote if layout.quote is None else layout.quote
    return partial(read_delimited, layout=Layout(kind, layout.delimiter or usual.delimiter, quote))
