"""Where inference runs: the first GPU, or the processor."""

from __future__ import annotations

import torch

from llm_core.config import ConfigError


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU where there is one. Raises ConfigError when a GPU is asked for and none is there."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device (cuda) needs a CUDA GPU, and this process sees none; set device=auto")
    return torch.device("cuda", 0) if name != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait for all work given to the device, so that a clock read next counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
