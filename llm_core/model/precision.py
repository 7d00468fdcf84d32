"""Chooses the number formats of a run, and which parts of a model use 16 bits.

Products take 16 bits by autocast in every layout; under FSDP their weights come so already and are
not cast. Weights and optimizer state are float32 in every format.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By the name in `train.dtype`; others compute in the dtype of the weights."""


def stream_dtype(name: str) -> torch.dtype:
    """Of the residual stream in runs of this `train.dtype`, the same in every layout.

    bfloat16 reaches as far as float32, so the stream has it too: half the bytes in norms, sums and
    between processes. float16 ends at 65,504, which single channels of a trained stream come near
    (Sun et al., 2024, "Massive Activations"), and values have no scale that could be lowered: only
    products, whose inputs are normed, take it.
    """
    return torch.bfloat16 if name == "bf16" else torch.get_default_dtype()


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Around forward: 16-bit products, whether weights are float32 or, from FSDP, 16 bits."""
    if dtype in HALF_DTYPES:
        return torch.autocast(device.type, HALF_DTYPES[dtype])
    return contextlib.nullcontext()


def product_dtype(x: Tensor) -> torch.dtype:
    """Of products with x: under autocast its dtype, which float64 is never cast to."""
    kind = x.device.type
    is_cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if is_cast else x.dtype
