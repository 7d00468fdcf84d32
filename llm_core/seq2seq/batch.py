"""Lays out pairs of source and target as rows, alone with padding or packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from llm_core.data.batch import IGNORED
from llm_core.seq2seq.config import Seq2SeqConfig

PADDING = -1
"""Document number of padding."""

Pair = tuple[np.ndarray, np.ndarray]
"""int64 ids of a source and of its target, each with its end."""


# B rows · S source tokens · T target tokens
class Seq2SeqBatch(NamedTuple):
    source_BS: Tensor
    inputs_BT: Tensor
    """What the decoder reads: each target one place later, after pad_id."""
    targets_BT: Tensor
    """`IGNORED` in padding."""
    source_documents_BS: Tensor
    """int32: number of the pair in its row, `PADDING` in padding. Tokens attend their own pair
    alone."""
    documents_BT: Tensor
    numbers_B: Tensor
    """int64: place of each row in the order of all samples of a run, for dropout."""


def lay_out(
    rows: Sequence[Sequence[Pair]],
    numbers: np.ndarray,
    source_len: int,
    target_len: int,
    config: Seq2SeqConfig,
) -> Seq2SeqBatch:
    """Put the pairs of each row one after another; they must fit."""
    source, source_documents = _filled(rows, 0, source_len, config.pad_id)
    targets, documents = _filled(rows, 1, target_len, IGNORED)
    inputs = np.full_like(targets, config.pad_id)
    inputs[:, 1:] = np.where(documents[:, 1:] == documents[:, :-1], targets[:, :-1], config.pad_id)
    inputs[documents == PADDING] = config.pad_id
    arrays = source, inputs, targets, source_documents, documents, numbers.astype(np.int64)
    return Seq2SeqBatch(*map(torch.from_numpy, arrays))


def _filled(
    rows: Sequence[Sequence[Pair]], side: int, length: int, filler: int
) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((len(rows), length), filler, np.int64)
    documents = np.full((len(rows), length), PADDING, np.int32)
    for r, row in enumerate(rows):
        place = 0
        for number, pair in enumerate(row):
            stop = place + len(pair[side])
            assert stop <= length, f"pairs of row {r} do not fit in {length} places"
            ids[r, place:stop], documents[r, place:stop] = pair[side], number
            place = stop
    return ids, documents


def pack(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source_len: int, target_len: int
) -> np.ndarray:
    """int64 row of each pair: pairs keep their order, and one that does not fit begins a new row
    (next fit)."""
    row_of = np.zeros(len(source_lengths), np.int64)
    row = sources = targets = 0
    for k, (source, target) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        if k and (sources + source > source_len or targets + target > target_len):
            row, sources, targets = row + 1, 0, 0
        sources, targets = sources + int(source), targets + int(target)
        row_of[k] = row
    return row_of
