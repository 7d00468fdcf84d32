"""Cross-entropy of next tokens, as a sum with its count: means are taken once, over the whole global batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100
"""Target id of a position that is not predicted."""


# B batch · T tokens · V vocabulary
def summed_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Nats summed over the targets that count, in float32 or better."""
    return F.cross_entropy(_precise(logits_BTV).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED, reduction="sum")


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Nats of each target, losses_BT; 0 where the target is ignored."""
    losses = F.cross_entropy(_precise(logits_BTV).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view_as(targets_BT)


def count_targets(targets_BT: Tensor) -> Tensor:
    """How many targets count, as an int64 scalar."""
    return (targets_BT != IGNORED).sum()


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
