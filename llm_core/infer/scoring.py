"""Scores continuations: the log-probability of every token of an answer after its context.

What answers share is computed once (`llm_core.infer.score_plan`): the context of a question, the
shots before many questions. Equal sequences of a group are scored once, so that they tie exactly.
In float64 this equals one full pass per sequence up to rounding. Only places that predict a token
of an answer pay for logits, some at a time.

Log-probabilities are natural logarithms of the model's own logits; exponentials are taken in
float32 or better, and sums in float64. Cost: one pass over the distinct tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_core.infer.cache.attention import any_length
from llm_core.infer.cache.rows import make_branches, make_cache, place_of
from llm_core.infer.cache.static import StaticCache
from llm_core.infer.decoders import one_pass_kernels
from llm_core.infer.replicas import among_replicas
from llm_core.infer.score_plan import Batch, Continuation, plan
from llm_core.model.transformer import Transformer

# B rows · Q tokens of a row · N scored places of a batch · V vocabulary · D width

LOGIT_ROWS = 1024
"""Places whose logits are in memory at once."""
WIDTH_STEP = 8
"""On a GPU, rows have a multiple of so many tokens: its kernels copy masks of other widths."""


@dataclass(frozen=True)
class TokenScores:
    """What the model says about one continuation."""

    logprobs: np.ndarray
    """float64: of each scored token, natural logarithms."""
    is_greedy: bool
    """Whether each scored token is the most probable one."""


def _read_scores(group: Sequence[Any]) -> list[TokenScores]:
    """Of this process or, as plain values, of another."""
    return [
        each
        if isinstance(each, TokenScores)
        else TokenScores(np.array(each["logprobs"], np.float64), each["is_greedy"])
        for each in group
    ]


@among_replicas(_read_scores)
@torch.inference_mode()
def score_continuations(
    model: Transformer,
    groups: Sequence[Sequence[Continuation]],
    batch_tokens: int,
    shares_context: bool = True,
) -> list[list[TokenScores]]:
    """Scores of every continuation, in the order given; those of one group may share a context.

    batch_tokens: tokens of one pass, padding included; at least one group is taken. Sequences must
    not be longer than max_seq_len + 1.
    """
    batches = plan(groups, batch_tokens, shares_context)
    device = place_of(model)[1]
    kernels = one_pass_kernels(model) if device.type == "cuda" else contextlib.nullcontext()
    prefix: StaticCache | None = None
    known: tuple[int, ...] = ()
    told: list[tuple[Tensor, Tensor]] = []
    with any_length(), kernels:
        for batch in batches:
            if batch.prefix != known:
                known, prefix = batch.prefix, _prefix_cache(model, batch.prefix)
            told.append(_score(model, batch, prefix, shares_context))
    # Asked of the device at the end: it computes while the next batches are laid out.
    logprobs, greedy = (
        torch.cat(parts).cpu().numpy() if parts else np.empty(0)
        for parts in ([one for one, _ in told], [other for _, other in told])
    )
    found: list[dict[Continuation, TokenScores]] = [{} for _ in groups]
    begin = 0
    for batch in batches:
        for row in batch.rows:
            for each in row.sequences:
                end = begin + len(each.ids) - each.begin
                scores = TokenScores(logprobs[begin:end], bool(greedy[begin:end].all()))
                found[row.group][each] = scores
                begin = end
    return [[known[each] for each in group] for known, group in zip(found, groups, strict=True)]


def token_logprobs(
    model: Transformer, hidden_ND: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """(float64 log-probability of each target, whether it is the most probable token)."""
    logprobs, greedy = [], []
    for begin in range(0, len(targets_N), LOGIT_ROWS):
        logits_NV = model.logits(hidden_ND[begin : begin + LOGIT_ROWS])
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        targets_N1 = targets_N[begin : begin + LOGIT_ROWS, None]
        most_N1, best_N1 = logits_NV.max(-1, keepdim=True)
        # Taken before the logits are overwritten.
        chosen_N1 = logits_NV.gather(-1, targets_N1).double() - most_N1
        sums_N1 = logits_NV.sub_(most_N1).exp_().sum(-1, keepdim=True, dtype=torch.float64)
        logprobs.append((chosen_N1 - sums_N1.log())[:, 0])
        greedy.append((best_N1 == targets_N1)[:, 0])
    return torch.cat(logprobs), torch.cat(greedy)


def _prefix_cache(model: Transformer, prefix: Sequence[int]) -> StaticCache | None:
    """Keys and values of the tokens before all rows of a family."""
    if not prefix:
        return None
    cache = make_cache(model, StaticCache, 1, len(prefix))
    ids_1P = torch.tensor([prefix], device=place_of(model)[1])
    model.hidden(ids_1P, cache.positions(len(prefix)), cache)
    return cache


def _score(
    model: Transformer, batch: Batch, prefix: StaticCache | None, with_branches: bool
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` of the sequences of all rows, one after the other."""
    device = place_of(model)[1]
    width = max(row.num_tokens for row in batch.rows) - batch.num_prefix
    width += -width % (WIDTH_STEP if device.type == "cuda" else 1)
    ids_BQ, positions_BQ = (np.zeros((len(batch.rows), width), np.int64) for _ in range(2))
    branches_BQ = np.full((len(batch.rows), width), -1, np.int64)
    places: list[np.ndarray] = []
    targets: list[int] = []
    for number, row in enumerate(batch.rows):
        trunk, begin, first = row.trunk, batch.num_prefix, number * width
        end = len(trunk) - begin
        ids_BQ[number, :end] = trunk[begin:]
        positions_BQ[number, :end] = np.arange(begin, len(trunk))
        branches_BQ[number, :end] = 0
        for branch, each in enumerate(row.sequences, start=1):
            own = each.ids[len(trunk) : -1]
            span = slice(end, end + len(own))
            ids_BQ[number, span] = own
            positions_BQ[number, span] = np.arange(len(trunk), len(trunk) + len(own))
            branches_BQ[number, span] = branch
            # The place before a token predicts it, in the trunk or the branch.
            path = np.arange(each.begin - 1, len(each.ids) - 1)
            moved = end - (len(trunk) - begin)
            places.append(first - begin + path + np.where(path >= len(trunk), moved, 0))
            targets += each.ids[each.begin :]
            end += len(own)
    arrays = ids_BQ, positions_BQ, branches_BQ, np.concatenate(places), np.array(targets, np.int64)
    ids, positions, branches, places_N, targets_N = (_to(each, device) for each in arrays)
    if not with_branches:
        hidden_BQD = model.hidden(ids)
    else:
        has_branches = bool((branches_BQ > 0).any())
        cache = make_branches(model, branches, positions, prefix, has_branches)
        hidden_BQD = model.hidden(ids, positions, cache)
    return token_logprobs(model, hidden_BQD.flatten(0, 1)[places_N], targets_N)


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    """On the device; a GPU fetches it while this process goes on."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
