"""Finds runs of units that occurred before, by exact substring deduplication (Lee et al. 2022);
used by `tasks.dedup.cuts`.

A window of `substring_units` units that equals an earlier one is cut; overlapping windows make
longer cuts. Earlier means in a preferred document, or at least a whole window before in the same
one. Units and so equality are those of shingles: case and punctuation do not count. The result is
the one of a suffix array over all texts, up to 128-bit hashes, without the array: anchors
(`tasks.kernels.text.windows`) that occur twice in the corpus tell which windows are worth a key.

Two walks over the text, each in parts. Memory in the main process: 8 bytes per anchor (one for
about 18 units of 50), and about 100 per window on repeated anchors (one per unit of repeated text).
A text has less than 4 GiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.corpus.documentset import read_table, text_buffers
from tasks.dedup.config import CutsConfig
from tasks.dedup.signed_documents import first_of_equal
from tasks.runtime.artifact import digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, scratch_dir

ANCHORS_FILE, KEYS_FILE, WINDOWS_FILE = "anchors.npy", "keys.npy", "windows.npy"


def find_repeated_runs(
    work: Sequence[Part],
    owners: Sequence[np.ndarray],
    config: CutsConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(document, start, end) of the cuts, in order and disjoint.

    owners: the numbers of the documents of each part of `work`, ascending; the smaller is
    preferred.
    """
    anchoring = [Part(part.name, digest(["anchors", part.digest]), part.payload) for part in work]
    anchors = run_parts(anchor_part, anchoring, config, out_dir)
    every = np.concatenate(
        [np.zeros(0, np.uint64), *(np.load(result.path / ANCHORS_FILE) for result in anchors)]
    )
    # In place, and dropped as soon as it is used: it is the largest array of all.
    every.sort()
    repeated = np.unique(every[1:][every[1:] == every[:-1]])
    del every
    file = scratch_dir(out_dir) / "repeated-anchors.npy"
    np.save(file, repeated)
    file_digest, windowing = digest_file(file), []
    for part in work:
        key = digest(["windows", part.digest, file_digest])
        windowing.append(Part(part.name, key, {**part.payload, "anchors": str(file)}))
    made = run_parts(window_part, windowing, config, out_dir)

    windows, found_keys = [np.zeros((0, 4), np.uint32)], [np.zeros((0, 2), np.uint64)]
    for result, mine in zip(made, owners, strict=True):
        where = np.load(result.path / WINDOWS_FILE)
        where[:, 0] = mine[where[:, 0]]
        windows.append(where)
        found_keys.append(np.load(result.path / KEYS_FILE))
    keys, where = np.concatenate(found_keys), np.concatenate(windows)
    del found_keys, windows
    order = np.lexsort((where[:, 1], where[:, 0]))
    keys, where = keys[order], where[order]
    first = first_of_equal(keys, np.ones(len(keys), bool))
    elsewhere = where[first, 0] != where[:, 0]
    # Within a document the first comes first, so the difference of unsigned numbers is right where
    # it matters.
    later = elsewhere | (where[:, 1] - where[first, 1] >= config.substring_units)
    document, _, start, end = where[later].astype(np.int64).T
    return _united(document, start, end)


def _united(
    document: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Overlapping ranges of a document as one. Ranges come in order, and the end of a later one is
    never before."""
    begins = np.ones(len(document), bool)
    begins[1:] = (document[1:] != document[:-1]) | (start[1:] > end[:-1])
    # Ends never decrease, so a stretch ends with its last range.
    heads = np.flatnonzero(begins)
    lasts = np.append(heads[1:], len(document))[: len(heads)] - 1
    return document[heads], start[heads], end[lasts]


def anchor_part(part: Part, directory: Path, config: CutsConfig) -> Mapping[str, Any]:
    """The anchors of the rows of a part."""
    from tasks.kernels.text.chars import char_classes, fold_table
    from tasks.kernels.text.windows import find_anchors, make_scratch

    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    rows = np.load(part.payload["rows"])
    tables = (char_classes(), fold_table())
    anchors = find_anchors(buf, begins, rows, config.substring_units, tables, make_scratch(begins))
    np.save(directory / ANCHORS_FILE, anchors)
    return {"anchors": len(anchors)}


def window_part(part: Part, directory: Path, config: CutsConfig) -> Mapping[str, Any]:
    """Keys and places of the windows of a part that stand on repeated anchors."""
    from tasks.kernels.text.chars import char_classes, fold_table
    from tasks.kernels.text.windows import find_windows, make_scratch

    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    rows, chosen = np.load(part.payload["rows"]), np.load(part.payload["anchors"])
    tables = (char_classes(), fold_table())
    keys, where = find_windows(
        buf, begins, rows, config.substring_units, chosen, tables, make_scratch(begins)
    )
    np.save(directory / KEYS_FILE, keys)
    np.save(directory / WINDOWS_FILE, where.astype(np.uint32))
    return {"windows": len(keys)}
