"""Cross-entropy of next tokens, as a sum with its count: means are taken once, over the whole global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100
"""Target id of a position that is not predicted."""


# B batch · T tokens · D model width · V vocabulary
class HeadLoss(Protocol):
    """The loss of a head, which may do without whole logits."""

    def __call__(self, head: nn.Linear, hidden_BTD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        """(nats summed over the targets that count, losses_BT of each without gradient)."""


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Nats of each target, losses_BT; 0 where the target is ignored."""
    losses = F.cross_entropy(precise(logits_BTV).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view_as(targets_BT)


def count_targets(targets_BT: Tensor) -> Tensor:
    """How many targets count, as an int64 scalar."""
    return (targets_BT != IGNORED).sum()


def precise(logits: Tensor) -> Tensor:
    """In float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


CrossEntropy = Callable[[Tensor, Tensor], Tensor]
"""(logits_BTV, targets_BT) → losses_BT."""


def whole_head_loss(
    head: nn.Linear, hidden_BTD: Tensor, targets_BT: Tensor, cross_entropy: CrossEntropy = token_losses
) -> tuple[Tensor, Tensor]:
    """Through logits of all tokens."""
    losses_BT = cross_entropy(head(hidden_BTD), targets_BT)
    return losses_BT.sum(), losses_BT.detach()
