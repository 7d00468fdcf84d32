"""One update from one global batch: forward and backward piece by piece → norm → clipped update, or
none where it would do harm.

The loss is the sum over all targets of the global batch divided by their count, whatever the layout
and the size of micro batches, so each target weighs the same. Nothing here waits for the device:
what a step found stays there until the trainer fetches the numbers of many steps at once.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.profiler import record_function

from llm_core.data.batch import IGNORED, Batch
from llm_core.data.sources import SourceSums
from llm_core.model.loss import count_targets
from llm_core.model.masks import restarting_positions
from llm_core.model.noise import token_keys
from llm_core.model.precision import autocast
from llm_core.parallel.apply import last_micro_batch
from llm_core.parallel.gradients import finish_gradients, gradient_norm
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.profiling.kinds import OPTIMIZER_MARK
from llm_core.training.expert_load import set_divisor, take_loads
from llm_core.training.preference.pairs import Pairs, has_targets, pairs_of
from llm_core.training.run_config import RunConfig

Rows = dict[str, Tensor]
"""Keywords of the model that have a row for each row of ids."""


class Updates(Protocol):
    """What a step asks of an optimizer, or of what sends gradients to one."""

    @property
    def loss_scale(self) -> Tensor | None: ...

    def step(
        self,
        lr: float,
        loss: Tensor,
        norm: Tensor,
        num_targets: Tensor | None = None,
        loads_LE: Tensor | None = None,
    ) -> Tensor: ...

    def zero_grad(self) -> None: ...


# B batch · T tokens · K tokens of whole rows, of which a context rank has T
def train_step(
    layout: Layout,
    optimizer: Updates,
    batch: Batch,
    lr: float,
    config: RunConfig,
    ranks: Ranks,
    num_sources: int = 0,
) -> Tensor:
    """Update the model once, or skip a bad step; a `StepReport` as a tensor on the device, the same
    on every rank.

    batch: whole rows of this data-parallel rank. With sources in it and `num_sources` of them,
    (nats, targets) of each follow the report, or the sums of its pairs of answers, and then the
    load of each expert of each layer.
    """
    ids_BT, targets_BT, rows = place(batch, layout, ranks)
    if config.train.neftune_alpha:
        rows["noise_BT"] = noise_keys(batch, layout, config.train.seed, ranks)
    by_source = pairs = None
    if config.train.learns_pairs:
        pairs = pairs_of(config.train.preference, rows.get("documents_BK"), batch.references_B2)
    if num_sources and batch.sources_BT is not None:
        by_source = SourceSums(own_columns(batch.sources_BT, layout, ranks), num_sources)
    own_targets = count_targets(targets_BT) if pairs is None else has_targets(targets_BT).sum()
    num_targets = ranks.sum_targets(own_targets)
    count, scale = num_targets.clamp(min=1), optimizer.loss_scale
    divisor = count if scale is None else count / scale
    sums_of = by_source, pairs
    loss = accumulate_gradients(layout, ids_BT, targets_BT, rows, divisor, config, ranks, *sums_of)
    loads_LE = take_loads(layout, len(ids_BT) // config.train.micro_batch_sequences)
    counted = [by_source.sums_S2] if by_source is not None else []
    counted += [pairs.sums_4] if pairs is not None else []
    counted += [loads_LE] if loads_LE is not None else []
    own = torch.cat([each.flatten() for each in counted]) if counted else None
    loss, norm, sums = agree(loss, gradient_norm(layout), ranks, own)
    if loads_LE is not None:
        loads_LE = sums[-loads_LE.numel() :].view_as(loads_LE)
    if scale is not None:
        loss, norm = loss / scale, norm / scale
    with record_function(OPTIMIZER_MARK):
        report = optimizer.step(lr, loss, norm, num_targets, loads_LE)
    optimizer.zero_grad()
    if layout.servers is not None:
        layout.servers.pull()
    return torch.cat([report, sums])


def agree(
    loss: Tensor, norm: Tensor, ranks: Ranks, sums: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(summed loss, norm, flat sums), alike to the bit on all ranks, so that they judge alike, in
    one exchange.

    A norm that is not a number on one rank is not a number on any. sums: float64 of what each token adds once; None:
    there are none.
    """  # noqa: E501
    own = loss[None] if sums is None else torch.cat([loss[None], sums.flatten()])
    own = own if ranks.counts_losses else torch.zeros_like(own)
    # Of the first rank alone: norms may differ in their last bits between ranks.
    of_first = norm.double() if ranks.is_first else torch.zeros_like(loss)
    broken = (~torch.isfinite(norm)).double()
    summed = ranks.sum(torch.cat([torch.stack([of_first, broken]), own]))
    norm, broken, total = summed[:3].unbind()
    return total, torch.where(broken > 0, torch.inf, norm), summed[3:]


def place(batch: Batch, layout: Layout, ranks: Ranks) -> tuple[Tensor, Tensor, Rows]:
    """(ids_BT, targets_BT, rows) on this rank's device, its slice of tokens in a context."""
    ids_BT, targets_BT = (
        tensor.to(ranks.device, non_blocking=True) for tensor in (batch.ids_BT, batch.targets_BT)
    )
    documents_BK = batch.documents_BT
    rows = {}
    if documents_BK is not None:
        rows["documents_BK"] = documents_BK = documents_BK.to(ranks.device, non_blocking=True)
    if layout.context is not None:
        positions_BK = restarting_positions(documents_BK) if documents_BK is not None else None
        ids_BT, targets_BT, rows["positions_BT"] = layout.context.slice(
            ids_BT, targets_BT, positions_BK
        )
    if layout.bare.config.experts is not None:
        # Padding and what no loss is taken of must not be balanced.
        rows["counted_BT"] = targets_BT != IGNORED
    return ids_BT, targets_BT, rows


def noise_keys(batch: Batch, layout: Layout, seed: int, ranks: Ranks) -> Tensor:
    """Keys of the noise on this process's tokens."""
    assert batch.numbers_B is not None, "rows do not say which of the run they are"
    num_tokens = batch.ids_BT.shape[1]
    columns_T = torch.arange(num_tokens, device=ranks.device)
    if layout.context is not None:
        columns_T = layout.context.columns(num_tokens, ranks.device)
    return token_keys(seed, batch.numbers_B.to(ranks.device, non_blocking=True), columns_T)


def own_columns(whole_BK: Tensor, layout: Layout, ranks: Ranks) -> Tensor:
    """On the device of this rank, the columns of the tokens that are its own."""
    own = whole_BK.to(ranks.device, non_blocking=True)
    if layout.context is None:
        return own
    return own[:, layout.context.columns(own.shape[1], ranks.device)]


def accumulate_gradients(
    layout: Layout,
    ids_BT: Tensor,
    targets_BT: Tensor,
    rows: Rows,
    count: Tensor,
    config: RunConfig,
    ranks: Ranks,
    by_source: SourceSums | None = None,
    pairs: Pairs | None = None,
) -> Tensor:
    """Add the gradient of the summed loss / `count` of this rank's rows, and give that loss, of
    nats alone, as a float64 scalar.

    count: targets of the whole global batch; losses are divided before backward, so ranks only ever
    add. by_source: gets the losses of this rank's tokens. pairs: what the loss is taken of, in
    place of tokens; `count` is theirs.
    """
    size = config.train.micro_batch_sequences
    set_divisor(layout, count)
    cast = partial(autocast, ranks.device, config.train.dtype)
    if layout.pipeline is not None:
        with cast():
            loss = layout.pipeline.accumulate_gradients(
                ids_BT, targets_BT, count, len(ids_BT) // size, by_source, **rows
            )
        finish_gradients(layout)
        return loss
    loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for begin in range(0, len(ids_BT), size):
        piece = slice(begin, begin + size)
        with last_micro_batch(layout, begin + size >= len(ids_BT)):
            with cast():
                learnt, losses_BT = layout.model(
                    ids_BT[piece],
                    targets_BT=targets_BT[piece],
                    **{name: value[piece] for name, value in rows.items()},
                )
                if pairs is not None:
                    losses_BT = pairs.losses(learnt, targets_BT[piece], piece)
                    learnt = losses_BT.sum()
            (learnt / count).backward()
        if by_source is not None:
            by_source.add(losses_BT, by_source.sources_BT[piece])
        loss += losses_BT.detach().sum() / count
    finish_gradients(layout)
    return loss


def token_losses(layout: Layout, ids_BT: Tensor, targets_BT: Tensor, rows: Rows) -> Tensor | None:
    """Nats of each target, losses_BT; None where the head is elsewhere. Collective."""
    if layout.pipeline is not None:
        return layout.pipeline.forward(ids_BT, targets_BT, **rows)
    losses_BT: Tensor = layout.model(ids_BT, targets_BT=targets_BT, **rows)[1]
    return losses_BT
