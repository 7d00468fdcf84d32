"""Four ranks in trouble: `python -m tests.support.distributed.troubles FOLDER` leaves what each
found in `rank-N.json` of the folder.

An overflow, a gradient that is not a number on one rank alone, batches that the run goes back past,
weights that are imported, a context rank without a target: under layouts that divide the work along
every axis. And no step waits for the device.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.data.batch import IGNORED
from llm_core.data.sources import NO_SOURCE
from llm_core.huggingface.names import Made
from llm_core.model.transformer import Transformer
from llm_core.optim.config import GuardConfig, LossScaleConfig
from llm_core.optim.guard import StepReport
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local
from llm_core.parallel.weights import whole_weights, write_weights
from llm_core.training import step as step_module
from llm_core.training.rollback import Rollback, event_rows
from llm_core.training.trainer import Trainer
from tests.support.distributed import exactness
from tests.support.distributed.cases import Case, layers_for, layout, layout_name
from tests.support.distributed.exactness import LR, compare, make_trainer, ranks_of
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.problem import ROWS, Problem
from tests.support.engine.waits import watched_runs

WORLD = 4
LAST = WORLD - 1
FSDP = layout(WORLD, "fsdp")
TENSOR = layout(WORLD, "ddp", tp=4)
V_SHAPED = layout(WORLD, "zero1", pp=2, pp_schedule="zero_bubble_v")
CONTEXT = layout(WORLD, "fsdp", cp=2)
ULYSSES = layout(WORLD, "ddp", cp=4, cp_kind="ulysses")
GRID = layout(WORLD, "zero1", pp=2, tp=2)

OVERFLOWING = LossScaleConfig(initial=2.0**20, hysteresis=1)
NUM_SCALED_STEPS = 6
GOING_BACK = GuardConfig(rollback_skips=2, rollback_window_steps=4, rollback_every_steps=2)
BROKEN_BATCHES = (2, 3)
"""Of the run that goes back: the losses of these are not numbers."""

Found = dict[str, Any]


def main() -> None:
    folder = Path(sys.argv[1])
    fork_ranks(WORLD, folder, lambda: run(folder))


def run(folder: Path) -> None:
    found: Found = {
        "overflow": {layout_name(p): overflow(p, folder) for p in (FSDP, TENSOR, V_SHAPED)},
        "broken": {layout_name(p): broken_rank(p, folder) for p in (FSDP, CONTEXT, GRID)},
        "rollback": {layout_name(p): go_back(p, folder) for p in (FSDP, V_SHAPED)},
        "imported": {layout_name(p): import_weights(p, folder) for p in (FSDP, TENSOR, V_SHAPED)},
        "no target": {layout_name(p): without_targets(p, folder) for p in (CONTEXT, ULYSSES)},
        "waits": {layout_name(p): watch(p, folder) for p in (FSDP, TENSOR, V_SHAPED, CONTEXT)},
        "waits if reading": watch(FSDP, folder, reads=True),
    }
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found), "utf-8")


def trainer_of(
    parallel: ParallelConfig, folder: Path, dtype: Literal["fp32", "fp16"] = "fp32", **optim: Any
) -> Trainer:
    """One with other settings of the optimizer."""
    problem = Problem(layers=layers_for(parallel), dtype=dtype)
    plain = exactness.optim_of
    exactness.optim_of = lambda problem: dataclasses.replace(plain(problem), **optim)
    try:
        micro = 1 if parallel.pp > 1 else ROWS // parallel.dp
        return make_trainer(problem, parallel, micro, ranks_of(parallel), folder)
    finally:
        exactness.optim_of = plain


def report_of(trainer: Trainer, step: int) -> StepReport:
    return StepReport(*trainer.train_step(step, LR)[: len(StepReport._fields)].tolist())


def overflow(parallel: ParallelConfig, folder: Path) -> list[tuple[float, float]]:
    """(reason to skip, loss scale) of each step from a scale that is far too large."""
    trainer = trainer_of(parallel, folder, "fp16", loss_scale=OVERFLOWING)
    reports = [report_of(trainer, step) for step in range(NUM_SCALED_STEPS)]
    return [(report.reason, report.loss_scale) for report in reports]


def broken_rank(parallel: ParallelConfig, folder: Path) -> tuple[float, bool]:
    """(reason to skip, whether weights or moments changed here) of a step whose gradient is broken
    on the last rank."""
    trainer = trainer_of(parallel, folder)
    trainer.train_step(0, LR)
    before = {name: tensor.clone() for name, tensor in own_state(trainer).items()}

    def spoil(layout: Layout, loss: Tensor) -> Tensor:
        if dist.get_rank() == LAST:
            gradient = next(
                weight.grad for weight in layout.model.parameters() if weight.grad is not None
            )
            local(gradient).mul_(float("nan"))
        return loss

    with after_backward(spoil):
        reason = report_of(trainer, 1).reason
    return reason, any(
        not torch.equal(tensor, before[name]) for name, tensor in own_state(trainer).items()
    )


def own_state(trainer: Trainer) -> dict[str, Tensor]:
    """What this rank has of weights and moments."""
    state = collect_state(trainer.layout, trainer.optimizer)
    return {
        name: local(tensor)
        for name, tensor in state.items()
        if name.startswith(("model.", "optimizer."))
    }


def go_back(parallel: ParallelConfig, folder: Path) -> Found:
    """What a run of four steps reads, and says of itself, that goes back past two batches."""
    trainer = trainer_of(parallel, folder / layout_name(parallel), guard=GOING_BACK)
    read: list[int] = []
    noted = lambda index: (read.append(index), trainer.batches(index))[1]  # type: ignore[func-returns-value]  # noqa: E731
    broken = lambda _, loss: loss * float("nan") if read[-1] in BROKEN_BATCHES else loss  # noqa: E731
    with (
        after_backward(broken),
        Checkpoints(folder / layout_name(parallel) / "points", trainer.ranks) as points,
    ):
        rollback = Rollback(GOING_BACK, points)
        dataclasses.replace(trainer, batches=noted, rollback=rollback).run(0)
    return {"read": read, "events": event_rows(trainer.optimizer)}


def import_weights(parallel: ParallelConfig, folder: Path) -> bool:
    """Whether whole weights that are written into a layout are those that come out of it again."""
    trainer = trainer_of(parallel, folder)
    generator = torch.Generator().manual_seed(5)
    single = Transformer(trainer.config.model).state_dict()
    given = {
        name: torch.randn(weight.shape, generator=generator) for name, weight in single.items()
    }
    if "head.weight" in given:
        given["head.weight"] = given["embedding.weight"]
    write_weights(trainer.layout, Made({name: given[name].__getitem__ for name in given}))
    found = whole_weights(trainer.layout, trainer.ranks)
    return all(torch.equal(given[name], weight) for name, weight in found.items()) and bool(
        found
    ) == (dist.get_rank() == 0)


def without_targets(parallel: ParallelConfig, folder: Path) -> dict[str, float]:
    """Differences from one process where the first half of the columns, all that some context ranks
    have, does not count."""
    plain = exactness.tokens_of

    def empty_columns(problem: Problem, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ids, targets, documents, sources = plain(problem, step)
        targets[:, : targets.shape[1] // 2] = IGNORED
        return ids, targets, documents, sources.masked_fill(targets == IGNORED, NO_SOURCE)

    exactness.tokens_of = empty_columns
    exactness.reference.cache_clear()
    try:
        return compare(Case(parallel, Problem(), ROWS // parallel.dp), folder)
    finally:
        exactness.tokens_of = plain
        exactness.reference.cache_clear()


def watch(parallel: ParallelConfig, folder: Path, reads: bool = False) -> list[str]:
    """Where a run of four steps waits for the device; reads: a place of its own is put into a step.

    Not in the very first: there the ranks of a pipeline tell each other, as objects, what shapes
    they send.
    """
    trainer = trainer_of(parallel, folder / "watched")
    batches = [trainer.batches(step) for step in range(trainer.config.train.num_steps)]
    trainer = dataclasses.replace(trainer, batches=batches.__getitem__)
    read = lambda _, loss: loss if loss < 1e9 else loss * 2  # noqa: E731
    plain = lambda _, loss: loss  # noqa: E731
    trainer.train_step(0, LR)
    noted: list[str] = []
    with (
        pytest.MonkeyPatch.context() as patch,
        watched_runs(patch, noted),
        after_backward(read if reads else plain),
    ):
        trainer.run(0)
    return noted


@contextmanager
def after_backward(change: Callable[[Layout, Tensor], Tensor]) -> Iterator[None]:
    """Let something happen once all gradients of a step are there; it gets the layout and the loss
    of this rank."""
    plain = step_module.accumulate_gradients
    step_module.accumulate_gradients = lambda layout, *arguments: change(
        layout, plain(layout, *arguments)
    )
    try:
        yield
    finally:
        step_module.accumulate_gradients = plain


if __name__ == "__main__":
    main()
