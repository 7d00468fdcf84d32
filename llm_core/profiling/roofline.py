"""Bounds the speed of a forward pass by the bytes that must be read and the FLOPs that must be
done, from the shape alone.

A decode step reads every matmul weight once (a tied head is the embedding; of an untied embedding
only the rows asked for) and the keys and values of every earlier token. FLOPs count 2 per
multiply-add; attention counts the causal half. Norms, activations and softmax are left out. Peaks
are measured on the machine, not taken from a data sheet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from llm_core.device import synchronize
from llm_core.model.config import ModelConfig

OVERHEAD_FACTOR = 3.0
"""A pass this many times slower than its limit is bound by neither bandwidth nor arithmetic."""


BF16_FLOPS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}
"""Stated dense peaks of bfloat16 products, by part of the card's name; the first match."""

BYTES_PER_S = {
    "B200": 8e12,
    "H200": 4.8e12,
    "H100 PCIe": 2.04e12,
    "H100 NVL": 3.94e12,
    "H100": 3.35e12,
    "A100": 2.039e12,
    "L40": 0.864e12,
    "L4": 0.3e12,
}
"""Stated memory bandwidths, by part of the card's name; the first match."""


@dataclass(frozen=True)
class Work:
    """What one forward pass cannot avoid."""

    num_bytes: int
    flops: int


@dataclass(frozen=True)
class Peaks:
    """What the device was seen to do: reading or copying a large array, multiplying large
    matrices of random numbers."""

    bytes_per_s: float
    flops_per_s: float


def kv_bytes_per_token(config: ModelConfig, bytes_per_number: int) -> int:
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * bytes_per_number


def int8_bytes_per_token(config: ModelConfig) -> int:
    """With 8 bits per number, and a scale of 4 bytes per token and head."""
    return 2 * config.num_layers * config.num_kv_heads * (config.head_dim + 4)


def cached_step(
    config: ModelConfig, batch: int, context_tokens: int, bytes_per_number: int
) -> Work:
    """One decode step of `batch` rows that attend `context_tokens` each, the new one included."""
    embedding_rows = 0 if config.tied_embeddings else batch * config.dim
    # Rows are sent to other experts, so that several read nearly all.
    read = config.matmul_parameters(all_experts=batch > 1)
    weights = (read + embedding_rows) * bytes_per_number
    cache = batch * context_tokens * kv_bytes_per_token(config, bytes_per_number)
    # A multiply-add per channel in scores, and one in values.
    attention = 4 * config.num_layers * config.attention_dim * context_tokens
    return Work(weights + cache, batch * (2 * config.matmul_parameters() + attention))


def full_pass(config: ModelConfig, batch: int, num_tokens: int, bytes_per_number: int) -> Work:
    """A causal pass with logits of the last token only: prefill, or a step without a cache."""
    embedding_rows = 0 if config.tied_embeddings else batch * num_tokens * config.dim
    head = config.vocab_size * config.dim
    # 4 FLOPs per channel of each of n (n + 1) / 2 pairs.
    attention = 2 * config.num_layers * config.attention_dim * num_tokens * (num_tokens + 1)
    flops = 2 * (config.matmul_parameters() - head) * num_tokens + 2 * head + attention
    read = config.matmul_parameters(all_experts=num_tokens > 1)
    return Work((read + embedding_rows) * bytes_per_number, batch * flops)


def limits(work: Work, elapsed_s: float, peaks: Peaks) -> dict[str, float | str]:
    """Shares of the measured peaks, and what binds the pass."""
    bandwidth_frac = work.num_bytes / elapsed_s / peaks.bytes_per_s
    compute_frac = work.flops / elapsed_s / peaks.flops_per_s
    bound = "bandwidth" if bandwidth_frac >= compute_frac else "compute"
    if max(bandwidth_frac, compute_frac) * OVERHEAD_FACTOR < 1:
        bound = "overhead"
    return {"mbu": round(bandwidth_frac, 4), "mfu": round(compute_frac, 4), "bound": bound}


def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Best of some repeats after a warm-up: noise may only lower a peak. Half a second on CPUs."""
    size = 8192 if device.type == "cuda" else 768
    # Random: products of equal numbers draw less power, and a GPU then runs at higher clocks.
    left = torch.randn(size, size, device=device).to(dtype)
    multiply_s = best_time(lambda: left @ left, device)
    return Peaks(measure_bandwidth(device, dtype), 2 * size**3 / multiply_s)


def measure_bandwidth(device: torch.device, dtype: torch.dtype) -> float:
    """Bytes per second of reading or of copying a large array, whichever is more; a copy counts
    what it reads and what it writes."""
    on_gpu = device.type == "cuda"
    # Enough passes that launching and synchronising take a negligible share of the time.
    passes = 20 if on_gpu else 1
    array = torch.ones(
        (1 << 30 if on_gpu else 1 << 26) // dtype.itemsize, dtype=dtype, device=device
    )
    copy = torch.empty_like(array)
    read_s = best_time(lambda: [array.sum() for _ in range(passes)], device)
    copy_s = best_time(lambda: [copy.copy_(array) for _ in range(passes)], device)
    return passes * array.nbytes / min(read_s, copy_s / 2)


def stated_peaks(device: torch.device) -> Peaks | None:
    """What the maker states of bfloat16 and memory; None for CPUs and unknown cards."""
    if device.type != "cuda":
        return None
    bytes_per_s, flops_per_s = (_stated(table, device) for table in (BYTES_PER_S, BF16_FLOPS))
    return Peaks(bytes_per_s, flops_per_s) if bytes_per_s and flops_per_s else None


def _stated(table: Mapping[str, float], device: torch.device) -> float:
    name = torch.cuda.get_device_name(device)
    return next((value for part, value in table.items() if part in name), 0.0)


def training_peak(device: torch.device, dtype: str) -> tuple[float, str]:
    """(FLOP/s of one device, "stated" for bfloat16 on cards we know, else "measured")."""
    if device.type == "cuda" and dtype != "fp32" and (stated := _stated(BF16_FLOPS, device)):
        return stated, "stated"
    size = 8192 if device.type == "cuda" else 384
    matrix = torch.randn(size, size, device=device)
    matrix = matrix if dtype == "fp32" else matrix.bfloat16()
    # Of the three layouts in forward and backward: CPUs without instructions for 16-bit numbers
    # differ by twenty times in them.
    products = (lambda: matrix @ matrix.T, lambda: matrix @ matrix, lambda: matrix.T @ matrix)
    return 2 * size**3 / min(
        best_time(product, device, repeats=3) for product in products
    ), "measured"


def best_time(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    times = np.empty(repeats)
    work()
    for repeat in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        times[repeat] = time.perf_counter() - started
    return float(times.min())
