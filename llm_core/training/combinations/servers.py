"""Refuses settings that a parameter server does not serve. Standard library only."""

from __future__ import annotations

from llm_core.config import ConfigError
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.config import TrainConfig


def check_servers(optim: OptimConfig, train: TrainConfig, parallel: ParallelConfig) -> None:
    """Whether each server can update its weights alone. Raises ConfigError."""
    if parallel.kind != "server":
        return
    if optim.kind == "muon" or optim.state_in != "device" or train.dtype == "fp16":
        raise ConfigError(
            "parallel.kind (server) updates each weight on one process in main memory, without a"
            f" loss scale; optim.kind is {optim.kind}, optim.state_in {optim.state_in}, train.dtype"
            f" {train.dtype}; set optim=adamw, optim.state_in=device and train.dtype=bf16 or fp32"
        )
    guard = optim.guard
    if parallel.staleness and (train.ema or guard.rollback_skips or guard.spike_std):
        raise ConfigError(
            f"parallel.staleness ({parallel.staleness}) has workers at different steps, train.ema"
            f" is {train.ema}, optim.guard.rollback_skips {guard.rollback_skips} and"
            f" optim.guard.spike_std {guard.spike_std}; set them 0, or parallel.staleness=0"
        )
