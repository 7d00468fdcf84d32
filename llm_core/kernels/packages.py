"""Tries what a package offers on this GPU once, before training relies on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from llm_core.config import ConfigError


@contextmanager
def trial(device: torch.device, needs: str, way_out: str) -> Iterator[None]:
    """Around trial calls of a package. Raises ConfigError `needs` (why they failed); `way_out`."""
    try:
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    # Compilers of kernels have errors of their own that derive from nothing narrower.
    except Exception as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{needs} ({why[0]}); {way_out}") from error
