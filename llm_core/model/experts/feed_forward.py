"""Sends each token to a few of many feed-forwards, and drops none (Shazeer et al., 2017).

Pairs of a token and an expert are sorted by expert, so each expert multiplies one run of rows:
grouped products on GPUs, one product after another elsewhere. Outputs return to the order of tokens
and are multiplied by their gates, in float32 or float64.

The gradient of the losses that balance load is added in the backward pass of the gates. So a block
keeps one output, and load is counted once where a forward pass is repeated.

The matrices of all experts are stacked by rows in one matrix, so rules for matrices hold for them
too: tiles of initial weights, cuts by rows, checkpoints.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.compat import grouped_mm
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.experts.pairs import (
    Mixed,
    MixedBackward,
    Summed,
    mix,
    mixed,
    mixed_backward,
    sort_pairs,
    spread,
    summed,
)
from llm_core.model.experts.router import Exchange, Router, as_it_is, route
from llm_core.model.feed_forward import Gated, SwiGLU, gated
from llm_core.model.precision import product_dtype

# B batch · T tokens · N tokens of all rows · E experts · K experts of a token · P pairs, N x K
# D model width · F inner width of an expert


class PairExchange(Protocol):
    """Sends rows to the processes that share experts among them, and outputs back."""

    @property
    def size(self) -> int:
        """Processes that share the experts."""

    def send(self, x_PD: Tensor, counts: Tensor) -> Any:
        """Begin to send rows in order of experts. counts: pairs of each, then others."""

    def answer(self, sent: Any, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The rows that `send` was given, through `compute(rows, counts)` where experts are."""


def joined(
    y_ND: Tensor, shared_ND: Tensor | None, gate_N1: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """What routed experts and the shared one give, in this dtype. gate_N1: logit of the gate of the
    shared one."""
    if shared_ND is not None:
        shared_ND = shared_ND.to(y_ND.dtype)
        y_ND = y_ND + (shared_ND if gate_N1 is None else shared_ND * gate_N1.sigmoid())
    return y_ND.to(dtype)


@dataclass(frozen=True)
class Passes:
    """The passes over rows around the products of one layer, as they are or compiled. Each is one
    function without state. Eager, it writes every result between; compiled, it reads rows once."""

    route: Callable[..., tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = route
    summed: Summed = summed
    mixed: Mixed = mixed
    mixed_backward: MixedBackward = mixed_backward
    joined: Callable[..., Tensor] = joined
    gated: Gated = gated
    """silu(gate) * up, of grouped products."""


@functools.cache
def compiled_passes() -> Passes:
    """The same for all layers, so that each is compiled once for a shape."""
    plain = {each.name: getattr(Passes(), each.name) for each in fields(Passes)}
    return Passes(**{name: torch.compile(each, dynamic=False) for name, each in plain.items()})


class Stacked(nn.Module):
    """One matrix of each expert of this process, stacked by rows.

    here: the part of the weight on this process; a layout may set it.
    """

    here: Exchange

    def __init__(self, number: int, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.here = rows, as_it_is
        self.weight = nn.Parameter(torch.empty(number * rows, columns))

    def matrices(self, dtype: torch.dtype) -> Tensor:
        """[experts, rows, columns]."""
        return self.here(self.weight).to(dtype).unflatten(0, (-1, self.rows))


class Experts(nn.Module):
    """SwiGLU feed-forwards; each has its gate's rows, then those of up.

    first: number of the first expert of this tensor rank, where such ranks share them. exchange:
    sends rows to the processes that share those of the rank; None: they are all here.
    """

    gated: Gated
    passes: Passes
    exchange: PairExchange | None

    def __init__(self, config: ModelConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        self.inner, self.first = config.ffn_dim, 0
        self.gated, self.passes = gated, Passes()
        self.number, self.exchange = experts.number, None
        self.gate_up = Stacked(experts.number, 2 * config.ffn_dim, config.dim)
        self.down = Stacked(experts.number, config.dim, config.ffn_dim)

    @property
    def stacked(self) -> tuple[Stacked, Stacked]:
        return self.gate_up, self.down

    def begin(self, x_ND: Tensor, chosen_NK: Tensor) -> Callable[[Tensor], Tensor]:
        """Sort pairs by expert and send them; what is returned ends it, from gates_NK to the sum
        for each token over the experts of this tensor rank, in the dtype of gates. What is computed
        in between overlaps with the exchange."""
        dtype, top_k = product_dtype(x_ND), chosen_NK.shape[1]
        into, out = self.gate_up.matrices(dtype), self.down.matrices(dtype)
        number = len(into) * (1 if self.exchange is None else self.exchange.size)
        own_P = chosen_NK.flatten() - self.first
        # Pairs of other ranks sort last, as those of one more expert, and add nothing.
        order = sort_pairs(torch.where((own_P >= 0) & (own_P < number), own_P, number), number)
        counts, passes = order.counts, self.passes
        x_PD = spread(x_ND.to(dtype), order, top_k, passes.summed)
        sent = None if self.exchange is None else self.exchange.send(x_PD, counts)

        def end(gates_NK: Tensor) -> Tensor:
            if self.exchange is None:
                y_PD = self._products(x_PD, into, out, counts, number < self.number)
            else:
                y_PD = self.exchange.answer(
                    sent, lambda x_SD, come: self._products(x_SD, into, out, come, False)
                )
            return mix(y_PD, gates_NK, order, passes.mixed, passes.mixed_backward)

        return end

    def _products(
        self, x_PD: Tensor, into: Tensor, out: Tensor, counts: Tensor, has_others: bool
    ) -> Tensor:
        """Outputs of pairs, in order of experts. counts: pairs of each, then others, if there are
        any."""
        if takes_grouped(x_PD, self.inner):
            ends = counts[:-1].cumsum(0)
            own = _own_rows(len(x_PD), ends[-1]) if has_others else as_it_is
            ends = ends.to(torch.int32)
            # One expert after another has runs of any length, each of which would be compiled.
            silu = self.passes.gated if self.gated is gated else self.gated
            inner_P = silu(own(grouped_mm(own(x_PD), into.mT, ends)), self.inner)
            return own(grouped_mm(inner_P, out.mT, ends))
        # Experts without a token too, so that each has a gradient.
        runs = x_PD.split(counts.tolist())
        found = [
            F.linear(self.gated(F.linear(run, one), self.inner), other)
            for run, one, other in zip(runs, into.unbind(), out.unbind(), strict=False)
        ]
        return torch.cat([*found, runs[-1] * 0])


def _own_rows(num_pairs: int, end: Tensor) -> Exchange:
    """Sets rows behind the last expert to zero: grouped products leave them unwritten, in results
    and in gradients."""
    beyond_P1 = (torch.arange(num_pairs, device=end.device) >= end)[:, None]
    return lambda x: x.masked_fill(beyond_P1, 0)


def takes_grouped(x: Tensor, inner: int) -> bool:
    """Whether the grouped product of torch takes these rows: bfloat16 on Hopper GPUs and later, and
    widths of whole 16 bytes."""
    return (
        x.device.type == "cuda"
        and x.dtype == torch.bfloat16
        and len(x) > 0
        and not (x.shape[1] % 8 or inner % 8)
        and torch.cuda.get_device_capability(x.device) >= (9, 0)
    )


class SparseFeedForward(nn.Module):
    """Routed experts, and a shared one where there is one, in place of a feed-forward.

    A layout may set `enter` and `leave`, between which this process computes its experts for all
    tokens; whether this process `adds_losses`; and `sum_context`, which sums counts of pairs over
    processes that hold other tokens of the same sequences. Training sets `divisor`, what the
    sum of losses is divided by.
    """

    def __init__(self, config: ModelConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        self.config = experts
        self.enter: Exchange = as_it_is
        self.leave: Exchange = as_it_is
        self.sum_context: Exchange = as_it_is
        self.adds_losses, self.divisor = True, torch.ones(())
        self._loads: list[Tensor] = []
        self.router = Router(config, experts)
        self.experts = Experts(config, experts)
        self.shared = SwiGLU(config, experts.shared_dim) if experts.shared_dim else None
        self.shared_gate = Stacked(1, 1, config.dim) if experts.shared_gate else None

    @property
    def passes(self) -> Passes:
        return self.experts.passes

    def compile_passes(self) -> None:
        """Compile what surrounds the products; what they need of the host keeps the layer itself
        from it."""
        self.experts.passes = compiled_passes()
        if self.shared is not None and self.shared.gated is gated:
            self.shared.gated = self.passes.gated

    def set_gated(self, gated: Gated) -> None:
        """Compute silu(gate) * up of all experts by this function."""
        self.experts.gated = gated
        if self.shared is not None:
            self.shared.gated = gated

    def forward(self, x_BTD: Tensor, counted_BT: Tensor | None = None) -> Tensor:
        """counted_BT: tokens that count in load and losses; None: neither is wanted."""
        x_BTD = self.enter(x_BTD)
        x_ND = x_BTD.flatten(0, -2)
        chosen_NK, gates_NK = self._route(x_ND, counted_BT)
        end = self.experts.begin(x_ND, chosen_NK)
        shared_ND = None if self.shared is None else self.shared(x_ND)
        gate_N1 = None
        if self.shared_gate is not None:
            gate_N1 = F.linear(x_ND, self.shared_gate.weight)
        y_ND = self.passes.joined(end(gates_NK), shared_ND, gate_N1, product_dtype(x_ND))
        return self.leave(y_ND.view(x_BTD.shape))

    def _route(self, x_ND: Tensor, counted_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """(chosen_NK, gates_NK), whose backward adds the losses and counts load."""
        weight, bias = self.router.weight, self.router.bias
        if not (torch.is_grad_enabled() and (x_ND.requires_grad or weight.requires_grad)):
            counted_BT = None
        # Exchanges are not compiled.
        chosen = self.passes.route if self.sum_context is as_it_is else route
        chosen_NK, gates_NK, loss, load_E = chosen(
            x_ND, weight, bias, self.config, counted_BT, self.adds_losses, self.sum_context
        )
        if load_E is not None:
            gates_NK = _Balanced.apply(gates_NK, loss, load_E, self)
        return chosen_NK, gates_NK

    def note_load(self, load_E: Tensor) -> None:
        """Record the pairs of each expert in one backward pass."""
        self._loads.append(load_E)

    def take_load(self, num_passes: int) -> Tensor | None:
        """float64 pairs of each expert in the last `num_passes` backward passes, of this process's
        tokens; earlier ones are forgotten. None: there was no pass."""
        found, self._loads = self._loads[-num_passes:], []
        return torch.stack(found).double().sum(0) if found else None


class _Balanced(torch.autograd.Function):
    """Returns gates unchanged; its backward adds the gradient of the losses and counts load."""

    @staticmethod
    def forward(
        ctx: Any, gates_NK: Tensor, loss: Tensor | None, load_E: Tensor, layer: SparseFeedForward
    ) -> Tensor:
        ctx.layer, ctx.dtype = layer, None if loss is None else loss.dtype
        ctx.save_for_backward(load_E)
        return gates_NK.view_as(gates_NK)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.layer.note_load(ctx.saved_tensors[0])
        of_loss = None
        if ctx.dtype is not None:
            of_loss = (1 / ctx.layer.divisor).to(grads[0].device, ctx.dtype)
        return grads[0], of_loss, None, None
