"""One update from one global batch: forward and backward piece by piece → norm → clipped update, or none where it would do harm.

The loss is the sum over all targets of the global batch divided by their count, whatever the layout and the size of
micro batches, so each target weighs the same. Nothing here waits for the device: what a step found stays there until
the trainer fetches the numbers of many steps at once.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from llm_core.device import autocast
from llm_core.loss import count_targets
from llm_core.model.masks import restarting_positions
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.apply import last_micro_batch
from llm_core.parallel.gradients import finish_gradients, gradient_norm
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.train_config import RunConfig

Rows = dict[str, Tensor]
"""Keywords of the model that have a row for each row of ids."""


# B batch · T tokens · K tokens of whole rows, of which a context rank has T
def train_step(
    layout: Layout, optimizer: Optimizer, batch: tuple[Tensor, ...], lr: float, config: RunConfig, ranks: Ranks
) -> Tensor:
    """Update the model once, or skip a bad step; a `StepReport` as a tensor on the device, the same on every rank.

    batch: (ids_BK, targets_BK) of this data-parallel rank, and documents_BK where attention keeps them apart.
    """
    ids_BT, targets_BT, rows = place(batch, layout, ranks)
    count = ranks.sum_targets(count_targets(targets_BT)).clamp(min=1)
    scale = optimizer.loss_scale
    divisor = count if scale is None else count / scale
    loss = accumulate_gradients(layout, ids_BT, targets_BT, rows, divisor, config, ranks)
    loss, norm = agree(loss, gradient_norm(layout), ranks)
    if scale is not None:
        loss, norm = loss / scale, norm / scale
    report = optimizer.step(lr, loss, norm)
    optimizer.zero_grad()
    return report


def agree(loss: Tensor, norm: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """(summed loss, norm), alike to the bit on all ranks, so that they judge alike: a norm that is no number anywhere is none."""
    nothing = torch.zeros_like(loss)
    found = torch.stack([loss if ranks.counts_losses else nothing, norm.double() if ranks.is_first else nothing])
    broken = (~torch.isfinite(norm)).double()
    total, norm, broken = ranks.sum(torch.cat([found, broken[None]])).unbind()
    return total, torch.where(broken > 0, torch.inf, norm)


def place(batch: tuple[Tensor, ...], layout: Layout, ranks: Ranks) -> tuple[Tensor, Tensor, Rows]:
    """(ids_BT, targets_BT, rows) on the device of this rank: its slice of the tokens where a context has several."""
    ids_BT, targets_BT, *documents = (tensor.to(ranks.device, non_blocking=True) for tensor in batch)
    rows = {"documents_BK": documents[0]} if documents else {}
    if layout.context is not None:
        positions_BK = restarting_positions(documents[0]) if documents else None
        ids_BT, targets_BT, rows["positions_BT"] = layout.context.slice(ids_BT, targets_BT, positions_BK)
    return ids_BT, targets_BT, rows


def accumulate_gradients(
    layout: Layout, ids_BT: Tensor, targets_BT: Tensor, rows: Rows, count: Tensor, config: RunConfig, ranks: Ranks
) -> Tensor:
    """Add the gradient of the summed loss / `count` of this rank's rows, and give that loss as a float64 scalar.

    count: targets of the whole global batch; losses are divided before backward, so ranks only ever add.
    """
    size = config.train.micro_batch_sequences
    cast = partial(autocast, ranks.device, config.train.dtype, config.parallel)
    if layout.pipeline is not None:
        with cast():
            loss = layout.pipeline.accumulate_gradients(ids_BT, targets_BT, count, len(ids_BT) // size, **rows)
        finish_gradients(layout)
        return loss
    loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for begin in range(0, len(ids_BT), size):
        piece = slice(begin, begin + size)
        with last_micro_batch(layout.model, begin + size >= len(ids_BT)):
            with cast():
                nats, _ = layout.model(
                    ids_BT[piece], targets_BT=targets_BT[piece], **{name: value[piece] for name, value in rows.items()}
                )
            micro_loss = nats / count
            micro_loss.backward()
        loss += micro_loss.detach()
    finish_gradients(layout)
    return loss


def token_losses(layout: Layout, ids_BT: Tensor, targets_BT: Tensor, rows: Rows) -> Tensor | None:
    """Nats of each target, losses_BT; None on processes that do not see the head. Every process must call it."""
    if layout.pipeline is not None:
        return layout.pipeline.forward(ids_BT, targets_BT, **rows)
    losses_BT: Tensor = layout.model(ids_BT, targets_BT=targets_BT, **rows)[1]
    return losses_BT
