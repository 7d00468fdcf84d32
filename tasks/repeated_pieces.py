"""Which lines or paragraphs occurred before, in this corpus or an earlier one? One finder of `tasks.cuts`.

Pieces are equal when their case-folded texts with white space collapsed are (`tasks.kernels.exact`, 128 bits). `exact` sorts all
keys in memory, about 60 bytes a piece. `bloom` keeps 1.44 log2(1 / error) bits a piece and takes a new piece for a
repeat with at most that probability, never a repeat for a new one; pieces then stream by in order of preference (Bloom
1970). Either way a part is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.dedup_config import CutsConfig
from tasks.documentset import read_table, text_buffers
from tasks.keys import digest
from tasks.parts import Part, PartResult, RunParts
from tasks.signatures import first_of_equal, id_words_of

KEYS_FILE, SPANS_FILE = "keys.npy", "spans.npy"
_DOCUMENTS_AT_ONCE = 1 << 15


def find_repeated_pieces(
    work: Sequence[Part],
    owners: Sequence[np.ndarray],
    earlier: np.ndarray,
    config: CutsConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(document, start, end) of the cuts, in order, and the sorted keys of all pieces that stay, those of `earlier` among them.

    owners: the numbers of the documents of each part of `work`, ascending; the smaller is preferred.
    """
    naming = [Part(part.name, digest(["pieces", part.digest]), part.payload) for part in work]
    made = run_parts(key_pieces, naming, config, out_dir)
    documents, starts, ends, new_keys = [], [], [], [earlier]
    judge = _exact_judge(earlier) if config.piece_memory == "exact" else _bloom_judge(earlier, made, config)
    for document, span, keys in _in_order(made, owners, config):
        repeated = judge(keys)
        documents.append(document[repeated])
        starts.append(span[repeated, 0])
        ends.append(span[repeated, 1])
        new_keys.append(keys[~repeated])
    kept = np.concatenate(new_keys)
    kept = kept[np.lexsort((kept[:, 1], kept[:, 0]))]
    none = [np.zeros(0, np.int64)]
    return np.concatenate(none + documents), np.concatenate(none + starts), np.concatenate(none + ends), kept


def key_pieces(part: Part, directory: Path, config: CutsConfig) -> Mapping[str, Any]:
    """Keys (two uint64 words) and (place in rows, start, reach) of the pieces of the rows of a part."""
    from tasks.kernels.chars import char_classes, fold_table
    from tasks.kernels.exact import exact_keys
    from tasks.kernels.pieces import find_pieces

    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    rows = np.load(part.payload["rows"])
    by_line, tables = config.pieces == "line", (char_classes(), fold_table())
    place, start, stop, reach = find_pieces(buf, begins, rows, by_line, config.min_piece_units, *tables)
    spans = np.stack([start, stop], axis=1).reshape(-1)
    np.save(directory / KEYS_FILE, id_words_of(exact_keys(buf, spans, np.arange(0, len(spans), 2))))
    base = begins[rows][place]
    np.save(directory / SPANS_FILE, np.stack([place, start - base, reach - base], axis=1).astype(np.int64))
    return {"pieces": len(place)}


Judge = Callable[[np.ndarray], np.ndarray]
"""Keys in order → which of them occurred before, in this call or an earlier one."""


def _in_order(
    made: Sequence[PartResult], owners: Sequence[np.ndarray], config: CutsConfig
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(document, (start, end), key) of pieces in order of preference, then of the text; all at once unless memory is bounded."""
    numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *owners]))
    step = len(numbers) if config.piece_memory == "exact" else _DOCUMENTS_AT_ONCE
    for first in range(0, len(numbers), max(step, 1)):
        some = numbers[first : first + step]
        documents, spans, keys = [], [], []
        for result, mine in zip(made, owners, strict=True):
            all_spans = np.load(result.path / SPANS_FILE, mmap_mode="r")
            places = np.searchsorted(mine, some[0]), np.searchsorted(mine, some[-1], side="right")
            begin, end = np.searchsorted(all_spans[:, 0], places)
            here = np.asarray(all_spans[begin:end])
            documents.append(mine[here[:, 0]])
            spans.append(here[:, 1:])
            keys.append(np.load(result.path / KEYS_FILE, mmap_mode="r")[begin:end])
        document, span = np.concatenate(documents), np.concatenate(spans)
        order = np.lexsort((span[:, 0], document))
        yield document[order], span[order], np.concatenate(keys)[order]


def _exact_judge(earlier: np.ndarray) -> Judge:
    def judge(keys: np.ndarray) -> np.ndarray:
        words = np.concatenate([earlier, keys])
        first = first_of_equal(words, np.ones(len(words), bool))
        return (first != np.arange(len(words)))[len(earlier) :]

    return judge


def _bloom_judge(earlier: np.ndarray, made: Sequence[PartResult], config: CutsConfig) -> Judge:
    from tasks.kernels.bloom import add_all, make_filter

    num_pieces = len(earlier) + sum(result.counters["pieces"] for result in made)
    bits, num_hashes = make_filter(num_pieces, config.bloom_error)
    add_all(bits, num_hashes, earlier)
    return lambda keys: add_all(bits, num_hashes, keys)
