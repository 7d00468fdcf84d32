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
    before = os.environ.get("TRITON_INTERPRET")
    if not ON_GPU:
        # Read where kernels are defined, those of Triton's own library among them; some versions
        # read it again where kernels run, so by hand it is set outside.
        os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton")
    module = importlib.import_module(f"{package}.{name}")
    if before is None:
        os.environ.pop("TRITON_INTERPRET", None)
    return module


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE)
