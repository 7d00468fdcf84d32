"""Cross-entropy of next tokens, as a sum: its mean is taken over the whole global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

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
        """(nats summed over the targets that count, losses_BT of each without gradient)."""


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Nats of each target, losses_BT, in float32 or better; 0 where the target is ignored."""
    logits_NV, targets_N = precise(logits_BTV).flatten(0, 1), targets_BT.flatten()
    # A compiler fuses the plain formula, which leaves it no tensor to reuse.
    losses = _plain_losses if torch.compiler.is_compiling() else _TokenLosses.apply
    return cast(Tensor, losses(logits_NV, targets_N)).view_as(targets_BT)


def _plain_losses(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED, reduction="none")


class _TokenLosses(torch.autograd.Function):
    """As `_plain_losses`, without the two more tensors as large as logits in its backward."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        logs_NV = logits_NV.log_softmax(dim=-1)
        ctx.save_for_backward(logs_NV, targets_N)
        return F.nll_loss(logs_NV, targets_N, ignore_index=IGNORED, reduction="none")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logs_NV, targets_N = ctx.saved_tensors
        counted_N = targets_N != IGNORED
        grad_N1 = (grads[0] * counted_N)[:, None]
        grad_NV = (logs_NV.exp() if keeps_graph() else logs_NV.exp_()).mul_(grad_N1)
        grad_NV.scatter_add_(-1, (targets_N * counted_N)[:, None], -grad_N1)
        return grad_NV, None


def count_targets(targets_BT: Tensor) -> Tensor:
    """How many targets count, as an int64 scalar."""
    return (targets_BT != IGNORED).sum()


def precise(logits: Tensor) -> Tensor:
    """In float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


CrossEntropy = Callable[[Tensor, Tensor], Tensor]
"""(logits_BTV, targets_BT) → losses_BT."""


def whole_head_loss(
    head: nn.Linear,
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    cross_entropy: CrossEntropy = token_losses,
) -> tuple[Tensor, Tensor]:
    """Through logits of all tokens."""
    losses_BT = cross_entropy(head(hidden_BTD), targets_BT)
    return losses_BT.sum(), losses_BT.detach()
