"""Four members that meet in a folder, against DDP and against plain arithmetic in one process:
`python -m tests.support.distributed.outer FOLDER` leaves the differences in `found.json` there."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.data.batch import IGNORED, Batch
from llm_core.optim.config import OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.outer import OuterConfig
from llm_core.training.outer.diloco import Outer
from llm_core.training.trainer import Trainer
from tests.support.distributed import exactness
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import (
    LR,
    SINGLE,
    differences,
    make_trainer,
    precision,
    ranks_of,
    tokens_of,
)
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.problem import ROWS, Problem

WORLD, STEPS = 4, 6


def main() -> None:
    folder = Path(sys.argv[1])
    fork_ranks(WORLD, folder, lambda: check(folder))


def check(folder: Path) -> None:
    found: dict[str, float] = {}
    with precision("fp64"):
        plain = OuterConfig("diloco", 1, WORLD, folder=folder / "sgd", lr=1.0, momentum=0.0)
        found["ddp"] = against(of_ddp(folder), member(plain, "sgd", folder))
        outer = OuterConfig("diloco", 2, WORLD, folder=folder / "adamw")
        found["plain"] = against(by_hand(outer, folder), member(outer, "adamw", folder))
        alone = OuterConfig(
            "diloco", 3, folder=folder / f"alone-{dist.get_rank()}", members=1, lr=1.0, momentum=0.0
        )
        found["alone"] = against(of_one(folder), member(alone, "adamw", folder, share=False))
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")


def trainer_of(kind: OptimizerKind, parallel: ParallelConfig, folder: Path) -> Trainer:
    """Without clipping, which is of the gradient of one member where members train alone."""
    plain = exactness.optim_of
    exactness.optim_of = lambda problem: dataclasses.replace(plain(problem), clip_norm=1e9)
    try:
        problem = Problem(tied=False, optim=kind)
        return make_trainer(problem, parallel, 1, ranks_of(parallel), folder)
    finally:
        exactness.optim_of = plain


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {
        f"parameter.{name}": weight.detach().clone()
        for name, weight in trainer.layout.bare.named_parameters()
    }


def against(expected: dict[str, Tensor], found: dict[str, Tensor]) -> float:
    return differences(expected, found)["parameter"]


def share_of(member: int, step: int) -> Batch:
    """Members have different numbers of targets, so their changes weigh differently."""
    rows = slice(member * ROWS // WORLD, (member + 1) * ROWS // WORLD)
    ids, targets, _, sources = (tensor[rows] for tensor in tokens_of(Problem(), step))
    return Batch(ids, targets, None, sources)


def of_ddp(folder: Path) -> dict[str, Tensor]:
    trainer = trainer_of("sgd", layout(WORLD, "ddp"), folder)
    for step in range(STEPS):
        trainer.train_step(step, LR)
    return weights_of(trainer)


def of_one(folder: Path) -> dict[str, Tensor]:
    trainer = trainer_of("adamw", SINGLE, folder)
    for step in range(STEPS):
        trainer.train_step(step, LR)
    return weights_of(trainer)


def member(
    config: OuterConfig, kind: OptimizerKind, folder: Path, share: bool = True
) -> dict[str, Tensor]:
    """The weights of this process as a member."""
    rank = dist.get_rank()
    config = dataclasses.replace(config, member=rank if share else 0)
    trainer = trainer_of(kind, SINGLE, folder)
    if share:
        trainer.batches = lambda step: share_of(rank, step)
    outer = trainer.outer = Outer(config, trainer.layout)
    with outer.attended(0) as start:
        assert start == 0
        for step in range(1, STEPS + 1):
            trainer.train_step(step - 1, LR)
            assert outer.after(step) == step
    return weights_of(trainer)


def by_hand(config: OuterConfig, folder: Path) -> dict[str, Tensor]:
    """Nesterov's step on the weighted mean, as torch's SGD takes it."""
    trainers = [trainer_of("adamw", SINGLE, folder) for _ in range(WORLD)]
    shared = weights_of(trainers[0])
    parameters = {name: torch.nn.Parameter(w.clone()) for name, w in shared.items()}
    outer = torch.optim.SGD(
        parameters.values(), lr=config.lr, momentum=config.momentum, nesterov=True
    )
    for first in range(0, STEPS, config.steps):
        weighed: dict[str, Any] = dict.fromkeys(shared, 0.0)
        total = 0
        for rank, trainer in enumerate(trainers):
            count = 0
            for step in range(first, first + config.steps):
                batch = share_of(rank, step)
                trainer.batches = lambda _, batch=batch: batch  # type: ignore[misc]
                trainer.train_step(step, LR)
                count += int((batch.targets_BT != IGNORED).sum())
            for name, weight in weights_of(trainer).items():
                weighed[name] = weighed[name] + (parameters[name].detach() - weight) * count
            total += count
        for name, parameter in parameters.items():
            parameter.grad = weighed[name] / total
        outer.step()
        for trainer in trainers:
            for name, weight in trainer.layout.bare.named_parameters():
                weight.data.copy_(parameters[f"parameter.{name}"].data)
    return {name: parameter.detach() for name, parameter in parameters.items()}


if __name__ == "__main__":
    main()
