"""Which device this process computes on, with how many threads and in which arithmetic."""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager

import torch

from llm_core.config import ConfigError
from llm_core.fingerprint import num_processors
from llm_core.model.precision import HALF_DTYPES
from llm_core.training.config import ParallelConfig


def pick_device(config: ParallelConfig, local_rank: int = 0) -> torch.device:
    """The device of one process. Raises ConfigError when its machine has fewer GPUs than processes
    of the run."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    wanted, there = processes_here(config), torch.cuda.device_count()
    if there < wanted:
        raise ConfigError(
            f"{wanted} processes on this machine need as many GPUs, it shows {there}; lower"
            " parallel.num_processes, start some on other machines, or set parallel.device=cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def set_threads(config: ParallelConfig) -> int:
    """Fix the number of CPU threads, which decides the order of sums and so the last bits of a
    result."""
    num_threads = config.num_threads or max(1, num_processors() // processes_here(config))
    torch.set_num_threads(num_threads)
    return num_threads


def processes_here(config: ParallelConfig) -> int:
    """Processes of the run on this machine: those that torchrun names, or all where it says
    nothing."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.num_processes))


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """The arithmetic of forward: 16-bit products, whether weights come in float32 or, by FSDP, in
    16 bits."""
    if dtype in HALF_DTYPES:
        return torch.autocast(device.type, HALF_DTYPES[dtype])
    return contextlib.nullcontext()


def choose_device(name: str) -> torch.device:
    """Where inference runs: `auto` takes the first GPU where there is one. Raises ConfigError when
    none is there to take."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device (cuda) needs a CUDA GPU, and this process sees none; set device=auto"
        )
    return (
        torch.device("cuda", 0)
        if name != "cpu" and torch.cuda.is_available()
        else torch.device("cpu")
    )


def synchronize(device: torch.device) -> None:
    """Wait for all work given to the device, so that a clock read next counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
