"""Which device this process computes on, with how many threads and in which arithmetic."""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager

import torch

from llm_core.config import ConfigError
from llm_core.train_config import ParallelConfig


def pick_device(config: ParallelConfig, local_rank: int = 0) -> torch.device:
    """The device of one process. Raises ConfigError when there are fewer GPUs than processes."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if torch.cuda.device_count() < config.num_processes:
        raise ConfigError(
            f"num_processes ({config.num_processes}) needs as many GPUs, this machine shows {torch.cuda.device_count()}; "
            "set parallel.num_processes to that or parallel.device=cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def set_threads(config: ParallelConfig) -> int:
    """Fix the number of CPU threads, which decides the order of sums and so the last bits of a result."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = config.num_threads or max(1, cores // config.num_processes)
    torch.set_num_threads(num_threads)
    return num_threads


def autocast(device: torch.device, dtype: str, kind: str) -> AbstractContextManager[object]:
    """The arithmetic of forward: bfloat16 products over float32 weights. FSDP casts its own weights instead."""
    if dtype == "bf16" and kind != "fsdp":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
