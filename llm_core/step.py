"""One update from one global batch: forward and backward piece by piece → norm → clip → update.

The loss is the sum over all targets of the global batch divided by their count, whatever the layout and the size of
micro batches, so each target weighs the same. Nothing here waits for the device: what a step found stays there until
the trainer fetches the numbers of many steps at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_core.device import autocast
from llm_core.loss import count_targets, summed_loss
from llm_core.optim import clip_gradients
from llm_core.parallel.apply import last_micro_batch
from llm_core.parallel.ranks import Ranks
from llm_core.train_config import RunConfig


# B batch · T tokens
def train_step(
    model: nn.Module, optimizer: torch.optim.AdamW, batch: tuple[Tensor, Tensor], lr: float, config: RunConfig, ranks: Ranks
) -> Tensor:
    """Update the model once from (ids_BT, targets_BT); float64 [loss, gradient norm] on the device, the same on every rank."""
    ids_BT, targets_BT = (tensor.to(ranks.device, non_blocking=True) for tensor in batch)
    count = ranks.sum(count_targets(targets_BT)).clamp(min=1)
    loss = accumulate_gradients(model, ids_BT, targets_BT, count, config, ranks)
    norm = clip_gradients(model, config.optim.clip_norm)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return torch.stack([ranks.sum(loss), norm.double()])


def accumulate_gradients(
    model: nn.Module, ids_BT: Tensor, targets_BT: Tensor, count: Tensor, config: RunConfig, ranks: Ranks
) -> Tensor:
    """Add the gradient of the summed loss / `count` of this rank's rows, and give that loss as a float64 scalar.

    count: targets of the whole global batch; losses are divided before backward, so ranks only ever add.
    """
    size = config.train.micro_batch_sequences
    pieces = list(zip(ids_BT.split(size), targets_BT.split(size), strict=True))
    loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for i, (micro_ids_BT, micro_targets_BT) in enumerate(pieces):
        with last_micro_batch(model, i == len(pieces) - 1):
            with autocast(ranks.device, config.train.dtype, config.parallel.kind):
                micro_loss = summed_loss(model(micro_ids_BT), micro_targets_BT) / count
            micro_loss.backward()
        loss += micro_loss.detach()
    return loss
