"""Runs products and exchanges of tensor ranks side by side: tokens are multiplied as they come, and
sent as they are made.

| layer | forward | backward |
|---|---|---|
| attention.qkv, ffn.gate_up, ffn.up | tokens are multiplied while others come | whole products beside whole exchanges |
| attention.out, ffn.down | sums travel on while addends are made | gradients are multiplied while others come |

A product of the plain path (llm_core.parallel.tensor) becomes one for the tokens of each process,
beside the exchange of the next (Wang et al. 2023, "Overlap communication with dependent computation
via decomposition"). In backward of the first row two products stand beside two exchanges and need
not be cut: inputs are gathered beside the gradient of the inputs, which is summed beside that of
the weight (as in Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication).

ring: pieces go from neighbour to neighbour, by any library of collectives. symmetric: torch's
symmetric memory, from which GPUs read each other's pieces, as over NVLink; copies then take no
multiprocessors from products.

Cost: one gather more in backward, beside a product, since of inputs that are gathered this process
keeps its own tokens only, an n-th of what the plain path keeps; products are n times shorter, so
tokens should be thousands. Sums are rounded on each process they pass. Under 16-bit autocast tokens
and their gradients travel in 16 bits, where the plain path sends some in float32. Left out:
embedding, head, and feed-forwards in tiles, whose exchanges are plain; compiled blocks break their
graph here.
"""  # noqa: E501

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, library

from llm_core.compat import (
    all_gather_single,
    needed_now,
    process_group_of,
    reduce_scatter_single,
    symmetric_products,
)
from llm_core.config import ConfigError
from llm_core.model.precision import product_dtype
from llm_core.parallel.degrees import TensorOverlap

# B rows · t tokens of this process · T of all processes · D inputs · N outputs · n processes.
# Exchanges take tokens first.


@dataclass(frozen=True, eq=False)
class Overlap:
    """The products of this process among those that share each layer."""

    group: dist.ProcessGroup
    kind: TensorOverlap

    @torch.compiler.disable
    def enter(self, x_BtD: Tensor, weight_ND: Tensor) -> Tensor:
        """out_BTN: all tokens times the outputs that this process has."""
        return self._multiply(_Enter, _gather_product, x_BtD, weight_ND)

    @torch.compiler.disable
    def leave(self, x_BTD: Tensor, weight_ND: Tensor) -> Tensor:
        """out_BtN: this process's tokens, summed over the inputs that each process has."""
        return self._multiply(_Leave, _product_sum, x_BTD, weight_ND)

    def _multiply(self, gradients: Any, product: Any, x_BTD: Tensor, weight_ND: Tensor) -> Tensor:
        # In the dtype of their product, as autocast would have them.
        x_BTD, weight_ND = (x.to(product_dtype(x)) for x in (x_BTD, weight_ND))
        # Transposed out here, so that no leaf comes in, of which a backward pass would not tell
        # whether it is needed.
        x_TBD, weight_DN = _tokens_first(x_BTD), weight_ND.t()
        # What backward needs is kept before the product is taken, so that recomputing ends before
        # that of the last layer.
        promised_TBN = gradients.apply(x_TBD, weight_DN, self)
        out_TBN = product(x_TBD.detach(), weight_DN.detach(), self.group.group_name, self.kind)
        return cast(Tensor, _Kept.apply(promised_TBN, out_TBN)).movedim(0, 1)


def check_access(kind: TensorOverlap, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raises ConfigError where processes must read each other's memory and cannot."""
    if kind != "symmetric":
        return
    if device.type != "cuda":
        why_not = f"this process computes on {device.type}"
    elif symmetric_products() is None:
        why_not = f"torch {torch.__version__} has no products over it"
    else:
        places: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(places, (socket.gethostname(), device.index), group=group)
        host, own = socket.gethostname(), device.index
        why_not = ", ".join(
            f"GPU {index} of {where} is out of reach of GPU {own} of {host}"
            for where, index in places
            if where != host or (index != own and not torch.cuda.can_device_access_peer(own, index))
        )
    if why_not:
        raise ConfigError(
            f"parallel.tp_overlap (symmetric) reads the memory of other GPUs, {why_not}; use"
            " parallel.tp_overlap=ring"
        )


def gather_product(
    x_tBD: Tensor, weight_DN: Tensor, group: dist.ProcessGroup, kind: TensorOverlap
) -> tuple[Tensor, Tensor]:
    """(x_TBD @ weight_DN, x_TBD), of tokens that lie on all processes."""
    if kind == "symmetric":
        # x is taken back even where nobody wants it: without it torch may gather by multicast, into
        # shared memory for all of x.
        with _as_given(x_tBD):
            x_TBD, (out_TBN,) = _symmetric(0)(x_tBD, [weight_DN], 0, group.group_name)
        return out_TBN, x_TBD
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    x_ntBD = x_tBD.new_empty(size, *x_tBD.shape)
    out_ntBN = x_tBD.new_empty(size, *x_tBD.shape[:-1], weight_DN.shape[1])
    x_ntBD[rank] = x_tBD
    for step in range(size):
        piece = (rank - step) % size
        coming = _pass_on(x_ntBD[piece], x_ntBD[piece - 1], group) if step + 1 < size else []
        torch.mm(x_ntBD[piece].flatten(0, 1), weight_DN, out=out_ntBN[piece].flatten(0, 1))
        for work in coming:
            work.wait()
    return out_ntBN.flatten(0, 1), x_ntBD.flatten(0, 1)


def product_sum(
    x_TBD: Tensor, weight_DN: Tensor, group: dist.ProcessGroup, kind: TensorOverlap
) -> Tensor:
    """out_tBN: x_TBD @ weight_DN summed over processes, the tokens of this one."""
    if kind == "symmetric":
        with _as_given(x_TBD):
            return cast(Tensor, _symmetric(1)(x_TBD, weight_DN, "sum", 0, group.group_name))
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    x_ntBD = x_TBD.unflatten(0, (size, -1))
    # Each sum starts on the process after its owner's and ends there.
    out = torch.mm(x_ntBD[rank - 1].flatten(0, 1), weight_DN)
    for step in range(1, size):
        addends, arrived = out, torch.empty_like(out)
        coming = _pass_on(addends, arrived, group)
        out = torch.mm(x_ntBD[(rank - 1 - step) % size].flatten(0, 1), weight_DN)
        for work in coming:
            work.wait()
        out += arrived
    return out.unflatten(0, x_ntBD.shape[1:-1])


def _as_given(x: Tensor) -> AbstractContextManager[object]:
    # CUDA's autocast would have torch's operation add up in float32, and give that back.
    return torch.autocast(x.device.type, enabled=False)


def _symmetric(number: int) -> Any:
    products = symmetric_products()
    assert products is not None, "check_access has refused it"
    return products[number]


def _pass_on(sent: Tensor, received: Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """One turn of the ring: to the next process, from the one before."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    sends = dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % size)
    receives = dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size)
    return dist.batch_isend_irecv([sends, receives])


# Operations of their own, so that selective recomputing (llm_core.memory.recompute) sees one
# product, not one for each process.
@library.custom_op(
    "textmill::gather_product",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, str group, str kind) -> Tensor",
)
def _gather_product(x: Tensor, weight: Tensor, group: str, kind: str) -> Tensor:
    return gather_product(x, weight, process_group_of(group), cast(TensorOverlap, kind))[0]


@library.custom_op(
    "textmill::product_sum",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, str group, str kind) -> Tensor",
)
def _product_sum(x: Tensor, weight: Tensor, group: str, kind: str) -> Tensor:
    return product_sum(x, weight, process_group_of(group), cast(TensorOverlap, kind))


class _Enter(torch.autograd.Function):
    """Gradients of a product of gathered tokens; forward only gives the product's shape."""

    @staticmethod
    def forward(ctx: Any, x_tBD: Tensor, weight_DN: Tensor, run: Overlap) -> Tensor:
        ctx.save_for_backward(x_tBD, weight_DN)
        ctx.run = run
        size = dist.get_world_size(run.group)
        # A shape without memory.
        return x_tBD.new_empty(()).expand(size * len(x_tBD), x_tBD.shape[1], weight_DN.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_tBD, weight_DN = ctx.saved_tensors
        dout_TBN, run = grads[0].contiguous(), ctx.run
        needs_x, needs_weight = needed_now(ctx)
        if not needs_weight:  # as under zero bubble, which comes back for it
            return product_sum(dout_TBN, weight_DN.t(), run.group, run.kind), None, None
        x_TBD = x_tBD.new_empty(dout_TBN.shape[0], *x_tBD.shape[1:])
        gathering = all_gather_single(x_TBD, x_tBD, group=run.group, async_op=True)
        if not needs_x:
            gathering.wait()
            return None, _weight_gradient(x_TBD, dout_TBN), None
        addends_TBD = dout_TBN @ weight_DN.t()
        gathering.wait()
        dx_tBD = torch.empty_like(x_tBD)
        summing = reduce_scatter_single(dx_tBD, addends_TBD, group=run.group, async_op=True)
        dweight_DN = _weight_gradient(x_TBD, dout_TBN)
        summing.wait()
        return dx_tBD, dweight_DN, None


class _Leave(torch.autograd.Function):
    """Gradients of a product whose sums are scattered; forward as above."""

    @staticmethod
    def forward(ctx: Any, x_TBD: Tensor, weight_DN: Tensor, run: Overlap) -> Tensor:
        ctx.save_for_backward(x_TBD, weight_DN)
        ctx.run = run
        size = dist.get_world_size(run.group)
        return x_TBD.new_empty(()).expand(len(x_TBD) // size, x_TBD.shape[1], weight_DN.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_TBD, weight_DN = ctx.saved_tensors
        dout_tBN, run = grads[0].contiguous(), ctx.run
        needs_x, needs_weight = needed_now(ctx)
        dx_TBD = None
        if needs_x:
            dx_TBD, dout_TBN = gather_product(dout_tBN, weight_DN.t(), run.group, run.kind)
        else:
            dout_TBN = dout_tBN.new_empty(*x_TBD.shape[:-1], dout_tBN.shape[-1])
            all_gather_single(dout_TBN, dout_tBN, group=run.group)
        return dx_TBD, _weight_gradient(x_TBD, dout_TBN) if needs_weight else None, None


class _Kept(torch.autograd.Function):
    """The product itself, in place of what was promised."""

    @staticmethod
    def forward(ctx: Any, promised: Tensor, out: Tensor) -> Tensor:
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _weight_gradient(x_TBD: Tensor, dout_TBN: Tensor) -> Tensor:
    """Of all tokens in one product, in the weight's own order in memory (outputs first)."""
    return (dout_TBN.flatten(0, 1).t() @ x_TBD.flatten(0, 1)).t()


def _tokens_first(x_BTD: Tensor) -> Tensor:
    return x_BTD.movedim(1, 0).contiguous()
