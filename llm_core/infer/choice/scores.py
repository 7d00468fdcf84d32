"""Scores tokens: the logarithms of their probabilities, beside those of the likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# B rows · V vocabulary · K the likeliest of it


@dataclass(frozen=True)
class Scored:
    """Natural logarithms of probabilities by the model alone, before penalties and temperature."""

    logprob: float
    """Of the token itself."""
    top: tuple[tuple[int, float], ...]
    """(id, logarithm) of as many likeliest tokens as were asked for, the likeliest first."""


def score_rows(
    logits_BV: Tensor, ids: Sequence[int], num_top: Sequence[int | None]
) -> list[Scored | None]:
    """The same for those rows that have a number of likeliest tokens; None for others."""
    wanted = {row: count for row, count in enumerate(num_top) if count is not None}
    scores: list[Scored | None] = [None] * len(ids)
    if wanted:
        rows = list(wanted)
        found = score_tokens(logits_BV[rows], [ids[row] for row in rows], list(wanted.values()))
        for row, score in zip(rows, found, strict=True):
            scores[row] = score
    return scores


def score_tokens(logits_BV: Tensor, ids: Sequence[int], num_top: Sequence[int]) -> list[Scored]:
    """Of each row's token, with as many likeliest ones as wanted of it."""
    if logits_BV.dtype != torch.float64:
        logits_BV = logits_BV.float()
    logprobs_BV = logits_BV.log_softmax(-1)
    ids_B1 = torch.tensor(list(ids), device=logits_BV.device)[:, None]
    chosen = logprobs_BV.gather(1, ids_B1)[:, 0].tolist()
    top_BK, places_BK = logprobs_BV.topk(max(num_top), dim=-1)
    pairs = [
        tuple(zip(places[:count], values[:count], strict=True))
        for places, values, count in zip(places_BK.tolist(), top_BK.tolist(), num_top, strict=True)
    ]
    return [Scored(logprob, top) for logprob, top in zip(chosen, pairs, strict=True)]
