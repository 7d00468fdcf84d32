"""Decides which heads, channels and ids of a model each tensor rank holds, and cuts them from the
tensors of Hugging Face files without reading the rest.

| tensor | cut along |
|---|---|
| q, k, v, gate, up | outputs: whole heads, runs of channels |
| o, down | inputs, so that outputs are sums over ranks |
| embedding, head | ids, in equal runs of which the last may be short |
| norms, positions, biases of sums | whole on every rank |

(Shoeybi et al. 2019.) Of fewer key/value heads than ranks, each is on several ranks, with other
query heads. A part is a model by itself, with fewer heads and channels: caches follow from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from llm_core.config import ConfigError
from llm_core.model.config import Family, ModelConfig

QUERY, KEY, CHANNEL, FUSED_HEAD = range(4)
CUTS = tuple(
    (re.compile(pattern + "$"), what, dim)
    for pattern, what, dim in (
        (r"self_attn\.q_proj\.(weight|bias)", QUERY, 0),
        (r"self_attn\.[kv]_proj\.(weight|bias)", KEY, 0),
        (r"self_attn\.o_proj\.weight", QUERY, 1),
        (r"mlp\.(gate|up)_proj\.(weight|bias)", CHANNEL, 0),
        (r"mlp\.down_proj\.weight", CHANNEL, 1),
        # GPT-2's matrices are transposed.
        (r"attn\.c_proj\.weight", QUERY, 0),
        (r"mlp\.c_fc\.(weight|bias)", CHANNEL, -1),
        (r"mlp\.c_proj\.weight", CHANNEL, 0),
        (r"attention\.query_key_value\.(weight|bias)", FUSED_HEAD, 0),
        (r"attention\.dense\.weight", QUERY, 1),
        (r"mlp\.dense_h_to_4h\.(weight|bias)", CHANNEL, 0),
        (r"mlp\.dense_4h_to_h\.weight", CHANNEL, 1),
    )
)
JOINT = re.compile(r"attn\.c_attn\.(weight|bias)$")
"""GPT-2's queries, keys and values, one after another along the last dim."""


@dataclass(frozen=True)
class ShareConfig(ModelConfig):
    """The shape of one rank's part, with the whole vocabulary."""

    whole_family: Family = "llama"

    @property
    def family(self) -> Family:
        return self.whole_family


@dataclass(frozen=True)
class Share:
    """What one tensor rank holds of a model."""

    rank: int
    num_ranks: int
    config: ShareConfig
    heads: range
    kv_heads: range
    channels: range
    ids: range

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a tensor by its Hugging Face name: a view, but for GPT-2's joint
        tensor. Embedding and head come back whole."""
        width = self.config.head_dim
        query, key = (_times(heads, width) for heads in (self.heads, self.kv_heads))
        if JOINT.search(name):
            parts = whole.unflatten(-1, (3, -1)).narrow(-1, query.start, len(query))
            return parts.flatten(-2)
        runs = {QUERY: query, KEY: key, CHANNEL: self.channels}
        runs[FUSED_HEAD] = _times(self.heads, 3 * width)  # GPT-NeoX: a head's query, key and value
        for pattern, what, dim in CUTS:
            if pattern.search(name):
                return whole.narrow(dim, runs[what].start, len(runs[what]))
        return whole


def share_of(config: ModelConfig, rank: int, num_ranks: int) -> Share:
    """Raises ConfigError where heads, channels or ids cannot be shared by so many ranks."""
    heads, groups = config.num_heads, config.num_kv_heads
    fits = [n for n in range(1, num_ranks + 1) if _why_not(config, n) is None]
    if (reason := _why_not(config, num_ranks)) is not None:
        raise ConfigError(
            f"tensor_parallel ({num_ranks}) does not fit the model: {reason}; try {fits[-1]}"
        )
    kv_heads = _run(groups, rank, num_ranks)
    if groups < num_ranks:
        kv_heads = range(rank * groups // num_ranks, rank * groups // num_ranks + 1)
    changes: dict[str, Any] = {
        "num_heads": heads // num_ranks,
        "num_kv_heads": len(kv_heads),
        "ffn_dim": config.ffn_dim // num_ranks,
        "own_head_dim": config.head_dim,
        "whole_family": config.family,
    }
    same = {field.name: getattr(config, field.name) for field in fields(ModelConfig)}
    return Share(
        rank=rank,
        num_ranks=num_ranks,
        config=ShareConfig(**(same | changes)),
        heads=_run(heads, rank, num_ranks),
        kv_heads=kv_heads,
        channels=_run(config.ffn_dim, rank, num_ranks),
        ids=_run(config.vocab_size, rank, num_ranks),
    )


def _why_not(config: ModelConfig, num_ranks: int) -> str | None:
    heads, groups, vocab = config.num_heads, config.num_kv_heads, config.vocab_size
    if config.experts is not None and num_ranks > 1:
        return "a model of experts is computed by one rank"
    if heads % num_ranks:
        return f"it has {heads} heads, of which each rank needs as many"
    if groups % num_ranks and num_ranks % groups:
        return f"its {groups} key/value heads neither divide among the ranks nor they among them"
    if config.ffn_dim % num_ranks:
        return f"its {config.ffn_dim} feed-forward channels must divide equally"
    if (num_ranks - 1) * -(-vocab // num_ranks) >= vocab:
        return f"its vocabulary of {vocab} leaves a rank without ids"
    return None


def _run(length: int, rank: int, num_ranks: int) -> range:
    """Equal runs, of which the last may be short."""
    each = -(-length // num_ranks)
    return range(min(rank * each, length), min((rank + 1) * each, length))


def _times(run: range, width: int) -> range:
    return range(run.start * width, run.stop * width)
