"""Text generation: one pass over the prompts (prefill), then one token per request and pass
(decode).

Prompts may differ in length; `StaticCache` says how they share a batch. A request's tokens depend
on its prompt, its parameters and its number in the list, never on its neighbours. Only the last
position pays for logits. Costs one pass per new token of the longest request; finished rows stay in
the batch. Not here: continuous batching, chunked prefill, prefix sharing, speculative decoding,
text (ids in, ids out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from llm_core.infer.cache import StaticCache
from llm_core.infer.sampling import SamplingParams, make_generator, sample
from llm_core.model.attention import KeyValueCache
from llm_core.model.transformer import Transformer

# B batch (requests) · T tokens of this pass · V vocabulary


class Cache(KeyValueCache, Protocol):
    """What the engine needs of a cache beyond what the model needs."""

    def positions(self, num_queries: int) -> Tensor:
        """positions_BT of the coming columns."""


MakeCache = Callable[[Transformer, Sequence[Sequence[int]], int], Cache]
"""(model, prompts, new tokens per prompt) -> an empty cache that holds them all."""


def static_cache(
    model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> StaticCache:
    """A cache for these prompts and their answers, left-padded to the longest prompt."""
    longest = max(map(len, prompts))
    weight = model.head.weight
    config = model.config
    return StaticCache(
        num_layers=config.num_layers,
        batch=len(prompts),
        kv_heads=config.num_kv_heads,
        capacity=longest + max_new_tokens,
        head_dim=config.head_dim,
        dtype=weight.dtype,
        device=weight.device,
        pad_tokens=[longest - len(prompt) for prompt in prompts],
    )


@torch.inference_mode()
def prefill(model: Transformer, prompts: Sequence[Sequence[int]], cache: Cache) -> Tensor:
    """Fill the cache with prompts; logits_BV of the next tokens. Raises CacheOverflow if full."""
    longest = max(map(len, prompts))
    ids_BT = torch.tensor(
        [[0] * (longest - len(p)) + list(p) for p in prompts], device=model.head.weight.device
    )
    return _last_logits(model, ids_BT, cache)


@torch.inference_mode()
def decode(
    model: Transformer,
    ids_B: Sequence[int] | Tensor,
    cache: Cache,
    last_position: int | None = None,
) -> Tensor:
    """Append one token to every row; logits_BV of the token that follows. Raises CacheOverflow
    where there is no room.

    last_position: tokens beyond it, which nobody may read, are given this position.
    """
    ids_BT = torch.as_tensor(ids_B, device=model.head.weight.device)[:, None]
    return _last_logits(model, ids_BT, cache, last_position)


def _last_logits(
    model: Transformer, ids_BT: Tensor, cache: Cache, last_position: int | None = None
) -> Tensor:
    positions_BT = cache.positions(ids_BT.shape[1])
    if last_position is not None:
        positions_BT = positions_BT.clamp(max=last_position)
    hidden_BTD = model.hidden(ids_BT, positions_BT, cache)
    return model.logits(hidden_BTD[:, -1:])[:, 0]


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    max_new_tokens: int | Sequence[int],
    eos_id: int | None,
    on_token: Callable[[int, int], None] | None = None,
    make_cache: MakeCache = static_cache,
) -> list[list[int]]:
    """The new tokens of each prompt, at most `max_new_tokens` (one limit for all, or one each), up
    to and without `eos_id`.

    params: one for all requests (request i then draws from stream (seed, i)), or one per request
    (each from stream (seed, 0)). eos_id: None goes on to `max_new_tokens` whatever comes. on_token:
    told (request, token id) as soon as a token is there. Raises ValueError for an empty prompt, an
    unknown id or more tokens than the model's max_seq_len, SamplingError for broken logits.
    """
    limits = (
        [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    )
    answers: list[list[int]] = [[] for _ in prompts]
    running = {request for request, limit in enumerate(limits) if limit > 0}
    if not running:
        return answers
    _check_prompts(model, prompts, limits)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    own_seeds = not isinstance(params, SamplingParams)
    generators = [make_generator(p, 0 if own_seeds else request) for request, p in enumerate(each)]
    cache = make_cache(model, prompts, max(limits))
    logits_BV = prefill(model, prompts, cache)
    while running:
        ids = sample(logits_BV, each, generators)
        for request in sorted(running):
            if ids[request] == eos_id:
                running.remove(request)
                continue
            answers[request].append(ids[request])
            if on_token is not None:
                on_token(request, ids[request])
            if len(answers[request]) == limits[request]:
                running.remove(request)
        if running:
            # A finished row goes on unread, also past the model's last position, where learned
            # positions have no row.
            logits_BV = decode(model, ids, cache, model.config.max_seq_len - 1)
    return answers


def _check_prompts(
    model: Transformer, prompts: Sequence[Sequence[int]], limits: Sequence[int]
) -> None:
    vocab_size, max_seq_len = model.config.vocab_size, model.config.max_seq_len
    for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        if not prompt:
            raise ValueError(f"prompt {number} is empty; begin it with the end-of-text id")
        for unknown in (
            token for token in (min(prompt), max(prompt)) if not 0 <= token < vocab_size
        ):
            raise ValueError(
                f"prompt {number} has token {unknown}, the model knows 0 to {vocab_size - 1};"
                " encode it again"
            )
        if len(prompt) + limit > max_seq_len:
            rule = f"and {limit} new ones are more than the model's max_seq_len ({max_seq_len})"
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens, {rule}; shorten it or generate fewer"
            )
