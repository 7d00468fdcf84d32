"""Proves a cache right layer by layer, where a whole model does not fit memory in float64.

Every block is copied to float64, one at a time, and given a random residual stream: once whole, and
once in pieces through the cache. Memory is one block of float64. All layers are checked; what only
their chain could show is left to the whole model (`llm_core.infer.equivalence`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from llm_core.infer.cache.rounding import RoundedKeys
from llm_core.infer.cache.rows import MakeCache, place_of, static_cache
from llm_core.infer.cache.static import CacheOverflow
from llm_core.infer.equivalence import PIECES, Check, cut, largest
from llm_core.model.transformer import Transformer

# B rows · L tokens of a row · T tokens of a pass · D width of the model

ROWS = 2


@torch.inference_mode()
def check_layers(
    model: Transformer,
    length: int,
    seed: int,
    make_cache: MakeCache = static_cache,
    int8: bool = False,
) -> list[Check]:
    """Of each layer, the largest |cached - full| of the residual stream behind it and the norm.

    int8: the cache rounds to 8 bits, and so does the full pass.
    """
    length = min(length, model.config.max_seq_len)
    generator = torch.Generator().manual_seed(seed)
    shape = ROWS, length, model.config.dim
    stream_BLD = torch.randn(shape, generator=generator, dtype=torch.float64)
    stream_BLD = stream_BLD.to(place_of(model)[1])
    checks = []
    for layer in range(model.config.num_layers):
        alone = _alone(model, layer)

        def differences(alone: Transformer = alone) -> Iterator[Tensor]:
            return _differences(alone, stream_BLD, make_cache, int8)

        checks.append(Check(f"layer_{layer}", largest(differences)))
    return checks


def _alone(model: Transformer, layer: int) -> Transformer:
    """A model of this block alone, in float64, which takes a residual stream for ids."""
    pattern = model.config.patterns[layer]
    # Kernels that know windows are checked as they are used.
    own = (pattern.window, ()) if pattern.sliding is not None else (0, (pattern,))
    config = replace(model.config, num_layers=1, window=own[0], full_layers=(), attention=own[1])
    with torch.device("meta"):
        alone = Transformer(config)
    block = copy.deepcopy(model.own_blocks[layer]).double()
    block.attention.layer = 0
    alone.blocks[0], alone.norm = block, copy.deepcopy(model.norm).double()
    # As in a stage of a pipeline, which has neither.
    for name in ("embedding", "head"):
        setattr(alone, name, None)
    return alone.eval()


def _differences(
    alone: Transformer, stream_BLD: Tensor, make_cache: MakeCache, int8: bool
) -> Iterator[Tensor]:
    rows, length, _ = stream_BLD.shape
    full_BLD = alone.hidden(stream_BLD, cache=RoundedKeys(alone.config) if int8 else None)
    cache = make_cache(alone, [1] * rows, length - 1)
    for begin, end in cut(length, PIECES):
        positions_BT = cache.positions(end - begin)
        hidden_BTD = alone.hidden(stream_BLD[:, begin:end], positions_BT, cache)
        yield (hidden_BTD - full_BLD[:, begin:end]).abs().max()
    try:
        cache.positions(1)
    except CacheOverflow:
        return
    yield torch.tensor(torch.inf)
