"""The same records in a file of every format, and what is read of them."""

from __future__ import annotations

from tasks.readers import Fault, Item, Record
from tests.support.data.input_files import RECORDS, every_format

FILES = every_format()
WANTED = [(r["id"], r["text"], r["url"]) for r in RECORDS]


def found(items: list[Item]) -> list[tuple[str, str, str]]:
    return [
        (i.values.get("id"), i.values.get("text"), i.values.get("url"))
        for i in items
        if isinstance(i, Record)
    ]


def faults(items: list[Item]) -> list[Fault]:
    return [item for item in items if isinstance(item, Fault)]
