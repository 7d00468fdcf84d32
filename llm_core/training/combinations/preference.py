"""Refuses settings that do not go with training on pairs of answers."""

from __future__ import annotations

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.refusal import refuse_others
from llm_core.training.config import TrainConfig


def check_preference(
    model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig
) -> None:
    """Raises ConfigError where rows are cut, or the loss is taken in pieces: that of a pair needs
    both of its answers whole."""
    experts = "none" if model.experts is None else str(model.experts.number)
    values = (
        ("parallel.kind", parallel.kind, "ddp" if parallel.kind == "server" else parallel.kind),
        ("parallel.pp", parallel.pp, 1),
        ("parallel.cp", parallel.cp, 1),
        ("parallel.compress", parallel.compress, "none"),
        ("parallel.outer.kind", parallel.outer.kind, "none"),
        ("memory.loss_chunk_tokens", memory.loss_chunk_tokens, 0),
        ("train.z_loss", train.z_loss, 0.0),
        ("model.experts", experts, "none"),
    )
    refuse_others(values, "train.preference.kind=dpo")
