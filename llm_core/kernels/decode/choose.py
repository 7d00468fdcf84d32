"""Starts the kernel that chooses a token of every row and moves the rows on (`choose.cu`)."""

from __future__ import annotations

import torch
from torch import Tensor

from llm_core.kernels.decode.step import compile_kernel, source

# B rows · V vocabulary · K tokens told at most

THREADS = 1024
MAX_TOP_K = 2048
"""What the kernel has room to list; more than the vocabulary keeps all."""


class ChooseTokens:
    """The compiled kernel. Tensors are contiguous and on one device: float32 logits, temperatures
    and min_p, int64 top_k, seeds, choices, steps, ids and told, float64 top_p, int32 lengths and
    num_told."""

    def __init__(self, device: torch.device) -> None:
        text = source(["choose"], {"THREADS": THREADS, "MAX_LISTED": MAX_TOP_K})
        self.kernel = compile_kernel(text, "choose_tokens", device)

    def __call__(
        self,
        logits_BV: Tensor,
        temperature_B: Tensor,
        top_k_B: Tensor,
        top_p_B: Tensor,
        min_p_B: Tensor,
        seeds_B: Tensor,
        choices_B: Tensor,
        steps_B: Tensor,
        ids_B: Tensor,
        lengths_B: Tensor,
        told_BK: Tensor,
        num_told_B: Tensor,
    ) -> None:
        """Write each row's token behind those that it was told, -1 where its logits are not
        numbers, and add one to its steps and its length."""
        tensors = [
            logits_BV, temperature_B, top_k_B, top_p_B, min_p_B, seeds_B, choices_B, steps_B,
            ids_B, lengths_B, told_BK, num_told_B,
        ]  # fmt: skip
        assert all(tensor.is_contiguous() for tensor in tensors)
        self.kernel(
            grid=(len(ids_B), 1, 1),
            block=(THREADS, 1, 1),
            args=[*tensors, logits_BV.shape[1], told_BK.shape[1]],
            stream=torch.cuda.current_stream(logits_BV.device),
        )
