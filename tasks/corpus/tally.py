"""Counts documents and bytes by label, in small tables for metrics that stay bounded whatever the
labels are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from tasks.corpus.documentset import sum_counters

MAX_LABELS = 100
MAX_LABEL_CHARS = 80
OTHER = "(other)"

Tally = dict[str, dict[str, int]]
"""{label: {documents, bytes}}."""


def count_document(tally: Tally, label: str, num_bytes: int) -> None:
    """Add one document."""
    entry = tally.setdefault(label, {"documents": 0, "bytes": 0})
    entry["documents"] += 1
    entry["bytes"] += num_bytes


def add_to_tally(tally: Tally, labels: Sequence[str | None], sizes: Sequence[int]) -> None:
    """Add many documents, none for None; runs of one label, which are the rule in a file, at the
    price of one."""
    begin = 0
    for label, run in itertools.groupby(labels):
        end = begin + sum(1 for _ in run)
        if label is not None:
            entry = tally.setdefault(label, {"documents": 0, "bytes": 0})
            entry["documents"] += end - begin
            entry["bytes"] += sum(sizes[begin:end])
        begin = end


def tally_documents(labels: Iterable[str], sizes: Iterable[int]) -> Tally:
    """Documents and bytes of each label."""
    tally: Tally = {}
    for label, size in zip(labels, sizes, strict=True):
        count_document(tally, label, size)
    return tally


def tally_columns(labels: pa.ChunkedArray | pa.Array, sizes: pa.ChunkedArray | pa.Array) -> Tally:
    """The same for Arrow columns, without a Python object per document."""
    grouped = pa.table({"label": labels, "bytes": sizes}).group_by("label", use_threads=False)
    table = grouped.aggregate([("bytes", "count"), ("bytes", "sum")]).sort_by("label")
    rows = zip(
        *(table[name].to_pylist() for name in ("label", "bytes_count", "bytes_sum")), strict=True
    )
    return {
        label: {"documents": documents, "bytes": num_bytes} for label, documents, num_bytes in rows
    }


def largest(tally: Mapping[str, Mapping[str, int]]) -> Tally:
    """The largest entries by bytes; the rest, and labels that are not names (long, or with an
    address), as `(other)`."""
    shown: Tally = {}
    other: list[Mapping[str, int]] = []
    for label, entry in sorted(tally.items(), key=lambda item: (-item[1]["bytes"], item[0])):
        # `npm:@scope/name` is a name, `someone@host` is not.
        address = any(
            "@" in word[1:] and word[word.index("@", 1) - 1].isalnum() for word in label.split()
        )
        if (
            len(shown) < MAX_LABELS
            and len(label) <= MAX_LABEL_CHARS
            and label.isprintable()
            and not address
        ):
            shown[label] = dict(entry)
        else:
            other.append(entry)
    return shown | ({OTHER: sum_counters(other)} if other else {})
