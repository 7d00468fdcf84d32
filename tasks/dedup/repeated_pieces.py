"""Finds lines or paragraphs that occurred before, in this corpus or an earlier one; used by
`tasks.dedup.cuts`.

Pieces are equal when their case-folded texts with white space collapsed are
(`tasks.kernels.dedup.exact`, 128 bits). `exact` holds the keys of all pieces in order of preference
and sorts those that may occur twice: 37 bytes a piece where all differ, 76 where most occur twice.
`bloom` keeps 1.6 log2(1 / error) bits a piece (Bloom 1970) and takes a new piece for a repeat with
at most that probability, never a repeat for a new one; beside it only cuts, 48 bytes each, and 24
bytes a document grow with the corpus. Keys of what stays are returned where a later run is to
compare with them: 58 bytes a piece to sort them. Texts are read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.corpus.documentset import read_table, text_buffers
from tasks.dedup.config import CutsConfig
from tasks.dedup.signed_documents import first_of_equal, id_words_of
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, PartResult, RunParts

KEYS_FILE, SPANS_FILE, FIRSTS_FILE = "keys.npy", "spans.npy", "firsts.npy"
_PIECES_AT_ONCE = 1 << 19
"""Bounds what is in memory beside what is remembered, at about 100 bytes a piece."""


@dataclass(frozen=True)
class RepeatedPieces:
    """Cuts in order; `keys`: sorted, of all pieces that stay here and of earlier runs; empty where
    they were not asked for.

    expected_false_cuts: cuts of pieces that never occurred before, as many as the filter is to be
    expected to make.
    """

    document: np.ndarray
    start: np.ndarray
    end: np.ndarray
    keys: np.ndarray
    expected_false_cuts: float


def find_repeated_pieces(
    work: Sequence[Part],
    owners: Sequence[np.ndarray],
    earlier: np.ndarray,
    config: CutsConfig,
    run_parts: RunParts,
    out_dir: Path,
    keep_keys: bool = False,
) -> RepeatedPieces:
    """What occurred before, in these texts or among the keys `earlier`.

    owners: the numbers of the documents of each part of `work`, ascending; the smaller is
    preferred.
    """
    naming = [Part(part.name, digest(["pieces", part.digest]), part.payload) for part in work]
    made = run_parts(key_pieces, naming, config, out_dir)
    num_pieces = sum(int(result.counters["pieces"]) for result in made)
    documents, starts, ends, new_keys = [], [], [], [earlier]
    bloom = None
    if config.piece_memory == "bloom":
        bloom = _Filter(earlier, num_pieces, config.bloom_error)
    # Exact memory reads all keys before the first verdict; the loop below reads them again.
    judge = bloom or _Sorted(earlier, num_pieces, (keys for _, _, keys in _in_order(made, owners)))
    for document, span, keys in _in_order(made, owners):
        repeated = judge(keys)
        documents.append(document[repeated])
        starts.append(span[repeated, 0])
        ends.append(span[repeated, 1])
        if keep_keys:
            new_keys.append(keys[~repeated])
    kept = np.concatenate(new_keys if keep_keys else [earlier[:0]])
    kept = kept[np.lexsort((kept[:, 1], kept[:, 0]))]
    none = [np.zeros(0, np.int64)]
    document, start, end = (np.concatenate(none + arrays) for arrays in (documents, starts, ends))
    return RepeatedPieces(document, start, end, kept, bloom.expected_errors() if bloom else 0.0)


def key_pieces(part: Part, directory: Path, config: CutsConfig) -> Mapping[str, Any]:
    """Keys (two uint64 words) and (place in rows, start, reach) of the pieces of a part, and the
    first piece of each row."""
    from tasks.kernels.dedup.exact import exact_keys
    from tasks.kernels.text.chars import char_classes, fold_table
    from tasks.kernels.text.pieces import find_pieces

    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    rows = np.load(part.payload["rows"])
    by_line, tables = config.pieces == "line", (char_classes(), fold_table())
    place, start, stop, reach = find_pieces(
        buf, begins, rows, by_line, config.min_piece_units, *tables
    )
    spans = np.stack([start, stop], axis=1).reshape(-1)
    np.save(directory / KEYS_FILE, id_words_of(exact_keys(buf, spans, np.arange(0, len(spans), 2))))
    base = begins[rows][place]
    spans = np.stack([place, start - base, reach - base], axis=1).astype(np.int64)
    np.save(directory / SPANS_FILE, spans)
    np.save(directory / FIRSTS_FILE, np.searchsorted(place, np.arange(len(rows) + 1)))
    return {"pieces": len(place)}


def _in_order(
    made: Sequence[PartResult], owners: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(document, (start, end), key) of pieces in order of preference, then of the text, some whole
    documents at a time."""
    numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *owners]))
    sizes = np.zeros(len(numbers), np.int64)
    for result, mine in zip(made, owners, strict=True):
        sizes[np.searchsorted(numbers, mine)] = np.diff(np.load(result.path / FIRSTS_FILE))
    # Whole documents, so that the pieces of one are never apart.
    block = np.cumsum(sizes) // _PIECES_AT_ONCE
    for some in np.split(numbers, np.flatnonzero(np.diff(block)) + 1) if len(numbers) else ():
        documents, spans, keys = [], [], []
        for result, mine in zip(made, owners, strict=True):
            first = np.searchsorted(mine, some[0])
            last = np.searchsorted(mine, some[-1], side="right")
            begin, end = np.load(result.path / FIRSTS_FILE, mmap_mode="r")[[first, last]]
            here = np.asarray(np.load(result.path / SPANS_FILE, mmap_mode="r")[begin:end])
            documents.append(mine[here[:, 0]])
            spans.append(here[:, 1:])
            keys.append(np.load(result.path / KEYS_FILE, mmap_mode="r")[begin:end])
        document, span = np.concatenate(documents), np.concatenate(spans)
        order = np.lexsort((span[:, 0], document))
        yield document[order], span[order], np.concatenate(keys)[order]


class _Sorted:
    """Keys in order → which of them occurred before, in this call or an earlier one; all keys have
    been seen beforehand."""

    def __init__(self, earlier: np.ndarray, num_pieces: int, keys: Iterable[np.ndarray]) -> None:
        words = np.empty((len(earlier) + num_pieces, 2), np.uint64)
        words[: len(earlier)] = earlier
        at = len(earlier)
        for some in keys:
            words[at : at + len(some)] = some
            at += len(some)
        self._repeated = (first_of_equal(words, np.ones(at, bool)) != np.arange(at))[len(earlier) :]
        self._at = 0

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        self._at += len(keys)
        return self._repeated[self._at - len(keys) : self._at]


class _Filter:
    """The same without having seen them."""

    def __init__(self, earlier: np.ndarray, num_pieces: int, error: float) -> None:
        from tasks.kernels.dedup.bloom import add_all, make_filter

        self._bits, self._num_hashes = make_filter(len(earlier) + num_pieces, error)
        add_all(self._bits, self._num_hashes, earlier)
        self._filled = [len(earlier), len(earlier)]

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        from tasks.kernels.dedup.bloom import add_all

        repeated = add_all(self._bits, self._num_hashes, keys)
        self._filled[1] += int((~repeated).sum())
        return repeated  # type: ignore[no-any-return]

    def expected_errors(self) -> float:
        from tasks.kernels.dedup.bloom import expected_errors

        return expected_errors(self._bits.size * 64, self._num_hashes, *self._filled)
