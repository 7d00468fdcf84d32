"""Joins the members of an archive that are one sample, as in WebDataset.

Members whose names are the same up to the first dot of the last step, and which stand one after
another, are one record: a JSON object gives columns, a text or page the text. Other members are
skipped as `archive_member`. A record whose members give no id has the names of archive and sample
as its id. A sample is a fault if a member cannot be read, if members give different values of one
column, or if they are larger than a record may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from tasks.readers.items import Dropped, Fault, Item, Record, Skipped
from tasks.readers.pages import Encoded
from tasks.readers.recordlimits import Limits

VALUE_BYTES = 8
"""Least size of a value, such as a number or an element of a list."""


class Member(NamedTuple):
    """A member and what is read from it; without items that were read, `name` is that of the
    archive."""

    name: str
    items: Iterator[Item]


def join_samples(
    members: Iterator[Member], archive: str, id_column: str | None, limits: Limits
) -> Iterator[tuple[str, Iterator[Item]]]:
    """(name of the sample, its items) in the order of the archive. Members come without ids that
    were made of their names."""
    for key, group in groupby(members, lambda member: sample_of(member.name)):
        name = f"{archive}!{key}"
        yield name, _joined(_Sample(key, limits), group, {id_column: name} if id_column else {})


def sample_of(name: str) -> str:
    """`folder/0001` of `folder/0001.meta.json`."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _joined(sample: _Sample, members: Iterator[Member], own: dict[str, Any]) -> Iterator[Item]:
    lost: Fault | Dropped | None = None
    is_record = False
    for name, items in members:
        num_records = 0
        for item in items:
            if isinstance(item, Skipped):
                yield item
                continue
            if isinstance(item, Record):
                num_records += 1
                is_record = True
                if num_records > 1:
                    trouble: Fault | Dropped | None = _fault("a member of several records")
                else:
                    trouble = None if lost else sample.add(name, item)
            else:
                trouble = item
            # What ends an archive must be known even where the sample is lost already.
            if lost is None or (isinstance(trouble, Fault) and trouble.ends):
                lost = trouble or lost
    if lost is not None:
        yield lost
    elif is_record:
        yield Record(0, 1, 0, own | sample.values, tuple(sample.repaired))


class _Sample:
    """The columns of a sample, as far as its members were read."""

    def __init__(self, key: str, limits: Limits) -> None:
        self._key, self._limits = key, limits
        self._left_bytes = limits.record_bytes
        self._givers: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.repaired: list[str] = []

    def add(self, name: str, record: Record) -> Fault | None:
        """Take in the record of a member, or say why that cannot be."""
        ending = name.removeprefix(self._key)
        given = {column: v for column, v in record.values.items() if v is not None}
        self._left_bytes -= _num_bytes(given)
        if self._left_bytes < 0:
            return Fault(1, None, self._limits.over("a sample"))
        for column, value in given.items():
            giver = self._givers.setdefault(column, ending)
            if self.values.setdefault(column, value) != value:
                return _fault(f"members {giver!r} and {ending!r} differ in a column")
        self.repaired.extend(record.repaired)
        return None


def _fault(why: str) -> Fault:
    return Fault(1, None, f"unreadable sample: {why}")


def _num_bytes(values: dict[str, Any]) -> int:
    """About the bytes that texts, numbers and elements of lists take."""
    total, waiting = 0, [values]
    while waiting:
        value: Any = waiting.pop()
        if isinstance(value, dict):
            waiting.extend((*value, *value.values()))
        elif isinstance(value, list):
            waiting.extend(value)
        else:
            data = value.data if isinstance(value, Encoded) else value
            total += VALUE_BYTES + (len(data) if isinstance(data, (str, bytes)) else 0)
    return total
