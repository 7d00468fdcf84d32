"""Merges and applies the edits of each text: cuts, masks and spans of personal data.

Edits are lists of byte ranges in the original text: `cuts` of dedup and of quality (removed),
`spans` of pii (replaced by their `replacement`) and `masks` of quality (replaced by `<TYPE>`). Cuts
win, spans win over masks; `tasks.kernels.text.edits` says how ranges that overlap are merged.
Deterministic, whatever the order of edits. Cost: a sort of the edits and a copy of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.documentset import one_chunk, text_buffers
from tasks.corpus.visible import shows
from tasks.runtime.artifact import ArtifactMismatch

CUTS, SPANS, MASKS = range(3)
"""Classes of edits, the strongest first."""


@dataclass(frozen=True)
class Edits:
    """Edits of all documents of a table, in order of document, start and class."""

    begins: np.ndarray
    """int64[documents + 1]: which rows belong to a document."""
    rows: np.ndarray
    """int64[edits, 4]: start, end, class, replacement."""
    replacements: Sequence[str]


def collect_edits(
    cuts: pa.ChunkedArray,
    spans: pa.ChunkedArray,
    masks: pa.ChunkedArray,
    line_cuts: pa.ChunkedArray | None = None,
) -> Edits:
    """The edits of documents, from columns of list<struct<start, end, …>>; null means no edit.

    Cuts need no more fields, masks have `type`, spans have `type` and `replacement` (null: the type
    in angle brackets).
    """
    names: list[str] = []
    documents, rows = [], []
    columns = [(CUTS, cuts), (SPANS, spans), (MASKS, masks)]
    for kind, column in columns if line_cuts is None else [*columns, (CUTS, line_cuts)]:
        flat = pc.list_flatten(column).combine_chunks()
        documents.append(pc.list_parent_indices(column).to_numpy())
        start, end = (flat.field(name).to_numpy() for name in ("start", "end"))
        chosen = np.full(len(flat), -1, np.int64)
        if kind != CUTS:
            texts = pc.binary_join_element_wise("<", flat.field("type"), ">", "")
            if kind == SPANS:
                texts = pc.coalesce(flat.field("replacement"), texts)
            encoded = texts.dictionary_encode()
            chosen = encoded.indices.to_numpy().astype(np.int64) + len(names)
            names += encoded.dictionary.to_pylist()
        row = [start, end, np.full(len(flat), kind), chosen]
        rows.append(np.stack(row, axis=1).astype(np.int64))
    document, edits = np.concatenate(documents).astype(np.int64), np.concatenate(rows)
    order = np.lexsort((edits[:, 1], edits[:, 2], edits[:, 0], document))
    num_edits = np.bincount(document, minlength=len(cuts))
    return Edits(np.append(0, np.cumsum(num_edits)).astype(np.int64), edits[order], names)


def edited_sizes(sizes: np.ndarray, edits: Edits, what: str) -> np.ndarray:
    """UTF-8 bytes of the edited texts, from those of the texts alone."""
    return sizes + _merge(sizes, edits, what).growth


def edit_texts(texts: pa.ChunkedArray, edits: Edits, what: str) -> tuple[pa.Array, np.ndarray]:
    """The edited texts (large_string), and which documents cuts left nothing of that shows (bool).

    Raises ArtifactMismatch for an edit outside of its text or inside a character: `what` was made
    for other texts.
    """
    values, begins = text_buffers(texts)
    emptied = np.zeros(len(texts), bool)
    if not len(edits.rows):
        return one_chunk(texts.cast(pa.large_string())), emptied
    from tasks.kernels.text.edits import apply_edits, shows_ascii

    merged = _merge(np.diff(begins), edits, what)
    out_begins = np.append(0, np.cumsum(np.diff(begins) + merged.growth)).astype(np.int64)
    out = np.empty(int(out_begins[-1]), np.uint8)
    changes = (merged.begins, merged.rows, merged.replacements, merged.replacement_begins)
    bad = apply_edits(values, begins, *changes, out, out_begins)
    if bad >= 0:
        raise ArtifactMismatch(_misplaced(bad, what))
    buffers = [None, pa.py_buffer(out_begins), pa.py_buffer(out)]
    edited = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
    document = np.repeat(np.arange(len(texts)), np.diff(edits.begins))
    cut = np.unique(document[edits.rows[:, 2] == CUTS])
    # Most texts show an ASCII letter; only the others are worth a Python string each.
    for row in cut[~shows_ascii(out, out_begins, cut)]:
        emptied[row] = not shows(edited[int(row)].as_py())
    return edited, emptied


def move_spans(
    sizes: np.ndarray, edits: Edits, documents: np.ndarray, spans: np.ndarray, what: str
) -> np.ndarray:
    """Where byte spans of the texts are in the edited texts, int64 (spans, 2).

    documents: of each span. A border inside of an edit moves behind what is written for it.
    """
    if not len(edits.rows):
        return spans
    merged = _merge(sizes, edits, what)
    # All documents as one text.
    base = np.cumsum(sizes) - sizes
    of_edit = np.repeat(base, np.diff(merged.begins))
    starts, stops = (np.append(of_edit + merged.rows[:, k], base[-1] + sizes[-1]) for k in (0, 1))
    written = np.append(0, np.cumsum(merged.written - (merged.rows[:, 1] - merged.rows[:, 0])))
    places = base[documents][:, None] + spans
    before = np.searchsorted(starts[:-1], places, "left")
    reached = np.maximum(places, np.where(before > 0, stops[before - 1], 0))
    grown = written[before] - written[merged.begins[documents]][:, None]
    return reached - base[documents][:, None] + grown


@dataclass(frozen=True)
class _Merged:
    """Disjoint edits in order, and what they do to the size of each document."""

    begins: np.ndarray
    rows: np.ndarray
    """int64[edits, 3]: start, end, replacement or -1."""
    replacements: np.ndarray
    replacement_begins: np.ndarray
    written: np.ndarray
    """int64[edits], bytes of each replacement."""
    growth: np.ndarray
    """int64[documents], bytes; mostly below zero."""


def _merge(sizes: np.ndarray, edits: Edits, what: str) -> _Merged:
    from tasks.kernels.text.edits import merge_edits

    merged, begins = np.empty((len(edits.rows), 3), np.int64), np.empty(len(sizes) + 1, np.int64)
    bad = merge_edits(sizes.astype(np.int64), edits.begins, edits.rows, merged, begins)
    if bad >= 0:
        raise ArtifactMismatch(_misplaced(bad, what))
    merged = merged[: begins[-1]]
    pieces = [name.encode() for name in edits.replacements]
    piece_begins = np.cumsum([0, *map(len, pieces)]).astype(np.int64)
    written = np.append(np.diff(piece_begins), 0)[merged[:, 2]]  # -1 is the last: nothing
    growth = np.append(0, np.cumsum(written - (merged[:, 1] - merged[:, 0])))
    joined = np.frombuffer(b"".join(pieces) or b"\0", np.uint8)
    grown = growth[begins[1:]] - growth[begins[:-1]]
    return _Merged(begins, merged, joined, piece_begins, written, grown)


def _misplaced(document: int, what: str) -> str:
    return (
        f"an edit in {what} is outside of the text of document {document}, or inside a character;"
        " rebuild with force=[quality,dedup,pii]"
    )
