"""Scores continuations: the log-probability of every token of an answer after its context.

The answers of one question share the beginning of their context. It is computed once, its cache is
forked for each answer (`llm_core.infer.cache.static`), and only what differs is computed again: a
question of K answers costs one context and K answers, not K contexts. Equal sequences of a group
are scored once, so that they tie exactly. In float64 this equals one full pass per sequence up to
rounding.

Log-probabilities are natural logarithms in float64 from the model's own logits. Sequences are
sorted by length and padded on the right, where causal attention never looks. Cost: one pass over
the distinct tokens, and a copy of the shared keys and values per answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from llm_core.infer.cache.attention import any_length
from llm_core.infer.cache.rows import place_of
from llm_core.infer.cache.static import StaticCache
from llm_core.model.transformer import Transformer

# B batch · T token places · N scored places of a batch · V vocabulary · D width
LOGIT_ROWS = 1024
"""Places whose logits are in memory at once."""


@dataclass(frozen=True)
class Continuation:
    """A context and its answer; the tokens from `begin` on are scored."""

    ids: tuple[int, ...]
    begin: int

    def __post_init__(self) -> None:
        assert 1 <= self.begin < len(self.ids), "a continuation needs a context and an answer"


@dataclass(frozen=True)
class TokenScores:
    """What the model says about one continuation."""

    logprobs: np.ndarray
    """float64: of each scored token, natural logarithms."""
    is_greedy: bool
    """Whether each scored token is the most probable one."""


@dataclass(frozen=True)
class _Group:
    number: int
    num_shared: int
    """First tokens that all sequences have, before anything that is scored."""
    sequences: tuple[Continuation, ...]

    @property
    def longest_rest(self) -> int:
        return max(len(each.ids) for each in self.sequences) - 1 - self.num_shared


@torch.inference_mode()
def score_continuations(
    model: Transformer,
    groups: Sequence[Sequence[Continuation]],
    batch_tokens: int,
    shares_context: bool = True,
) -> list[list[TokenScores]]:
    """Scores of every continuation, in the order given; those of one group may share a context.

    batch_tokens: token places of one pass, padding and shared context included; at least one group
    is taken. Sequences must not be longer than max_seq_len + 1.
    """
    planned = [_plan(number, group, shares_context) for number, group in enumerate(groups) if group]
    found: list[dict[Continuation, TokenScores]] = [{} for _ in groups]
    for batch in _batches(planned, batch_tokens):
        with any_length():
            scores = iter(_score(model, batch))
        for group in batch:
            found[group.number] = {each: next(scores) for each in group.sequences}
    return [[known[each] for each in group] for known, group in zip(found, groups, strict=True)]


def token_logprobs(
    model: Transformer, hidden_ND: Tensor, targets_N: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """(float64 log-probability of each target, whether it is the most probable token)."""
    logprobs, greedy = [], []
    for begin in range(0, len(targets_N), LOGIT_ROWS):
        logits_NV = model.logits(hidden_ND[begin : begin + LOGIT_ROWS]).double()
        targets = targets_N[begin : begin + LOGIT_ROWS]
        chosen_N = logits_NV.gather(-1, targets[:, None])[:, 0]
        logprobs.append((chosen_N - logits_NV.logsumexp(-1)).cpu().numpy())
        greedy.append((logits_NV.argmax(-1) == targets).cpu().numpy())
    return np.concatenate(logprobs), np.concatenate(greedy)


def _plan(number: int, group: Sequence[Continuation], shares_context: bool) -> _Group:
    sequences = tuple(dict.fromkeys(group))
    if not shares_context or len(sequences) == 1:
        return _Group(number, 0, sequences)
    columns = zip(*(each.ids for each in sequences), strict=False)
    common = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))
    # The last token before an answer is computed with it, as its output is the first one scored.
    return _Group(number, min(common, *(each.begin - 1 for each in sequences)), sequences)


def _batches(groups: Sequence[_Group], batch_tokens: int) -> Iterator[list[_Group]]:
    """Groups of similar length together, longest first; those that share nothing by themselves."""
    ordered = sorted(groups, key=lambda g: (-g.num_shared, -g.longest_rest, g.number))
    batch: list[_Group] = []
    rows, rest = 0, 0
    for group in ordered:
        shared = batch[0].num_shared if batch else group.num_shared
        more_rows = rows + len(group.sequences)
        more_rest = max(rest, group.longest_rest)
        is_full = more_rows * (shared + more_rest) > batch_tokens
        if batch and (is_full or (shared > 0) != (group.num_shared > 0)):
            yield batch
            batch, more_rows, more_rest = [], len(group.sequences), group.longest_rest
        batch.append(group)
        rows, rest = more_rows, more_rest
    if batch:
        yield batch


def _score(model: Transformer, batch: Sequence[_Group]) -> list[TokenScores]:
    """Scores of the sequences of all groups, one after the other."""
    dtype, device = place_of(model)
    rest = max(group.longest_rest for group in batch)
    rows = [(group.num_shared, each) for group in batch for each in group.sequences]
    inputs_BT = np.zeros((len(rows), rest), np.int64)
    targets_BT = np.full((len(rows), rest), -1, np.int64)
    for row, (shared, each) in enumerate(rows):
        inputs_BT[row, : len(each.ids) - 1 - shared] = each.ids[shared:-1]
        targets_BT[row, each.begin - 1 - shared : len(each.ids) - 1 - shared] = each.ids[
            each.begin :
        ]
    ids_BT = torch.from_numpy(inputs_BT).to(device)
    most = max(group.num_shared for group in batch)
    if most == 0:
        hidden_BTD = model.hidden(ids_BT)
    else:
        cache = StaticCache(model.config, len(batch), most + rest, dtype, device)
        prefixes = [group.sequences[0].ids[: group.num_shared] for group in batch]
        padded = [[*prefix, *[0] * (most - len(prefix))] for prefix in prefixes]
        model.hidden(torch.tensor(padded, device=device), cache.positions(most), cache)
        cache.truncate([len(prefix) for prefix in prefixes])
        owners = [number for number, group in enumerate(batch) for _ in group.sequences]
        forked = cache.fork(owners)
        # Padding behind a short answer may lie where the model has no position.
        positions_BT = forked.positions(rest).clamp(max=model.config.max_seq_len - 1)
        hidden_BTD = model.hidden(ids_BT, positions_BT, forked)
    places_N = torch.from_numpy(np.flatnonzero(targets_BT >= 0)).to(device)
    targets_N = torch.from_numpy(targets_BT[targets_BT >= 0]).to(device)
    logprobs, greedy = token_logprobs(model, hidden_BTD.flatten(0, 1)[places_N], targets_N)
    borders = np.cumsum([len(each.ids) - each.begin for _, each in rows])[:-1]
    return [
        TokenScores(own, bool(is_greedy.all()))
        for own, is_greedy in zip(
            np.split(logprobs, borders), np.split(greedy, borders), strict=True
        )
    ]
