"""Kernels in Triton under test: on a GPU as they are; on a CPU by Triton's interpreter, where the
package is installed."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def kernels_of(name: str, package: str = "llm_core.kernels") -> Any:
    """The module of this name; skips the test where it cannot be had."""
    pytest.importorskip("triton")
    if not ON_GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are defined
    module = importlib.import_module(f"{package}.{name}")
    os.environ.pop("TRITON_INTERPRET", None)
    return module


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE)
