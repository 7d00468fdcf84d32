"""Computes what queries mix of a part of their keys, and joins the parts to the whole.

A part gives the values mixed by a softmax over its keys alone, and the logarithm of the sum of its
exponentials (lse). In the whole it weighs exp(lse of the part - lse of the whole) (Milakov and
Gimelshein 2018; Rabe and Staats 2021). Once the lse of the whole is known, gradients of parts need
nothing of each other and are added up (Dao 2023, algorithm 2).

| kernel | takes | scores |
|---|---|---|
| PLAIN | any mask, device and numbers | in float32 or better, some queries at a time |
| FLASH | plainly causal masks, 16-bit numbers on a CUDA device | never whole (Dao 2023) |

A query that may attend no key of a part has mixed 0 there and lse -inf: weight 0, in values and
gradients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from llm_core.compat import flash_backward, flash_forward
from llm_core.model.masks import AttentionMask, MaskRule
from llm_core.model.precision import HALF_DTYPES

# B rows · Q queries and K keys of a part · H heads · G key and value heads · R queries of a group's
# heads · D width of a head

MAX_SCORES = 1 << 24
"""Scores of PLAIN at a time, or of one query if more; backward has two more such tensors."""


@dataclass(frozen=True)
class PartMask:
    """Of a mask over whole rows: a run of queries and one of keys, by their columns.

    FLASH takes them if they are the same run, or the keys come first.
    """

    mask: AttentionMask
    queries: range
    keys: range

    @property
    def is_diagonal(self) -> bool:
        return self.queries == self.keys

    def allowed(self, some: slice, device: torch.device) -> Tensor | None:
        """allowed_B1QK of some queries; None: all keys. Made per layer, as rows may be long."""
        if self.mask.is_plainly_causal and self.keys[-1] <= self.queries[0]:
            return None
        queries = self.queries[some]
        query_Q1 = torch.arange(queries.start, queries.stop, device=device)[:, None]
        key_K = torch.arange(self.keys.start, self.keys.stop, device=device)
        rows = 1 if self.mask.documents_BK is None else len(self.mask.documents_BK)
        row_B111 = torch.arange(rows, device=device).view(-1, 1, 1, 1)
        allowed = self._rule(row_B111, row_B111, query_Q1, key_K)
        return allowed.expand(rows, 1, len(queries), len(self.keys))

    @property
    def _rule(self) -> MaskRule:
        name, made = ("rule",), self.mask.made
        if name not in made:
            made[name] = self.mask.rule()
        return cast(MaskRule, made[name])


@dataclass(frozen=True)
class Kernel:
    """Two passes over a part.

    attend: q_BHQD, k_BGKD, v_BGKD, mask → (mixed_BHQD, lse_BHQ), of this part alone. gradients:
    grad_BHQD, q_BHQD, k_BGKD, v_BGKD, mixed_BHQD and lse_BHQ of the whole, mask → gradients of q, k
    and v.
    """

    attend: Callable[[Tensor, Tensor, Tensor, PartMask], tuple[Tensor, Tensor]]
    gradients: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, PartMask], tuple[Tensor, Tensor, Tensor]
    ]


def merge(mixed_BHQD: Tensor, lse_BHQ: Tensor, more_BHQD: Tensor, more_lse_BHQ: Tensor) -> None:
    """Take another part into the first two, in place. Before any part they are 0 and -inf."""
    whole_BHQ = torch.logaddexp(lse_BHQ, more_lse_BHQ)
    finite_BHQ = _finite(whole_BHQ)
    mixed_BHQD.mul_((lse_BHQ - finite_BHQ).exp_()[..., None])
    mixed_BHQD.add_(more_BHQD * (more_lse_BHQ - finite_BHQ).exp_()[..., None])
    lse_BHQ.copy_(whole_BHQ)


def precise_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of scores, and of sums over parts."""
    return torch.promote_types(dtype, torch.float32)


def takes_flash(q_BHQD: Tensor, mask: AttentionMask) -> bool:
    """Whether FLASH can attend parts of this mask."""
    width = q_BHQD.shape[-1]
    fits = q_BHQD.dtype in HALF_DTYPES.values() and width % 8 == 0 and width <= 256
    return mask.is_plainly_causal and fits and q_BHQD.is_cuda and _has_flash(q_BHQD.device)


@functools.cache
def _has_flash(device: torch.device) -> bool:
    has_names = flash_forward is not None and flash_backward is not None
    return (
        has_names
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def _flash_attend(
    q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor, mask: PartMask
) -> tuple[Tensor, Tensor]:
    assert flash_forward is not None, "see takes_flash"
    q_BQHD, k_BKGD, v_BKGD = (x.transpose(1, 2) for x in (q_BHQD, k_BGKD, v_BGKD))
    sizes = q_BQHD.shape[1], k_BKGD.shape[1]
    mixed_BQHD, lse_BHQ, *_ = flash_forward(
        q_BQHD, k_BKGD, v_BKGD, None, None, *sizes, 0.0, mask.is_diagonal, False
    )
    return mixed_BQHD.transpose(1, 2), lse_BHQ


def _flash_gradients(
    grad_BHQD: Tensor,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    mixed_BHQD: Tensor,
    lse_BHQ: Tensor,
    mask: PartMask,
) -> tuple[Tensor, Tensor, Tensor]:
    assert flash_backward is not None, "see takes_flash"
    grad, q, k, v, mixed = (
        x.transpose(1, 2) for x in (grad_BHQD, q_BHQD, k_BGKD, v_BGKD, mixed_BHQD)
    )
    # The states of a generator, which is asked for dropout only.
    states = (torch.zeros(n, dtype=torch.uint64, device=q.device) for n in (2, 0))
    sizes = q.shape[1], k.shape[1]
    lse_BHQ = lse_BHQ.contiguous()  # the kernel asks for no strides of it
    found = flash_backward(
        grad, q, k, v, mixed, lse_BHQ, None, None, *sizes, 0.0, mask.is_diagonal, *states
    )
    dq, dk, dv = (x.transpose(1, 2) for x in found)
    return dq, dk, dv


def _plain_attend(
    q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor, mask: PartMask
) -> tuple[Tensor, Tensor]:
    precise, groups = precise_dtype(q_BHQD.dtype), k_BGKD.shape[1]
    k_BGKD, v_BGKD = k_BGKD.to(precise), v_BGKD.to(precise)
    mixed, lses = [], []
    for some in _tiles(q_BHQD, k_BGKD):
        q_BGRD = _by_group(q_BHQD[:, :, some].to(precise), groups)
        scores_BGRK = _scores(q_BGRD, k_BGKD, mask, some)
        lse_BGR1 = scores_BGRK.logsumexp(-1, keepdim=True)
        weights_BGRK = (scores_BGRK - _finite(lse_BGR1)).exp_()
        mixed.append(_by_head(_product(weights_BGRK, v_BGKD), q_BHQD.shape[1]))
        lses.append(_by_head(lse_BGR1, q_BHQD.shape[1]).squeeze(-1))
    return torch.cat(mixed, dim=2), torch.cat(lses, dim=2)


def _plain_gradients(
    grad_BHQD: Tensor,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    mixed_BHQD: Tensor,
    lse_BHQ: Tensor,
    mask: PartMask,
) -> tuple[Tensor, Tensor, Tensor]:
    precise, groups = precise_dtype(q_BHQD.dtype), k_BGKD.shape[1]
    scale = 1 / math.sqrt(q_BHQD.shape[-1])
    k_BGKD, v_BGKD = k_BGKD.to(precise), v_BGKD.to(precise)
    dq, dk_BGKD, dv_BGKD = [], torch.zeros_like(k_BGKD), torch.zeros_like(v_BGKD)
    for some in _tiles(q_BHQD, k_BGKD):
        q_BGRD, grad_BGRD, mixed_BGRD = (
            _by_group(x[:, :, some].to(precise), groups) for x in (q_BHQD, grad_BHQD, mixed_BHQD)
        )
        lse_BGR1 = _by_group(lse_BHQ[:, :, some, None], groups)
        weights_BGRK = (_scores(q_BGRD, k_BGKD, mask, some) - lse_BGR1).exp_()
        dv_BGKD += _product(weights_BGRK.mT, grad_BGRD)
        dweights_BGRK = _product(grad_BGRD, v_BGKD.mT)
        # Row sums of grad x mixed stand for those over all parts (Dao 2023, algorithm 2).
        dscores_BGRK = weights_BGRK.mul_(
            dweights_BGRK - (grad_BGRD * mixed_BGRD).sum(-1, keepdim=True)
        )
        dk_BGKD += _product(dscores_BGRK.mT, q_BGRD, scale)
        dq.append(_by_head(_product(dscores_BGRK, k_BGKD, scale), q_BHQD.shape[1]))
    return torch.cat(dq, dim=2), dk_BGKD, dv_BGKD


PLAIN = Kernel(_plain_attend, _plain_gradients)
FLASH = Kernel(_flash_attend, _flash_gradients)


def _tiles(q_BHQD: Tensor, k_BGKD: Tensor) -> Iterator[slice]:
    batch, heads, queries, _ = q_BHQD.shape
    size = max(1, MAX_SCORES // (batch * heads * k_BGKD.shape[2]))
    return (slice(begin, min(begin + size, queries)) for begin in range(0, queries, size))


def _scores(q_BGRD: Tensor, k_BGKD: Tensor, mask: PartMask, some: slice) -> Tensor:
    scores_BGRK = _product(q_BGRD, k_BGKD.mT, 1 / math.sqrt(q_BGRD.shape[-1]))
    allowed_B1QK = mask.allowed(some, q_BGRD.device)
    if allowed_B1QK is not None:
        of_heads = scores_BGRK.unflatten(2, (-1, allowed_B1QK.shape[2]))
        of_heads.masked_fill_(~allowed_B1QK[:, :, None], -math.inf)
    return scores_BGRK


def _product(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """scale · a @ b by another operation than layers use, whose products recomputing keeps."""
    zero = a.new_zeros(())
    return torch.baddbmm(zero, a.flatten(0, 1), b.flatten(0, 1), beta=0, alpha=scale).unflatten(
        0, a.shape[:2]
    )


def _by_group(x_BHQD: Tensor, groups: int) -> Tensor:
    return x_BHQD.unflatten(1, (groups, -1)).flatten(2, 3)


def _by_head(x_BGRD: Tensor, heads: int) -> Tensor:
    return x_BGRD.unflatten(2, (heads // x_BGRD.shape[1], -1)).flatten(1, 2)


def _finite(lse: Tensor) -> Tensor:
    """0 where there is no key, so that exp(-inf - lse) is 0 and no NaN."""
    return lse.masked_fill(lse == -math.inf, 0.0)
