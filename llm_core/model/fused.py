"""Orders the rows of fused projections in runs that tensor parallelism can cut between.

| weight | rows |
|---|---|
| attention.qkv | for each key/value head: the query heads that share it, the key head, the value head |
| ffn.gate_up, ffn.shared.gate_up | for each of up to MAX_FFN_BLOCKS blocks of the inner width: its gate rows, its up rows |
| ffn.experts.gate_up | for each expert: its gate rows, its up rows |

So a process with every n-th of the key/value heads, or of the blocks, holds one run of rows, and
the whole weight is the same for every layout. Separate weights, as in Hugging Face files, keep
their order of rows.
"""  # noqa: E501

from __future__ import annotations

import torch
from torch import Tensor

from llm_core.model.config import ModelConfig


def split_qkv(config: ModelConfig, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(query, key, value) of a fused weight or bias, each with its heads one after another."""
    groups = fused.unflatten(0, (config.num_kv_heads, -1, config.head_dim))
    return groups[:, :-2].flatten(0, 2), groups[:, -2].flatten(0, 1), groups[:, -1].flatten(0, 1)


def join_qkv(config: ModelConfig, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The inverse of `split_qkv`."""
    groups = [part.unflatten(0, (config.num_kv_heads, -1)) for part in (query, key, value)]
    return torch.cat(groups, dim=1).flatten(0, 1)


def split_gate_up(config: ModelConfig, fused: Tensor) -> tuple[Tensor, Tensor]:
    """(gate, up) of a fused weight or bias."""
    return split_blocks(fused, config.ffn_block)


def join_gate_up(config: ModelConfig, gate: Tensor, up: Tensor) -> Tensor:
    """The inverse of `split_gate_up`."""
    return join_blocks(gate, up, config.ffn_block)


def split_blocks(fused: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(gate, up) of what is fused in blocks of so many channels."""
    blocks = fused.unflatten(0, (-1, 2, block))
    return blocks[:, 0].flatten(0, 1), blocks[:, 1].flatten(0, 1)


def join_blocks(gate: Tensor, up: Tensor, block: int) -> Tensor:
    """The inverse of `split_blocks`."""
    return torch.cat([part.unflatten(0, (-1, block)) for part in (gate, up)], dim=1).flatten(0, 1)
