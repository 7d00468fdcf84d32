"""Defines what a reader yields: records, and three kinds of items that are not records.

`read` counts records, faults and drops; what is skipped was never meant as a document (a request in
a web archive, a picture in a zip file) and is counted beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from tasks.readers.recordlimits import Limits


@dataclass(slots=True)
class Record:
    """One record, named for ever by its uncompressed byte offset or its row number."""

    position: int
    line: int
    byte_offset: int | None
    values: dict[str, Any]
    repaired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """What could not be read, and where. The error, `kind: details`, never quotes the input."""

    line: int
    byte_offset: int | None
    error: str
    ends: bool = field(default=False, compare=False)
    """What comes after it in the file, or in a member of it, is lost too."""
    stopped_at: int | None = field(default=None, compare=False)
    """Bytes of the file on disk before damage that may cost more than this; None: not known."""
    resumed_at: int | None = field(default=None, compare=False)
    """Bytes on disk before what is read next; None where nothing is."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record that its reader can tell to be no text; `record` has its place and other values."""

    reason: str
    record: Record | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is not a record at all."""

    kind: str


Item = Record | Fault | Dropped | Skipped

MAX_NESTING = 254
"""Lists and objects in each other that a record may hold, itself among them: what orjson writes.
Where the standard library gives up depends on how deep in calls it is called, so a record near that
would be kept by one runner and refused by another."""
TOO_DEEP = f"nested too deeply: more than {MAX_NESTING} levels"


class Columns(NamedTuple):
    """What the source calls the columns that a format without column names fills."""

    text: str
    id: str | None
    url: str | None
    added: str | None
    lists: tuple[str, ...] = ()
    """Columns whose lists of objects are of the record and no records themselves."""

    def values(self, text: Any, **known: str | None) -> dict[str, Any]:
        """{column: value} of what is known, under the names of the source, without nulls."""
        named = {getattr(self, name): value for name, value in known.items()}
        filled = {column: v for column, v in named.items() if column and v is not None}
        return filled | {self.text: text}


def find_column(values: dict[str, Any], column: str) -> tuple[dict[str, Any], str] | None:
    """(the object that holds a column, its name there). `a.b` is member b of column a, where no
    column has the whole name."""
    while column not in values:
        outer, _, column = column.partition(".")
        inner = values.get(outer)
        if not column or type(inner) is not dict:
            return None
        values = inner
    return values, column


Reader = Callable[[BinaryIO, str, str, Columns, Limits], Iterator[Item]]
"""(stream, its compression, name of the file, columns, limits) -> items in file order."""


def json_type(value: Any) -> str:
    """What JSON calls the type of a value."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def damaged(error: object) -> str:
    """What a fault says of a stream that ended early; the same in every reader."""
    return f"damaged file: {error}"
