"""Refuses feed-forwards whose weights cannot be gathered tile by tile. Standard library only."""

from __future__ import annotations

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.config import TrainConfig


def check_gathered_tiles(
    model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig
) -> None:
    """Raises ConfigError where weights of feed-forwards cannot be gathered tile by tile."""
    values: tuple[tuple[str, object, object], ...] = (
        ("parallel.kind", parallel.kind, "fsdp"),
        ("parallel.tp", parallel.tp, 1),
        ("parallel.pp", parallel.pp, 1),
        ("memory.weights_in", memory.weights_in, "device"),
        ("train.gradient_bits", train.gradient_bits, 32),
        ("model.ffn_bias", model.ffn_bias, False),
        ("model.experts", model.experts, None),
    )
    for name, value, stands in values:
        if value != stands:
            raise ConfigError(
                f"memory.ffn_gather (tiles) needs {name}={stands}, it is {value}; set it so, or"
                " memory.ffn_gather=whole"
            )
    shards = parallel.num_processes
    if memory.ffn_tiles == 1 or model.dim % shards or model.ffn_blocks % shards:
        raise ConfigError(
            f"memory.ffn_gather (tiles) needs ffn_tiles above 1, it is {memory.ffn_tiles}, and"
            f" {shards} processes must divide model.dim ({model.dim}) and the"
            f" {model.ffn_blocks} blocks of ffn_dim; set memory.ffn_gather=whole"
        )
    if memory.ffn_tiles > model.ffn_blocks // shards:
        raise ConfigError(
            f"memory.ffn_tiles ({memory.ffn_tiles}) must be at most {model.ffn_blocks // shards}"
            f" for memory.ffn_gather=tiles: {shards} processes share {model.ffn_blocks} blocks of"
            " channels; lower it"
        )
