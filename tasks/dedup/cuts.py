"""Cuts repeated ranges of text out of the documents that stay, from two finders, merged.

A finder goes through the documents in order of preference and through each from its start; what it
meets for the first time stays, wherever it is, and every later occurrence is cut. Lines or
paragraphs: `tasks.dedup.repeated_pieces`. Runs of units: `tasks.dedup.repeated_runs`. Only
documents that are not copies take part, so nothing is cut in favour of a document that goes. Ranges
are UTF-8 byte offsets in the original text, ordered, and disjoint: of overlapping ones the pieces
are whole and the runs give way. A document in which no unit is left is dropped as NOTHING_LEFT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.corpus.documentset import read_table, text_buffers
from tasks.dedup.config import CutsConfig, DedupConfig
from tasks.dedup.repeated_pieces import find_repeated_pieces
from tasks.dedup.repeated_runs import find_repeated_runs
from tasks.dedup.signatures import parts_with_rows
from tasks.dedup.signed_documents import SignedDocuments
from tasks.runtime.artifact import digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, scratch_dir

CUT_REASONS = ("REPEATED_LINE", "REPEATED_PARAGRAPH", "REPEATED_SUBSTRING")
SUBSTRING = CUT_REASONS.index("REPEATED_SUBSTRING")
REST_FILE = "rest.npy"
CUTS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())]))


@dataclass(frozen=True)
class Cuts:
    """document, start, end, reason: one entry per cut, in order of document and start; reasons are
    numbers in CUT_REASONS.

    nothing_left: documents without a unit outside of their cuts. piece_keys: sorted keys of the
    pieces of this and earlier runs, where a later one is to have them. expected_false_cuts: of
    pieces that never occurred, by the error of a filter.
    """

    num_all: int
    document: np.ndarray
    start: np.ndarray
    end: np.ndarray
    reason: np.ndarray
    nothing_left: np.ndarray
    piece_keys: np.ndarray
    expected_false_cuts: float = 0.0

    def column(self, document: np.ndarray) -> pa.Array:
        """The lists of `document`; null where it is negative, empty where a document is dropped."""
        kept = np.ones(self.num_all, bool)
        kept[self.nothing_left] = False
        mine = np.flatnonzero(kept[self.document]) if len(self.document) else np.zeros(0, np.int64)
        begins = np.searchsorted(self.document[mine], np.arange(self.num_all + 1))
        absent = document < 0
        sizes = np.where(absent, 0, np.diff(begins)[document])
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        # Places of all cuts, list by list: each list's first place, and as many more as it has.
        starts = np.repeat(begins[:-1][document] - offsets[:-1], sizes)
        which = mine[starts + np.arange(offsets[-1])]
        columns = [
            pa.array(self.start[which], pa.int64()),
            pa.array(self.end[which], pa.int64()),
            pa.array(CUT_REASONS, pa.string()).take(pa.array(self.reason[which])),
        ]
        structs = pa.StructArray.from_arrays(columns, fields=list(CUTS.value_type))
        mask = pa.array(absent) if absent.any() else None
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), structs, type=CUTS, mask=mask
        )

    @property
    def num_bytes(self) -> int:
        return int((self.end - self.start).sum())

    @property
    def num_documents(self) -> int:
        return len(np.unique(self.document))

    def counts(self) -> dict[str, dict[str, int]]:
        """{reason: cuts, bytes and documents}, dropped documents among them."""
        result = {}
        for number, name in enumerate(CUT_REASONS):
            mine = self.reason == number
            if mine.any():
                result[name] = {
                    "cuts": int(mine.sum()),
                    "bytes": int((self.end - self.start)[mine].sum()),
                    "documents": len(np.unique(self.document[mine])),
                }
        return result


def find_cuts(
    documents: SignedDocuments,
    staying: np.ndarray,
    parts: Sequence[Part],
    earlier_pieces: np.ndarray,
    dedup: DedupConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> Cuts:
    """The cuts of documents `staying` (ascending). `earlier_pieces`: keys that count as having
    occurred."""
    none = np.zeros(0, np.int64)
    cut: tuple[np.ndarray, ...] = (none, none, none, none)
    config, keys, false_cuts = dedup.cuts, earlier_pieces, 0.0
    if config.pieces == "none" and not config.substring_units:
        return Cuts(len(documents), none, none, none, none, none, keys)
    work, places = parts_with_rows(documents, staying, parts, "staying", out_dir)
    owners = [staying[here] for here in places]
    if config.pieces != "none":
        found = find_repeated_pieces(
            work, owners, earlier_pieces, config, run_parts, out_dir, dedup.keep_index
        )
        keys, false_cuts = found.keys, found.expected_false_cuts
        reasons = np.full(len(found.document), 0 if config.pieces == "line" else 1)
        cut = (found.document, found.start, found.end, reasons)
    if config.substring_units:
        run = find_repeated_runs(work, owners, config, run_parts, out_dir)
        pairs = zip(cut, (*run, np.full(len(run[0]), SUBSTRING)), strict=True)
        cut = disjoint(*map(np.concatenate, pairs))
    left = _without_rest(work, owners, cut, run_parts, config, out_dir)
    document, start, end, reason = cut
    return Cuts(len(documents), document, start, end, reason, left, keys, false_cuts)


def disjoint(
    document: np.ndarray, start: np.ndarray, end: np.ndarray, reason: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same bytes in ordered, disjoint ranges: pieces are disjoint already and stay whole, runs
    fill the rest."""
    from tasks.kernels.text.pieces import subtract

    ranges = np.stack([document, start, end, reason], axis=1)[np.lexsort((start, document))]
    # Ranges of one finder are disjoint, so only a run and a piece can overlap.
    is_run = ranges[:, 3] == SUBSTRING
    pieces = ranges[~is_run]
    runs = subtract(ranges[is_run, :3].copy(), pieces[:, :3].copy())
    ranges = np.concatenate([pieces, np.insert(runs, 3, SUBSTRING, axis=1)])
    document, start, end, reason = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))].T.copy()
    return document, start, end, reason


def _without_rest(
    work: Sequence[Part],
    owners: Sequence[np.ndarray],
    cut: tuple[np.ndarray, ...],
    run_parts: RunParts,
    config: CutsConfig,
    out_dir: Path,
) -> np.ndarray:
    """Documents in which no unit is left."""
    document, start, end, _ = cut
    telling, numbers = [], []
    for part, mine in zip(work, owners, strict=True):
        begins, ends = (np.searchsorted(document, mine, side=s) for s in ("left", "right"))
        # A document without a cut has its text left.
        touched = np.flatnonzero(ends > begins)
        if len(touched) == 0:
            continue
        which = np.concatenate([np.arange(begins[i], ends[i]) for i in touched])
        rows = np.load(part.payload["rows"])[touched]
        rows = np.repeat(rows, (ends - begins)[touched])
        file = scratch_dir(out_dir) / f"cuts-{part.name}.npy"
        np.save(file, np.stack([rows, start[which], end[which]]))
        payload = {"documents": part.payload["documents"], "cuts": str(file)}
        telling.append(Part(part.name, digest(["rest", part.digest, digest_file(file)]), payload))
        numbers.append(mine[touched])
    made = run_parts(find_rest, telling, config, out_dir)
    gone = [np.zeros(0, np.int64)]
    for mine, result in zip(numbers, made, strict=True):
        gone.append(mine[~np.load(result.path / REST_FILE)])
    return np.sort(np.concatenate(gone))


def find_rest(part: Part, directory: Path, config: Any) -> Mapping[str, Any]:
    """Whether a unit is left of each document with cuts, in their order."""
    from tasks.kernels.text.chars import char_classes
    from tasks.kernels.text.pieces import has_rest

    del config
    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    rows, start, end = np.load(part.payload["cuts"])
    # Where the cuts of each document begin.
    first = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
    rest = has_rest(buf, begins, rows, start, end, np.append(first, len(rows)), char_classes())
    np.save(directory / REST_FILE, rest)
    return {"documents": len(first)}
