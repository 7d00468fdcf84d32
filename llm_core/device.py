"""Picks the device that this process computes on, and its number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from llm_core.config import ConfigError
from llm_core.fingerprint import num_processors

SMALL_PARAMETERS = 8_000_000
"""Models up to this size decode faster on one CPU thread."""


def pick_device(name: str, num_processes: int, local_rank: int = 0) -> torch.device:
    """The device of one process of a run; name: auto, cpu or cuda. Raises ConfigError when its
    machine has fewer GPUs than processes of the run."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    wanted, there = processes_here(num_processes), torch.cuda.device_count()
    if there < wanted:
        raise ConfigError(
            f"{wanted} processes on this machine need as many GPUs, it shows {there}; lower"
            " parallel.num_processes, start some on other machines, or set parallel.device=cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def set_threads(num_threads: int, num_processes: int) -> int:
    """Fix the number of CPU threads, which decides the order of sums and so the last bits of a
    result; 0: the machine's processors over its processes of the run."""
    num_threads = num_threads or max(1, num_processors() // processes_here(num_processes))
    torch.set_num_threads(num_threads)
    return num_threads


@contextmanager
def decode_threads(num_parameters: int) -> Iterator[None]:
    """Sets one CPU thread for a small model until the block ends; larger models keep what is set.

    An operation of its decode step takes some 10 µs, which threads save less of than they need to
    synchronize. Where other work holds a core, each synchronization waits for the scheduler.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_parameters <= SMALL_PARAMETERS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processes_here(num_processes: int) -> int:
    """Processes of the run on this machine, as torchrun tells; all of them where it does not."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_processes))


def choose_device(name: str) -> torch.device:
    """Where inference runs; auto: the first GPU, if any. Raises ConfigError for a missing one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device (cuda) needs a CUDA GPU, and this process sees none; set device=auto"
        )
    on_gpu = name != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", 0) if on_gpu else torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait for all work given to the device, so that a clock read next counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def memory_bytes(device: torch.device) -> int | None:
    """The whole memory of a GPU; None for a CPU, whose memory other programs share."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).total_memory
