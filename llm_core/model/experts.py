"""Sends each token to a few of many feed-forwards, and drops none (Shazeer et al., 2017).

Pairs of a token and an expert are sorted by expert, so each expert multiplies one run of rows:
grouped products on GPUs, one product after another elsewhere. Outputs return to the order of tokens
and are multiplied by their gates, in float32 or float64.

Load is balanced by a loss of each sequence (DeepSeek-V3, section 2.1.2) or by a bias that no
gradient moves (Wang et al., 2024). Both are sums over sequences and tokens, so they do not depend
on how a batch is cut. The gradient of the losses is added in the backward pass of the gates. So a
block keeps one output, and load is counted once where a forward pass is repeated.

The matrices of all experts are stacked by rows in one matrix, so rules for matrices hold for them
too: tiles of initial weights, cuts by rows, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.compat import grouped_mm
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.feed_forward import Gated, SwiGLU, gated
from llm_core.model.loss import precise
from llm_core.model.precision import product_dtype

# B batch · T tokens · N tokens of all rows · E experts · K experts of a token · P pairs, N x K
# D model width · F inner width of an expert

Exchange = Callable[[Tensor], Tensor]


class PairExchange(Protocol):
    """Sends rows to the processes that share experts among them, and outputs back."""

    @property
    def size(self) -> int:
        """Processes that share the experts."""

    def send(self, x_PD: Tensor, counts: Tensor) -> Any:
        """Begin to send rows in order of experts. counts: pairs of each, then others."""

    def answer(self, sent: Any, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The rows that `send` was given, through `compute(rows, counts)` where experts are."""


ROUTER_BIAS = "ffn.router.bias"
"""End of the name of the bias that balances the load of a router's experts."""


def router_biases(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, bias) of each router that has one: float32 buffers without a gradient."""
    return (found for found in model.named_buffers() if found[0].endswith(ROUTER_BIAS))


class Router(nn.Module):
    """Chooses experts and their gates. `bias`, where there is one, affects the choice alone. Its
    dtype stays float32 whatever the model is cast to: in fewer bits its steps would be lost."""

    bias: Tensor | None

    def __init__(self, config: ModelConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        self.config = experts
        self.weight = nn.Parameter(torch.empty(experts.number, config.dim))
        bias = torch.zeros(experts.number, dtype=torch.float32) if experts.has_bias else None
        self.register_buffer("bias", bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        before = self.bias
        super()._apply(fn, recurse)
        if before is not None and self.bias is not None:
            has_numbers = not before.is_meta and not self.bias.is_meta
            self.bias = (before if has_numbers else self.bias).to(self.bias.device, torch.float32)
        return self

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(logits_NE, scores_NE, chosen_NK, gates_NK)."""
        # In 16 bits close scores are equal, and the choice between them is arbitrary.
        with torch.autocast(x_ND.device.type, enabled=False):
            logits_NE = F.linear(precise(x_ND), precise(self.weight).to(precise(x_ND).dtype))
        is_softmax = self.config.score == "softmax"
        scores_NE = logits_NE.softmax(dim=-1) if is_softmax else logits_NE.sigmoid()
        ranked_NE = scores_NE.detach() if self.bias is None else scores_NE.detach() + self.bias
        chosen_NK = ranked_NE.topk(self.config.top_k, dim=-1).indices
        gates_NK = scores_NE.gather(1, chosen_NK)
        if self.config.normalised:
            gates_NK = gates_NK / (gates_NK.sum(dim=-1, keepdim=True) + 1e-20)
        return logits_NE, scores_NE, chosen_NK, gates_NK * self.config.scale


class Stacked(nn.Module):
    """One matrix of each expert of this process, stacked by rows.

    here: the part of the weight on this process; a layout may set it.
    """

    here: Exchange

    def __init__(self, number: int, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.here = rows, _as_it_is
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
    exchange: PairExchange | None

    def __init__(self, config: ModelConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        self.inner, self.first, self.gated = config.ffn_dim, 0, gated
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
        own_P = torch.where((own_P >= 0) & (own_P < number), own_P, number)
        order_P = own_P.argsort(stable=True)
        inverse_P = order_P.argsort()
        counts = torch.zeros(number + 1, dtype=torch.int64, device=x_ND.device)
        counts.scatter_add_(0, own_P, torch.ones_like(own_P))
        x_PD = _Spread.apply(x_ND.to(dtype), order_P, inverse_P, top_k)
        sent = None if self.exchange is None else self.exchange.send(x_PD, counts)

        def end(gates_NK: Tensor) -> Tensor:
            if self.exchange is None:
                y_PD = self._products(x_PD, into, out, counts, number < self.number)
            else:
                y_PD = self.exchange.answer(
                    sent, lambda x_SD, come: self._products(x_SD, into, out, come, False)
                )
            y_NKD = Permuted.apply(y_PD, inverse_P, order_P).unflatten(0, (-1, top_k))
            return (y_NKD.to(gates_NK.dtype) * gates_NK[..., None]).sum(dim=1)

        return end

    def _products(
        self, x_PD: Tensor, into: Tensor, out: Tensor, counts: Tensor, has_others: bool
    ) -> Tensor:
        """Outputs of pairs, in order of experts. counts: pairs of each, then others, if there are
        any."""
        if takes_grouped(x_PD, self.inner):
            ends = counts[:-1].cumsum(0)
            own = _own_rows(len(x_PD), ends[-1]) if has_others else _as_it_is
            ends = ends.to(torch.int32)
            inner_P = self.gated(own(grouped_mm(own(x_PD), into.mT, ends)), self.inner)
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
        self.enter: Exchange = _as_it_is
        self.leave: Exchange = _as_it_is
        self.sum_context: Exchange = _as_it_is
        self.adds_losses, self.divisor = True, torch.ones(())
        self._loads: list[Tensor] = []
        self.router = Router(config, experts)
        self.experts = Experts(config, experts)
        self.shared = SwiGLU(config, experts.shared_dim) if experts.shared_dim else None
        self.shared_gate = Stacked(1, 1, config.dim) if experts.shared_gate else None

    def set_gated(self, gated: Gated) -> None:
        """Compute silu(gate) * up of all experts by this function."""
        self.experts.gated = gated
        if self.shared is not None:
            self.shared.gated = gated

    def forward(self, x_BTD: Tensor, counted_BT: Tensor | None = None) -> Tensor:
        """counted_BT: tokens that count in load and losses; None: neither is wanted."""
        x_BTD = self.enter(x_BTD)
        x_ND = x_BTD.flatten(0, -2)
        logits_NE, scores_NE, chosen_NK, gates_NK = self.router(x_ND)
        if counted_BT is not None and gates_NK.requires_grad:
            loss, load_E = self.losses(logits_NE, scores_NE, chosen_NK, counted_BT)
            gates_NK = _Balanced.apply(gates_NK, loss, load_E, self)
        end = self.experts.begin(x_ND, chosen_NK)
        shared_ND = None if self.shared is None else self.shared(x_ND).to(gates_NK.dtype)
        if shared_ND is not None and self.shared_gate is not None:
            shared_ND = shared_ND * F.linear(x_ND, self.shared_gate.weight).sigmoid()
        y_ND = end(gates_NK)
        if shared_ND is not None:
            y_ND = y_ND + shared_ND
        return self.leave(y_ND.to(product_dtype(x_ND)).view(x_BTD.shape))

    def losses(
        self, logits_NE: Tensor, scores_NE: Tensor, chosen_NK: Tensor, counted_BT: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """(sum of the balance loss and the z-loss, None where neither is added; load_E, pairs of
        each expert), of tokens that count.

        Balance: a sequence with c_i of its T k pairs at expert i adds T E sum_i (c_i / (T k)) P_i,
        with P_i the mean of scores that sum to 1. The factor T is there because backward divides by
        the number of tokens.
        """
        config, (rows, tokens) = self.config, counted_BT.shape
        hot_NE = torch.zeros_like(scores_NE).scatter_(1, chosen_NK, 1)
        counts_BE = (hot_NE * counted_BT.flatten()[:, None]).view(rows, tokens, -1).sum(1)
        loss = None
        if config.balance_loss and self.adds_losses:
            shares_NE = scores_NE / scores_NE.sum(dim=-1, keepdim=True)
            mass_BE = (shares_NE * counted_BT.flatten()[:, None]).view(rows, tokens, -1).sum(1)
            whole_BE = self.sum_context(counts_BE)
            pairs_B1 = whole_BE.sum(dim=1, keepdim=True).clamp(min=1)
            loss = config.balance_loss * config.number * (whole_BE / pairs_B1 * mass_BE).sum()
        if config.z_loss and self.adds_losses:
            normalizers_N = logits_NE.logsumexp(dim=-1) * counted_BT.flatten()
            z_loss = config.z_loss * normalizers_N.square().sum()
            loss = z_loss if loss is None else loss + z_loss
        return loss, counts_BE.sum(0)

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


class _Spread(torch.autograd.Function):
    """Rows of tokens → a row for each pair, in order. Gathers both ways: sums have one order."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order_P: Tensor, inverse_P: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(inverse_P)
        ctx.top_k = top_k
        return x_ND[order_P // top_k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (inverse_P,) = ctx.saved_tensors
        grad_ND = grads[0][inverse_P].unflatten(0, (-1, ctx.top_k)).sum(dim=1)
        return grad_ND, None, None, None


class Permuted(torch.autograd.Function):
    """Reorders rows; backward takes the inverse order."""

    @staticmethod
    def forward(ctx: Any, y_PD: Tensor, order_P: Tensor, inverse_P: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_P)
        return y_PD[order_P]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][ctx.saved_tensors[0]], None, None


def _as_it_is(x: Tensor) -> Tensor:
    return x
