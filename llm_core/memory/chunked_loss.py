"""Takes a loss whose logits would not fit: head, cross-entropy and their backward, some tokens at a
time.

Logits are the largest tensor of a step by far: tokens x vocabulary, several times over. Here the
forward pass takes the gradients of each chunk of tokens at once, so only the logits of one chunk
exist; what is kept for backward is the gradient of the residual stream, as large as that, and one
sum of the gradient of the head, in float32 or better. Backward only scales both. The scheme is that
of torchtitan's chunked loss and of Liger's fused linear cross-entropy (Hsu et al., 2024).

Cost: no more products than the whole path, each a chunk tall; below some hundred tokens they no
longer fill a device. The head's gradient is a sum over chunks, so its last bits depend on their
size. Left out: gradients of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from llm_core.compat import keeps_graph
from llm_core.memory.config import MemoryConfig
from llm_core.model.loss import CrossEntropy, HeadLoss, token_losses, whole_head_loss
from llm_core.model.precision import product_dtype

# B batch · T tokens · N tokens of all rows · D model width · V vocabulary


def head_loss(config: MemoryConfig, cross_entropy: CrossEntropy = token_losses) -> HeadLoss:
    """The loss of a head, whole or in chunks; cross_entropy may be of a part of the ids."""
    if config.loss_chunk_tokens:
        return ChunkedHeadLoss(config.loss_chunk_tokens, cross_entropy)
    return partial(whole_head_loss, cross_entropy=cross_entropy)


@dataclass(frozen=True)
class ChunkedHeadLoss:
    """(head, hidden_BTD, targets_BT) → (summed loss, losses_BT), `chunk_tokens` at a time."""

    chunk_tokens: int
    cross_entropy: CrossEntropy = token_losses

    @torch.compiler.disable
    def __call__(
        self, head: nn.Module, hidden_BTD: Tensor, targets_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
        if torch.is_grad_enabled():
            total, losses_N = _ChunkedLoss.apply(
                self, head, hidden_ND, targets_N, *head.parameters()
            )
        else:
            chunks = self.chunks(hidden_ND, targets_N)
            found = [self.losses(head, {}, *chunk) for chunk in chunks]
            learnt_N, losses_N = (torch.cat(pieces) for pieces in zip(*found, strict=True))
            total = learnt_N.sum()
        return total, losses_N.view_as(targets_BT)

    def chunks(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        return list(zip(*(tensor.split(self.chunk_tokens) for tensor in tensors), strict=True))

    def losses(
        self, head: nn.Module, weights: dict[str, Tensor], hidden_ND: Tensor, targets_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(learnt_N, losses_N) of one chunk; weights: what stands in for the head's own."""
        logits_1NV = functional_call(head, weights, (hidden_ND[None],))
        learnt_1N, losses_1N = self.cross_entropy(logits_1NV, targets_N[None])
        return learnt_1N[0], losses_1N[0]


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        run: ChunkedHeadLoss,
        head: nn.Module,
        hidden_ND: Tensor,
        targets_N: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        names = [name for name, _ in head.named_parameters()]
        working = dict(zip(names, working_copies(weights), strict=True))
        trained = [weight for weight in working.values() if weight.requires_grad]
        sums = [
            torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32))
            for w in weights
            if w.requires_grad
        ]
        gradient_ND, found = torch.empty_like(hidden_ND), []
        for hidden, targets, gradient in run.chunks(hidden_ND, targets_N, gradient_ND):
            with torch.enable_grad():
                hidden = hidden.detach().requires_grad_()
                learnt, losses = run.losses(head, working, hidden, targets)
                own, *others = torch.autograd.grad(learnt.sum(), (hidden, *trained))
            found.append((learnt.detach(), losses))
            gradient.copy_(own)
            for total, other in zip(sums, others, strict=True):
                total.add_(other)
        learnt_N, losses_N = (torch.cat(pieces) for pieces in zip(*found, strict=True))
        ctx.save_for_backward(gradient_ND, *sums)
        ctx.mark_non_differentiable(losses_N)
        return learnt_N.sum(), losses_N

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> tuple[Tensor | None, ...]:
        # Where nobody comes back for them, gradients are scaled in place: the head's is as large as
        # the head in float32.
        # `.data`, since changes of saved tensors are counted and refused.
        scale = Tensor.mul if keeps_graph() else Tensor.mul_
        gradient_ND, *sums = (scale(saved.data, factors[0]) for saved in ctx.saved_tensors)
        rest = iter(sums)
        of_weights = (next(rest) if needed else None for needed in ctx.needs_input_grad[4:])
        return None, None, gradient_ND, None, *of_weights


def working_copies(weights: Sequence[Tensor]) -> list[Tensor]:
    """Leaves in the dtype of their products, so that autocast casts each once and not per piece."""
    return [w.detach().to(product_dtype(w)).requires_grad_(w.requires_grad) for w in weights]
