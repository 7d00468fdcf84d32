"""Cross-entropy of next tokens, as a sum: its mean is taken over the whole global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from llm_core.compat import keeps_graph
from llm_core.data.batch import IGNORED


# B batch · T tokens · N tokens of all rows · D model width · V vocabulary
class HeadLoss(Protocol):
    """The loss of a head, which may do without whole logits."""

    def __call__(
        self, head: nn.Linear, hidden_BTD: Tensor, targets_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(what is learnt from, summed over the targets that count; losses_BT, nats of each without
        gradient)."""


def token_losses(
    logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Of each target, in float32 or better, 0 where it is ignored: (learnt_BT, losses_BT), what is
    learnt from and the nats in it, which have no gradient.

    z_loss: learnt is nats + z_loss x log² Z, with Z the sum of exponentials of the logits
    (Chowdhery et al., 2022, section 5).
    """
    logits_NV, targets_N = precise(logits_BTV).flatten(0, 1), targets_BT.flatten()
    # A compiler fuses the plain formula, which leaves it no tensor to reuse.
    losses = _plain_losses if torch.compiler.is_compiling() else _TokenLosses.apply
    learnt_N, losses_N = losses(logits_NV, targets_N, z_loss)
    return learnt_N.view_as(targets_BT), losses_N.detach().view_as(targets_BT)


def _plain_losses(logits_NV: Tensor, targets_N: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    losses_N = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED, reduction="none")
    if not z_loss:
        return losses_N, losses_N
    normalizers_N = logits_NV.logsumexp(dim=-1) * (targets_N != IGNORED)
    return losses_N + z_loss * normalizers_N.square(), losses_N


class _TokenLosses(torch.autograd.Function):
    """As `_plain_losses`, without the two more tensors as large as logits in its backward."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        logs_NV, slopes_N = logits_NV.log_softmax(dim=-1), None
        losses_N = F.nll_loss(logs_NV, targets_N, ignore_index=IGNORED, reduction="none")
        learnt_N = losses_N.clone()
        if z_loss:
            # What a logit has lost, whichever it is, is the logarithm of the normalizer.
            normalizers_N = (logits_NV[:, 0] - logs_NV[:, 0]) * (targets_N != IGNORED)
            learnt_N += z_loss * normalizers_N.square()
            slopes_N = 2 * z_loss * normalizers_N
        ctx.save_for_backward(logs_NV, targets_N, slopes_N)
        ctx.mark_non_differentiable(losses_N)
        return learnt_N, losses_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logs_NV, targets_N, slopes_N = ctx.saved_tensors
        counted_N = targets_N != IGNORED
        grad_N1 = (grads[0] * counted_N)[:, None]
        share_N1 = grad_N1 if slopes_N is None else grad_N1 * (1 + slopes_N[:, None])
        grad_NV = (logs_NV.exp() if keeps_graph() else logs_NV.exp_()).mul_(share_N1)
        grad_NV.scatter_add_(-1, (targets_N * counted_N)[:, None], -grad_N1)
        return grad_NV, None, None


def count_targets(targets_BT: Tensor) -> Tensor:
    """How many targets count, as an int64 scalar."""
    return (targets_BT != IGNORED).sum()


def precise(logits: Tensor) -> Tensor:
    """In float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


CrossEntropy = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(logits_BTV, targets_BT) → (learnt_BT, losses_BT), as `token_losses`."""


def whole_head_loss(
    head: nn.Linear,
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    cross_entropy: CrossEntropy = token_losses,
) -> tuple[Tensor, Tensor]:
    """Through logits of all tokens."""
    learnt_BT, losses_BT = cross_entropy(head(hidden_BTD), targets_BT)
    return learnt_BT.sum(), losses_BT


def each_head_loss(
    head: nn.Linear,
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    cross_entropy: CrossEntropy = token_losses,
) -> tuple[Tensor, Tensor]:
    """As `whole_head_loss`, with what is learnt of each token, for losses that are not its sum."""
    learnt_BT, losses_BT = cross_entropy(head(hidden_BTD), targets_BT)
    # FSDP hooks what a model gives, which must not be a view.
    return learnt_BT.clone(), losses_BT
