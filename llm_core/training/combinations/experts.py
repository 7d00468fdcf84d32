"""Refuses settings that need dense feed-forwards. Standard library only."""

from __future__ import annotations

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.refusal import refuse_others
from llm_core.training.config import TrainConfig


def check_experts(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig,
    optimizer: OptimizerKind,
) -> None:
    """Raises ConfigError for settings that need dense feed-forwards."""
    kind = "lora" if isinstance(model, AdaptedModelConfig) else "none"
    recompute, compress = memory.recompute, parallel.compress
    values = (
        ("adapter.kind", kind, "none"),
        ("optim.kind", optimizer, "adamw" if optimizer in ("adafactor", "lamb") else optimizer),
        ("parallel.kind", parallel.kind, "ddp" if parallel.kind == "server" else parallel.kind),
        ("parallel.compress", compress, compress if compress != "powersgd" else "int8"),
        ("parallel.tp_overlap", parallel.tp_overlap, "none"),
        ("memory.ffn_tiles", memory.ffn_tiles, 1),
        ("memory.recompute", recompute, recompute if recompute != "selective" else "full"),
        ("train.float8", train.float8, False),
        ("train.kernels", train.kernels, train.kernels if train.kernels != "quack" else "triton"),
    )
    refuse_others(values, "model.experts", ", or a dense model")
    if model.experts is not None and model.experts.bias_rate and parallel.outer.kind != "none":
        raise ConfigError(
            f"model.experts.bias_rate ({model.experts.bias_rate}) moves biases by the load of one"
            f" process, and parallel.outer.kind ({parallel.outer.kind}) has members that do not"
            " exchange them; set model.experts.bias_rate=0 and model.experts.balance_loss"
        )
    if parallel.ep > 1:
        apart = (
            ("memory.weights_in", memory.weights_in, "device"),
            ("train.gradient_bits", train.gradient_bits, 32),
        )
        choice = f"parallel.ep ({parallel.ep}), which keeps experts apart from what FSDP holds"
        refuse_others(apart, choice, ", or parallel.ep=1")
    if parallel.splits_backward:
        raise ConfigError(
            "model.experts counts load in one backward pass,"
            f" pp_schedule={parallel.pp_schedule} takes two; use the schedule 1f1b or interleaved"
        )
