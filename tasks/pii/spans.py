"""Finds the bytes of each document that are personal data: candidates, their checks, and the winner
of overlaps.

Overlaps go to the type that is first in `TYPE_NAMES`, then to the candidate whose trigger comes
first, then to the longer one. Found spans may free what they shadowed, so the places around them
are searched again, with the spans overwritten as their replacements will be, until nothing is left;
that makes scrubbing idempotent. Cost: the kernel's, linear in the text; each further round looks at
less than a kilobyte around each span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tasks.definitions import pii_kinds as kinds
from tasks.pii.checks import Checks
from tasks.pii.config import PiiConfig
from tasks.pii.phrases import Row, addresses_in_words, names, private_keys

TAG_MARK, MASK_MARK = ord("<"), ord("*")
TYPE_OF_KIND = np.full(kinds.NUM_KINDS, 255, np.uint8)
for _kind, _type in kinds.TYPE_OF_KIND.items():
    TYPE_OF_KIND[_kind] = _type


@dataclass(frozen=True)
class Spans:
    """Disjoint spans of a buffer of documents, in order. Arrays of equal length."""

    documents: np.ndarray
    """Which document, int64."""
    starts: np.ndarray
    """Byte offset in the buffer, int64."""
    ends: np.ndarray
    kinds: np.ndarray
    """See `tasks.definitions.pii_kinds`, int64."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def types(self) -> np.ndarray:
        """Numbers of the types in `TYPE_NAMES`, uint8."""
        return TYPE_OF_KIND[self.kinds]


FindEntities = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(values, begins) of documents in one buffer -> rows, as `_candidates` gives them."""


def find_all_spans(
    text: np.ndarray,
    begins: np.ndarray,
    config: PiiConfig,
    find_entities: FindEntities | None = None,
) -> Spans:
    """Spans of personal data of documents in one buffer (uint8), document i in [begins[i], begins[i
    + 1]). Searched is their view (`tasks.kernels.text.view`), and offsets are of the text.

    find_entities: what finds data without a form; it reads the view once, before anything is
    masked.
    """
    from tasks.kernels.pii.rows import ROW, places_around, take
    from tasks.kernels.pii.shapes import shape_of, shape_table
    from tasks.kernels.text.view import view_of

    view = view_of(text, begins, signs=True)
    values, begins = view.values, view.begins
    checks = Checks(config.regions, config.ip == "public")
    shapes = np.array([shape_of(*sizes) for sizes in checks.phone_shapes], np.int64)
    table = shape_table(shapes)
    masked_types = [config.action_of(name) == "mask" for name in kinds.TYPE_NAMES]
    marks = np.where(masked_types, MASK_MARK, TAG_MARK).astype(np.uint8)
    windows = np.arange(len(begins) - 1), begins[:-1], begins[1:]
    masked = values
    found = [np.zeros((0, ROW), np.int64)]
    blocks = private_keys(values.data, begins) if "PRIVATE_KEY" in config.types else ()
    keys = np.array(list(blocks), np.int64).reshape(-1, ROW)
    entities = find_entities(values, begins) if find_entities else keys[:0]
    while len(windows[0]):
        candidates = _candidates(masked, begins, windows, config, table)
        phrases = _phrases(masked, begins, windows, config, candidates)
        rows = _joined([keys, entities, candidates, phrases])
        passed = checks.passed(masked, rows)
        if not passed.any():
            break
        if masked is values:
            # A view that differs from the text is a copy already.
            masked = values.copy() if np.may_share_memory(values, text) else values.view()
            masked.flags.writeable = True
        # By type; within one, the order of triggers and lengths stays.
        types = TYPE_OF_KIND[rows[:, 3]]
        if not _are_in_order(types):
            rows, passed = _chosen(rows, passed), passed[passed]
            rows = _in_order(rows, TYPE_OF_KIND[rows[:, 3]])
            types = TYPE_OF_KIND[rows[:, 3]]
        # Overwrites each span that no stronger one has overwritten before.
        rows = _chosen(rows, take(masked, rows, passed, marks[types]))
        rows = _in_order(rows, rows[:, 1])
        found.append(rows)
        # Blocks of keys are found at once: what is masked around one makes no other.
        windows, keys, entities = places_around(rows, begins), keys[:0], keys[:0]
    rows = _joined(found)
    rows = _in_order(rows, rows[:, 1])
    starts, ends = view.original_starts(rows[:, 1]), view.original_ends(rows[:, 2])
    return Spans(rows[:, 0], starts, ends, rows[:, 3])


def find_spans(text: bytes, config: PiiConfig) -> list[tuple[int, int, str]]:
    """Spans of one text: start, end (UTF-8 byte offsets), type; ordered and disjoint."""
    values = np.frombuffer(text, np.uint8)
    spans = find_all_spans(values, np.array([0, len(text)], np.int64), config)
    names = [kinds.TYPE_NAMES[number] for number in spans.types.tolist()]
    return list(zip(spans.starts.tolist(), spans.ends.tolist(), names, strict=True))


# Most rows are in order, of one kind, and taken as they are: then nothing is copied.
def _joined(tables: list[np.ndarray]) -> np.ndarray:
    filled = [table for table in tables if len(table)]
    return filled[0] if len(filled) == 1 else np.concatenate(tables)


def _chosen(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return rows if chosen.all() else rows[chosen]


def _are_in_order(by: np.ndarray) -> bool:
    return bool((by[1:] >= by[:-1]).all())


def _in_order(rows: np.ndarray, by: np.ndarray) -> np.ndarray:
    return rows if _are_in_order(by) else rows[np.argsort(by, kind="stable")]


Windows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Document, first and last byte (int64 each) of places to search."""


def _candidates(
    values: np.ndarray,
    begins: np.ndarray,
    windows: Windows,
    config: PiiConfig,
    phone_shapes: np.ndarray,
) -> np.ndarray:
    """Rows of (document, start, end, kind, value)."""
    from tasks.kernels.pii.groups import GROUP_NUMBERS
    from tasks.kernels.pii.rows import ROW
    from tasks.kernels.pii.spans import MIN_ROOM, find_candidates

    # Always the same array types, read-only and writable alike, so that the kernel is compiled
    # once.
    readonly = values.view()
    readonly.flags.writeable = False
    documents, scan_lo, scan_hi = (np.array(column, np.int64) for column in windows)
    # Room for a row every four bytes. What is not used costs nothing. Large arrays of NumPy lie in
    # huge pages, unlike those that a kernel makes, whose page faults cost more than the search.
    room = np.empty(max(MIN_ROOM, int((scan_hi - scan_lo).sum()) // 4 * ROW), np.int64)
    groups, letters = np.empty(GROUP_NUMBERS, np.int64), np.zeros(128, np.int64)
    ranges = begins[documents], begins[documents + 1], scan_lo, scan_hi
    found = find_candidates(
        readonly, *ranges, config.wanted_kinds, phone_shapes, room, groups, letters
    )
    rows = found.reshape(-1, ROW)
    rows[:, 0] = documents[rows[:, 0]]
    return rows


def _phrases(
    values: np.ndarray,
    begins: np.ndarray,
    windows: Windows,
    config: PiiConfig,
    candidates: np.ndarray,
) -> np.ndarray:
    """Rows of the two options that no byte triggers."""
    from tasks.kernels.pii.rows import ROW

    words, persons = config.addresses_in_words and "EMAIL" in config.types, "NAME" in config.types
    if not words and not persons:
        return np.zeros((0, ROW), np.int64)
    text = values.tobytes()
    emails = candidates[candidates[:, 3] == kinds.EMAIL, :3]

    def search() -> Iterator[Row]:
        for document, *scan in zip(*(column.tolist() for column in windows), strict=True):
            low, high = begins[document : document + 2].tolist()
            place = (document, low, high, scan[0], scan[1])
            if words:
                yield from addresses_in_words(text, *place)
            if persons:
                first, last = np.searchsorted(emails[:, 1], scan)
                yield from names(text, *place, emails[first:last, 1:].tolist())

    return np.array(list(search()), np.int64).reshape(-1, ROW)
