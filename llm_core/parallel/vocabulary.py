"""Embedding and cross-entropy where each process holds some of the vocabulary. Parts may be
unequal; no id is padded.

The loss needs three numbers of all processes for each token: the largest logit, the sum of
exponentials, and the logit of the target (Shoeybi et al. 2019, section 3); logits are never whole
on one process. Its gradient needs none.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from llm_core.data.batch import IGNORED
from llm_core.model.loss import precise

# B rows · T tokens · V ids of this process · D model width


def embed(weight_VD: Tensor, ids_BT: Tensor, first_id: int) -> Tensor:
    """embedding_BTD of ids that are here, from first_id on; zeros for others, to be summed."""
    rows_BT, here_BT = _rows(ids_BT, first_id, len(weight_VD))
    return F.embedding(rows_BT, weight_VD) * here_BT[..., None].to(weight_VD.dtype)


def token_losses(
    logits_BTV: Tensor,
    targets_BT: Tensor,
    z_loss: float = 0.0,
    *,
    first_id: int,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """(learnt_BT, losses_BT) as `llm_core.model.loss.token_losses`. Equal everywhere."""
    found = _TokenLosses.apply(precise(logits_BTV), targets_BT, z_loss, first_id, group)
    return cast(tuple[Tensor, Tensor], found)


def _rows(ids: Tensor, first_id: int, num_here: int) -> tuple[Tensor, Tensor]:
    """(row of each id here, whether it is here); the row of an id elsewhere is some row."""
    rows = ids - first_id
    here = (rows >= 0) & (rows < num_here)
    return rows.clamp(0, num_here - 1), here


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_BTV: Tensor,
        targets_BT: Tensor,
        z_loss: float,
        first_id: int,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor]:
        largest_BT = logits_BTV.amax(dim=-1)
        dist.all_reduce(largest_BT, op=dist.ReduceOp.MAX, group=group)
        # By the same number on all processes, so that their exponentials add up.
        shifted_BTV = logits_BTV - largest_BT[..., None]
        rows_BT, here_BT = _rows(targets_BT, first_id, logits_BTV.shape[-1])
        target_BT = shifted_BTV.gather(-1, rows_BT[..., None]).squeeze(-1) * here_BT
        # In place, for logits are the largest tensor here; the target's is taken out before.
        exponentials_BTV = shifted_BTV.exp_()
        sums = torch.stack((exponentials_BTV.sum(dim=-1), target_BT))
        dist.all_reduce(sums, group=group)
        normalizer_BT, target_BT = sums
        counted_BT = targets_BT != IGNORED
        log_BT = normalizer_BT.log()
        losses_BT = (log_BT - target_BT) * counted_BT
        normalizers_BT = (log_BT + largest_BT) * counted_BT
        ctx.save_for_backward(
            exponentials_BTV.div_(normalizer_BT[..., None]),
            rows_BT,
            here_BT,
            counted_BT,
            1 + 2 * z_loss * normalizers_BT,
        )
        ctx.mark_non_differentiable(losses_BT)
        return losses_BT + z_loss * normalizers_BT.square(), losses_BT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        probabilities_BTV, rows_BT, here_BT, counted_BT, slopes_BT = ctx.saved_tensors
        grad_BT1 = (grads[0] * counted_BT)[..., None]
        grad_BTV = probabilities_BTV * (grad_BT1 * slopes_BT[..., None])
        grad_BTV.scatter_add_(-1, rows_BT[..., None], -grad_BT1 * here_BT[..., None])
        return grad_BTV, None, None, None, None
