"""Generates several tokens per pass of a large model: cheap guesses, which one pass checks.

A draft proposes tokens; the model computes the logits behind all of them at once, and takes guesses
as long as they agree with it (Leviathan et al., 2023; Chen et al., 2023). Greedy answers are those
of plain decoding. A sampled guess of draft probability q is taken with probability min(1, p / q),
and the first that is not is replaced by a draw from max(0, p − q), so answers have the distribution
of plain decoding, though not its very tokens: random numbers are used otherwise.

Gains where guesses are good and passes of several tokens cost as much as passes of one: one request
at a time, or a few (`llm_core.infer.guessing`). Left out: penalties, which change the logits behind
every guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.infer.cache.rows import place_of, static_cache
from llm_core.infer.cache.static import StaticCache
from llm_core.infer.choice.choosing import Choosers, check_chosen, choose, kept_weights
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.choice.streams import uniforms
from llm_core.infer.requests import check_prompt
from llm_core.model.transformer import Transformer

# K guesses of a round · T tokens of a pass · V vocabulary

NUM_GUESSES = 4
GUESS, ACCEPT, CHOOSE = range(3)
"""What a random number of a place decides; each has one of its own."""


@dataclass(frozen=True)
class Speculated:
    """An answer, and how well it was guessed."""

    ids: list[int]
    num_passes: int
    """Passes of the model behind the prompt; plain decoding has one per token."""
    num_guesses: int
    num_taken: int


class Draft(Protocol):
    """Guesses what follows."""

    follows_many: bool
    """Whether several answers may be guessed in turn, at no more than the cost of each alone."""

    def propose(
        self, tokens: Sequence[int], count: int, params: SamplingParams
    ) -> tuple[list[int], Tensor | None]:
        """At most `count` guesses after these tokens, and the probabilities_KV that each was drawn
        from; None where each was certain."""


class NGramDraft:
    """Guesses what followed the last few tokens the last time they occurred."""

    follows_many = True

    def __init__(self, longest: int = 3) -> None:
        self.longest = longest

    def propose(
        self, tokens: Sequence[int], count: int, params: SamplingParams
    ) -> tuple[list[int], None]:
        tokens = list(tokens)
        for size in range(min(self.longest, len(tokens) - 1), 0, -1):
            last = tokens[-size:]
            for begin in range(len(tokens) - size - 1, -1, -1):
                if tokens[begin : begin + size] == last:
                    return tokens[begin + size : begin + size + count], None
        return [], None


class ModelDraft:
    """Guesses by a smaller model with the same tokens, which draws as the large one would."""

    follows_many = False  # its cache is that of one answer

    def __init__(self, model: Transformer, capacity_tokens: int) -> None:
        self.model = model
        self._cache = static_cache(model, [capacity_tokens], 0)
        self._seen: list[int] = []

    @torch.inference_mode()
    def propose(
        self, tokens: Sequence[int], count: int, params: SamplingParams
    ) -> tuple[list[int], Tensor | None]:
        count = min(count, self._cache.capacity - len(tokens) + 1)
        guesses: list[int] = []
        rows: list[Tensor] = []
        coming = self._forget_others(tokens)
        while len(guesses) < count:
            logits_1V = _logits(self.model, coming, self._cache)[-1:]
            self._seen += coming
            place = len(tokens) + len(guesses)
            guesses += _choose(logits_1V, params, place, GUESS)
            if params.temperature:
                rows.append(_probabilities(logits_1V, params))
            coming = guesses[-1:]
        return guesses, torch.cat(rows) if rows else None

    def _forget_others(self, tokens: Sequence[int]) -> list[int]:
        """The tokens to compute: those behind what the cache has in common with them."""
        same = 0
        # The last is computed again: what follows it is asked for.
        for ours, theirs in zip(self._seen, tokens[:-1], strict=False):
            if ours != theirs:
                break
            same += 1
        self._cache.truncate([same])
        self._seen = list(tokens[:same])
        return list(tokens[same:])


@torch.inference_mode()
def speculate(
    model: Transformer,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    max_new_tokens: int,
    draft: Draft,
    eos_ids: Sequence[int] = (),
    num_guesses: int = NUM_GUESSES,
) -> Iterator[Speculated]:
    """What each pass of the model adds to the answer.

    Raises ConfigError for what the model cannot answer and for parameters with penalties.
    """
    check_prompt(model.config, prompt_ids, max_new_tokens, "the prompt")
    if params.counts_tokens or params.min_new_tokens:
        raise ConfigError(
            "speculative decoding has no penalties, logit_bias or min_new_tokens; leave them out or"
            " decode plainly"
        )
    stops = {*eos_ids, *params.stop_ids}
    tokens, begin = list(prompt_ids), len(prompt_ids)
    cache = static_cache(model, [begin], max_new_tokens)
    if begin > 1:
        _hidden(model, tokens[:-1], cache)
    while (room := max_new_tokens - (len(tokens) - begin)) > 0:
        guesses, drawn_KV = draft.propose(tokens, min(num_guesses, room - 1), params)
        logits_TV = _logits(model, [tokens[-1], *guesses], cache)
        new = _check(logits_TV, guesses, drawn_KV, params, len(tokens))
        ended = next((place for place, token in enumerate(new) if token in stops), None)
        yield Speculated(new[:ended], 1, len(guesses), len(new) - 1)
        if ended is not None:
            return
        tokens += new
        cache.truncate([len(tokens) - 1])


def _check(
    logits_TV: Tensor,
    guesses: Sequence[int],
    drawn_KV: Tensor | None,
    params: SamplingParams,
    place: int,
) -> list[int]:
    """The guesses that are taken and one token more. place: of the first guess."""
    if params.temperature == 0:
        best = _choose(logits_TV, params, place, CHOOSE)
        count = next((k for k, guess in enumerate(guesses) if guess != best[k]), len(guesses))
        return [*guesses[:count], best[count]]
    wanted_TV = _probabilities(logits_TV, params)
    for k, guess in enumerate(guesses):
        wanted_V = wanted_TV[k]
        drawn = 1.0 if drawn_KV is None else float(drawn_KV[k, guess])
        if _uniform(params, place + k, ACCEPT) * drawn < float(wanted_V[guess]):
            continue
        left_V = wanted_V.clone()
        if drawn_KV is None:
            left_V[guess] = 0
        else:
            left_V = (left_V - drawn_KV[k]).clamp(min=0)
        return [*guesses[:k], _draw(left_V, _uniform(params, place + k, CHOOSE))]
    end = len(guesses)
    return [*guesses, _draw(wanted_TV[end], _uniform(params, place + end, CHOOSE))]


def _hidden(model: Transformer, ids: Sequence[int], cache: StaticCache) -> Tensor:
    ids_1T = torch.tensor([list(ids)], device=place_of(model)[1])
    return model.hidden(ids_1T, cache.positions(len(ids)), cache)[0]


def _logits(model: Transformer, ids: Sequence[int], cache: StaticCache) -> Tensor:
    return model.logits(_hidden(model, ids, cache))


def _choose(logits_TV: Tensor, params: SamplingParams, place: int, purpose: int) -> list[int]:
    rows, device = len(logits_TV), logits_TV.device
    places_T = torch.arange(place, place + rows, device=device)
    choosers = Choosers.of([params] * rows, [0] * rows, device)
    ids = choose(logits_TV, choosers, 3 * places_T + purpose).tolist()
    check_chosen(ids, logits_TV)
    return ids


def _probabilities(logits_TV: Tensor, params: SamplingParams) -> Tensor:
    """float64, of what the filters keep."""
    rows = len(logits_TV)
    choosers = Choosers.of([params] * rows, [0] * rows, logits_TV.device)
    check_chosen(choose(logits_TV, choosers, torch.zeros_like(choosers.seed_B)).tolist(), logits_TV)
    weight_TV = kept_weights(logits_TV.float(), choosers).double()
    return weight_TV / weight_TV.sum(-1, keepdim=True)


def _uniform(params: SamplingParams, place: int, purpose: int) -> float:
    seed, choice, step = torch.tensor([[params.seed], [0], [3 * place + purpose]])
    return float(uniforms(seed, choice, step))


def _draw(probabilities_V: Tensor, uniform: float) -> int:
    cumulative_V = probabilities_V.cumsum(0)
    return int(torch.searchsorted(cumulative_V, uniform * cumulative_V[-1], right=True))
