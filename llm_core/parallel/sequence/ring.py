"""Lets queries attend keys of whole rows that no process may hold: keys and values go round (Liu et
al. 2023).

Each process sends the slice of keys and values it has to the next and receives another from the one
before while its queries attend the slice at hand; the parts make the whole by
`llm_core.parallel.sequence.partial`. Backward sends keys and values round again, and behind them
their gradients, to which each process adds its own and which are home after a last hop.

A slice is one run of tokens, or two in balanced order: an early and a late chunk, so that all
processes have the same work at each turn (Dubey et al. 2024, section 3.3.2). Pairs of runs in which
columns alone tell that no query attends a key are left out; the slice is passed on all the same.
Which tokens are of one document only the device knows, and the host does not wait for it.

Cost per layer and process of n: two slices of keys and values at a time, and in backward three of
their gradients; sent are n - 1 slices in forward, in backward n - 1 and n of gradients, which are
in float32 or better. Left out: ending a round where a window makes its last turns needless.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.model.attend import Backend
from llm_core.model.masks import AttentionMask
from llm_core.model.precision import product_dtype
from llm_core.parallel.sequence.partial import (
    FLASH,
    PLAIN,
    Kernel,
    PartMask,
    merge,
    precise_dtype,
    takes_flash,
)

# B rows · T tokens of a process · H heads, G key and value heads · D width of a head

Part = tuple[slice, slice, PartMask]
"""Places of queries and keys in their slices, and which of them meet."""


@dataclass(frozen=True, eq=False)
class Ring:
    """This process among those that hold slices of the same rows, in the order of their ranks."""

    group: dist.ProcessGroup
    balanced: bool = False

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    @torch.compiler.disable
    def attend(
        self, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, mask: AttentionMask, backend: Backend
    ) -> Tensor:
        """As `attend` of whole rows in llm_core.model: mixed_BHTD of the queries of this process.
        The mask is of whole rows.

        backend: sdpa, or reference for explicit scores everywhere.
        """
        q_BHTD, k_BGTD, v_BGTD = (x.to(product_dtype(x)) for x in (q_BHTD, k_BGTD, v_BGTD))
        kernel = FLASH if backend == "sdpa" and takes_flash(q_BHTD, mask) else PLAIN
        return cast(Tensor, _RoundTrip.apply(q_BHTD, k_BGTD, v_BGTD, self, mask, kernel))

    def pass_on(self, x: Tensor) -> Callable[[], Tensor]:
        """Send it to the next process; the result waits for the like from the one before."""
        if self.size == 1:
            return lambda: x
        arriving = torch.empty_like(x)
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        exchange = [
            dist.P2POp(dist.isend, x, group=self.group, group_peer=to),
            dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=source),
        ]
        works = dist.batch_isend_irecv(exchange)

        def wait() -> Tensor:
            for work in works:
                work.wait()
            exchange.clear()  # not before, so that nothing else is written where a send still reads
            return arriving

        return wait

    def turns(self, kv_2BGTD: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(process, its keys and values) of all, this one first."""
        for turn in range(self.size):
            is_last = turn == self.size - 1
            coming = None if is_last else self.pass_on(kv_2BGTD)
            yield (self.rank - turn) % self.size, kv_2BGTD
            if coming is not None:
                kv_2BGTD = coming()

    def runs(self, rank: int, num_tokens: int) -> list[range]:
        """Columns of a process in rows of `num_tokens`, in its order."""
        chunks = (rank, 2 * self.size - 1 - rank) if self.balanced else (rank,)
        width = num_tokens // (len(chunks) * self.size)
        return [range(chunk * width, (chunk + 1) * width) for chunk in chunks]

    def parts(self, owner: int, num_tokens: int, mask: AttentionMask) -> Iterator[Part]:
        """Where queries of this process may attend keys of the owner."""
        for query_place, queries in _placed(self.runs(self.rank, num_tokens)):
            for key_place, keys in _placed(self.runs(owner, num_tokens)):
                if may_meet(mask, queries, keys):
                    yield query_place, key_place, PartMask(mask, queries, keys)


def may_meet(mask: AttentionMask, queries: range, keys: range) -> bool:
    """Whether some query may attend some key, as far as their columns tell."""
    if keys[0] > queries[-1]:
        return False
    reach = mask.pattern.reach
    if reach and queries[0] - keys[-1] >= reach:
        # Global tokens are the first of each document, and where documents begin is not known here.
        return mask.pattern.num_global > (0 if mask.documents_BK is not None else keys[0])
    return True


def _placed(runs: list[range]) -> Iterator[tuple[slice, range]]:
    begin = 0
    for run in runs:
        yield slice(begin, begin + len(run)), run
        begin += len(run)


class _RoundTrip(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BHTD: Tensor,
        k_BGTD: Tensor,
        v_BGTD: Tensor,
        ring: Ring,
        mask: AttentionMask,
        kernel: Kernel,
    ) -> Tensor:
        num_tokens = q_BHTD.shape[2] * ring.size
        mixed_BHTD = q_BHTD.new_zeros(q_BHTD.shape, dtype=precise_dtype(q_BHTD.dtype))
        # What `merge` begins with: no key so far, so weight 0.
        lse_BHT = mixed_BHTD.new_full(q_BHTD.shape[:-1], -math.inf)
        with torch.autocast(q_BHTD.device.type, enabled=False):
            for owner, (k, v) in ring.turns(torch.stack((k_BGTD, v_BGTD))):
                for at, of, part in ring.parts(owner, num_tokens, mask):
                    found = kernel.attend(q_BHTD[:, :, at], k[:, :, of], v[:, :, of], part)
                    merge(mixed_BHTD[:, :, at], lse_BHT[:, :, at], *found)
        mixed_BHTD = mixed_BHTD.to(q_BHTD.dtype)
        ctx.save_for_backward(q_BHTD, k_BGTD, v_BGTD, mixed_BHTD, lse_BHT)
        ctx.ring, ctx.mask, ctx.kernel = ring, mask, kernel
        return mixed_BHTD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_BHTD, k_BGTD, v_BGTD, mixed_BHTD, lse_BHT = ctx.saved_tensors
        ring, num_tokens, precise = ctx.ring, q_BHTD.shape[2] * ctx.ring.size, lse_BHT.dtype
        grad_BHTD = grads[0].contiguous()
        dq_BHTD = torch.zeros_like(q_BHTD, dtype=precise)
        arriving: Callable[[], Tensor] | None = None
        with torch.autocast(q_BHTD.device.type, enabled=False):
            for owner, (k, v) in ring.turns(torch.stack((k_BGTD, v_BGTD))):
                dkv_2BGTD = torch.zeros((2, *k.shape), dtype=precise, device=k.device)
                for at, of, part in ring.parts(owner, num_tokens, ctx.mask):
                    grad, q, mixed, lse = (
                        x[:, :, at] for x in (grad_BHTD, q_BHTD, mixed_BHTD, lse_BHT)
                    )
                    dq, dk, dv = ctx.kernel.gradients(
                        grad, q, k[:, :, of], v[:, :, of], mixed, lse, part
                    )
                    dq_BHTD[:, :, at] += dq
                    dkv_2BGTD[0][:, :, of] += dk
                    dkv_2BGTD[1][:, :, of] += dv
                if arriving is not None:
                    # Of the same owner: gradients travel one turn behind the keys they belong to.
                    dkv_2BGTD += arriving()
                arriving = ring.pass_on(dkv_2BGTD)
        assert arriving is not None, "a ring has a first turn"
        dk_BGTD, dv_BGTD = arriving()
        gradients = (x.to(q_BHTD.dtype) for x in (dq_BHTD, dk_BGTD, dv_BGTD))
        return *gradients, None, None, None
