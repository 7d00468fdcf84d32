"""Refuses settings that grids of tensor ranks were not tested with. Standard library only."""

from __future__ import annotations

from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.config import ONE_PASS_KERNELS, ModelConfig
from llm_core.optim.config import OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.refusal import refuse_others
from llm_core.training.config import TrainConfig


def check_grid_settings(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig,
    optimizer: OptimizerKind,
) -> None:
    """Raises ConfigError for settings that grids of tensor ranks were not tested with."""
    kind = "lora" if isinstance(model, AdaptedModelConfig) else "none"
    recompute, kernels = memory.recompute, train.kernels
    values = (
        ("parallel.kind", parallel.kind, "ddp"),
        ("optim.kind", optimizer, "adamw" if optimizer in ("muon", "adafactor") else optimizer),
        ("adapter.kind", kind, "none"),
        ("model.norm", model.norm, "rms" if model.norm == "offset_rms" else model.norm),
        ("model.parallel_residual", model.parallel_residual, False),
        ("model.rotary_frac", model.rotary_frac, 1.0),
        ("model.experts", "set" if model.experts is not None else "null", "null"),
        ("memory.ffn_tiles", memory.ffn_tiles, 1),
        # A layer on a square is several products, of which it would keep some.
        ("memory.recompute", recompute, recompute if recompute != "selective" else "full"),
        ("train.float8", train.float8, False),
        ("train.neftune_alpha", train.neftune_alpha, 0.0),
        ("train.preference.kind", train.preference.kind, "none"),
        ("train.compile", train.compile, False),
        ("train.kernels", kernels, "torch" if kernels in ONE_PASS_KERNELS else kernels),
    )
    choice = f"parallel.tp_kind={parallel.tp_kind}"
    refuse_others(values, choice, ", or parallel.tp_kind=1d")
