"""Times what a step is made of: products by shape, attention, the loss, copies.

The least time of each counts: what disturbs a machine only adds. Several processes run each at the
same time, as they train, because they share caches and memory.
One thread of a CPU is timed by the processor time of its process, which other work on the core
does not stretch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from llm_core.device import synchronize
from llm_core.fingerprint import num_processors
from llm_core.model.config import ModelConfig
from llm_core.model.loss import token_losses
from llm_core.parallel.ranks import Ranks

SQUARE = {"cpu": 1024, "cuda": 8192}
"""Side of the product that stands for the peak."""
TURN_S = 0.02
"""Least time in which several processes run the same: a hundred times what parts their starts."""


@dataclass(frozen=True)
class Product:
    """x (tokens x inputs) times weights (outputs x inputs), and both of its gradients."""

    name: str
    tokens: int
    inputs: int
    outputs: int
    elapsed_s: float
    """Of the three products together."""

    @property
    def flops(self) -> int:
        return 6 * self.tokens * self.inputs * self.outputs

    @property
    def tflops(self) -> float:
        return self.flops / self.elapsed_s / 1e12


@dataclass(frozen=True)
class Stopwatch:
    """Times what runs on the device of a process until `budget_s` are over."""

    ranks: Ranks
    """All of them time the same, and begin each turn together."""
    budget_s: float = 0.4
    copied_bytes: int = 256 << 20
    """More than any cache of a processor holds."""

    @property
    def device(self) -> torch.device:
        return self.ranks.device

    @property
    def clock(self) -> Callable[[], float]:
        """What this process is timed by where it waits for no other."""
        on_one_thread = self.device.type == "cpu" and torch.get_num_threads() == 1
        # Processes that share a core wait for it in training too.
        own_core = self.ranks.world <= num_processors()
        return time.process_time if on_one_thread and own_core else time.perf_counter

    def least_s(
        self,
        run: Callable[[], object],
        least_times: int = 3,
        warm_up: int = 1,
        clock: Callable[[], float] | None = None,
    ) -> float:
        """Of so many runs or more, after those that warm up. Collective over the processes."""
        clock = clock or self.clock
        found: list[float] = []
        runs_a_turn = 1
        if self.ranks.world > 1:
            run()
            runs_a_turn = math.ceil(TURN_S / self.mean(self._turn_s(run, 1, clock)))
        enough = False
        while not self.ranks.any(enough):
            found.append(self._turn_s(run, runs_a_turn, clock))
            timed = found[warm_up:]
            enough = len(timed) >= least_times and sum(timed) * runs_a_turn >= self.budget_s
        return min(found[warm_up:])

    def _turn_s(
        self, run: Callable[[], object], num_runs: int, clock: Callable[[], float]
    ) -> float:
        """Of one of so many runs."""
        synchronize(self.device)
        began = clock()
        for _ in range(num_runs):
            run()
        synchronize(self.device)
        return (clock() - began) / num_runs

    def mean(self, value: float) -> float:
        """Over the processes, once all are here."""
        total = self.ranks.sum(torch.tensor(value, device=self.device, dtype=torch.float64))
        return float(total) / self.ranks.world


def product_shapes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the five products of a model."""
    keys = 2 * model.num_kv_heads * model.head_dim
    into = 2 * model.ffn_dim if model.is_gated else model.ffn_dim
    return {
        "qkv": (model.dim, model.attention_dim + keys),
        "out": (model.attention_dim, model.dim),
        "gate_up": (model.dim, into),
        "down": (model.ffn_dim, model.dim),
        "head": (model.dim, model.vocab_size),
    }


def time_product(
    name: str, tokens: int, inputs: int, outputs: int, dtype: torch.dtype, watch: Stopwatch
) -> Product:
    device = watch.device
    x = torch.randn(tokens, inputs, device=device).to(dtype)
    weight = torch.randn(outputs, inputs, device=device).to(dtype)
    grad = torch.randn(tokens, outputs, device=device).to(dtype)
    runs: Sequence[Callable[[], object]] = (
        lambda: F.linear(x, weight),
        lambda: grad @ weight,
        lambda: grad.T @ x,
    )
    elapsed_s = sum(watch.least_s(run) for run in runs)
    return Product(name, tokens, inputs, outputs, elapsed_s)


def time_products(
    model: ModelConfig, tokens: int, dtype: torch.dtype, watch: Stopwatch
) -> list[Product]:
    """The five products of a model on so many tokens."""
    return [
        time_product(name, tokens, inputs, outputs, dtype, watch)
        for name, (inputs, outputs) in product_shapes(model).items()
    ]


def rate_of(products: Sequence[Product], num_layers: int) -> float:
    """FLOP/s over a model of so many blocks."""
    count = [1 if each.name == "head" else num_layers for each in products]
    flops = sum(n * each.flops for n, each in zip(count, products, strict=True))
    return flops / sum(n * each.elapsed_s for n, each in zip(count, products, strict=True))


def peak_rate(dtype: torch.dtype, watch: Stopwatch) -> float:
    """FLOP/s of one large product, forward."""
    side = SQUARE[watch.device.type]
    x, y = (torch.randn(side, side, device=watch.device).to(dtype) for _ in range(2))
    return 2 * side**3 / watch.least_s(lambda: x @ y)


def attention_rate(
    model: ModelConfig, rows: int, seq_len: int, dtype: torch.dtype, watch: Stopwatch
) -> float:
    """FLOP/s of causal attention, forward and backward, by the causal half."""

    def numbers(heads: int) -> torch.Tensor:
        shape = (rows, heads, seq_len, model.head_dim)
        return torch.randn(shape, device=watch.device).to(dtype).requires_grad_()

    q, k, v = (numbers(n) for n in (model.num_heads, model.num_kv_heads, model.num_kv_heads))
    grad = torch.randn_like(q)

    def run() -> None:
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=model.num_heads != model.num_kv_heads
        )
        out.backward(grad)

    return 6 * model.attention_dim * seq_len * rows * seq_len / watch.least_s(run)


def loss_seconds(tokens: int, vocab_size: int, dtype: torch.dtype, watch: Stopwatch) -> float:
    """Of one logit, forward and backward."""
    device = watch.device
    logits = torch.randn(1, tokens, vocab_size, device=device).to(dtype).requires_grad_()
    targets = torch.randint(vocab_size, (1, tokens), device=device)
    elapsed_s = watch.least_s(lambda: token_losses(logits, targets)[0].sum().backward())
    return elapsed_s / logits.numel()


def copy_rate(watch: Stopwatch) -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.ones(watch.copied_bytes // 4, device=watch.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / watch.least_s(lambda: target.copy_(source))
