"""Compressed sums of four real gloo processes against plain arithmetic in one
(`tests.support.distributed.plain_sums`): `python -m tests.support.distributed.compressed FOLDER`
leaves what the first found in `found.json` there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.parallel.compression.codecs import INT8, SIGNS
from llm_core.parallel.compression.reduction import Reduction
from llm_core.parallel.compression.wire import Wire, coded_sum
from llm_core.parallel.places import local
from llm_core.training.trainer import Trainer
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import LR, differences, precision, ranks_of
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.plain_sums import BLOCK, METHODS, WORLD, Plain, trainer_of

STEPS, SAVED = 10, 8


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: w.detach().clone() for name, w in trainer.layout.bare.named_parameters()}


def against_plain(method: str, folder: Path) -> dict[str, Any]:
    parallel = layout(WORLD, "ddp", **METHODS[method])
    trainer = trainer_of(method, parallel, folder)
    saved = Checkpoints(folder / method, ranks_of(parallel))
    after: dict[int, dict[str, Tensor]] = {}
    for step in range(STEPS):
        trainer.train_step(step, LR)
        if step + 1 == SAVED:
            saved.save(SAVED, trainer.layout, trainer.optimizer)
        after[step] = weights_of(trainer)
    state = {name: local(t).clone() for name, t in own_state(trainer).items()}
    resumed = trainer_of(method, parallel, folder)
    assert saved.load(resumed.layout, resumed.optimizer) == SAVED
    for step in range(SAVED, STEPS):
        resumed.train_step(step, LR)
    again = own_state(resumed)
    same = all(torch.equal(local(again[name]), value) for name, value in state.items())
    found = {
        "resumed": everyone(same),
        "agree": everyone(agrees(after[STEPS - 1])),
        "skipped": everyone(skips(trainer)),
    }
    if dist.get_rank() == 0:
        plain = Plain(method, folder)
        for step in range(STEPS):
            plain.step(step + 1)
            one = {f"parameter.{k}": v for k, v in after[step].items()}
            other = {f"parameter.{k}": v.detach() for k, v in plain.weights.items()}
            found[f"step {step + 1}"] = differences(other, one)["parameter"]
    return found


def own_state(trainer: Trainer) -> dict[str, Tensor]:
    return collect_state(trainer.layout, trainer.optimizer)


def everyone(flag: bool) -> bool:
    flags: list[Any] = [None] * WORLD
    dist.all_gather_object(flags, flag)
    return all(flags)


def agrees(weights: dict[str, Tensor]) -> bool:
    """Whether the first process has the same bits."""
    flat = torch.cat([w.flatten() for w in weights.values()])
    first = flat.clone()
    dist.broadcast(first, 0)
    return torch.equal(first, flat)


def skips(trainer: Trainer) -> bool:
    """Whether a NaN in the gradient of the last process leaves all state as it was, but for
    the counts of steps."""
    before = {name: local(t).clone() for name, t in own_state(trainer).items()}
    reduce = Reduction.reduce

    def spoil(self: Reduction, model: torch.nn.Module) -> None:
        if dist.get_rank() == WORLD - 1:
            next(w.grad for w in model.parameters() if w.grad is not None).mul_(float("nan"))
        reduce(self, model)

    Reduction.reduce = spoil  # type: ignore[method-assign]
    try:
        trainer.train_step(STEPS, LR)
    finally:
        Reduction.reduce = reduce  # type: ignore[method-assign]
    return all(
        torch.equal(local(t), before[name])
        for name, t in own_state(trainer).items()
        if name.startswith(("model.", "optimizer."))
    )


def count_bytes() -> dict[str, float]:
    """Bytes of an exact sum of 2 million float32 numbers over those of a coded one."""
    numel = 512 * WORLD * BLOCK
    x = torch.randn(numel, generator=torch.Generator().manual_seed(dist.get_rank()))
    found = {}
    for name, codec in (("signs", SIGNS), ("int8", INT8)):
        exact, coded = Wire(dist.group.WORLD), Wire(dist.group.WORLD)
        exact.sum([x.clone()])
        coded_sum(x, codec, coded)
        found[name] = exact.sent_bytes / coded.sent_bytes
        assert exact.sent_bytes == 2 * (WORLD - 1) / WORLD * 4 * numel
        assert coded.sent_bytes == 2 * (WORLD - 1) / WORLD * numel / BLOCK * codec.block_bytes
    return found


def check(folder: Path, only: Callable[[str], bool] = lambda _: True) -> None:
    found: dict[str, Any] = {"bytes": count_bytes()}
    for method in filter(only, METHODS):
        with precision("fp64"):
            found[method] = against_plain(method, folder)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    wanted = sys.argv[2:] or list(METHODS)
    fork_ranks(WORLD, Path(sys.argv[1]), lambda: check(Path(sys.argv[1]), wanted.__contains__))
