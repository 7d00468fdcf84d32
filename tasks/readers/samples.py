"""Joins the members of an archive that are one sample, as in WebDataset.

Members whose names are the same up to the first dot of the last step, and which stand one after
another, are one record: a JSON object gives columns, a text or page the text. Other members are
skipped as `archive_member`. A sample of which a member cannot be read is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from tasks.readers.items import Dropped, Fault, Item, Record, Skipped


class Member(NamedTuple):
    """A member as it was read; without items that were read, `name` is that of the archive."""

    name: str
    items: list[Item]


def join_samples(members: Iterator[Member]) -> Iterator[tuple[str, list[Item]]]:
    """(name of the sample, its items) in the order of the archive."""
    for key, group in groupby(members, lambda member: sample_of(member.name)):
        members_of_it = list(group)
        items = [item for member in members_of_it for item in member.items]
        records = [item for item in items if isinstance(item, Record)]
        others = [item for item in items if not isinstance(item, Record)]
        lost: Item | None = next((o for o in others if isinstance(o, (Fault, Dropped))), None)
        if any(sum(isinstance(i, Record) for i in m.items) > 1 for m in members_of_it):
            lost = Fault(1, None, "unreadable sample: a member of several records")
        skipped: list[Item] = [item for item in others if isinstance(item, Skipped)]
        if lost is not None:
            yield key, [lost, *skipped]
        elif records:
            values = {k: v for record in records for k, v in record.values.items()}
            repaired = tuple(r for record in records for r in record.repaired)
            yield key, [Record(0, 1, 0, values, repaired), *skipped]
        else:
            yield key, skipped


def sample_of(name: str) -> str:
    """`folder/0001` of `folder/0001.meta.json`."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]
