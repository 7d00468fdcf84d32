"""Workers of a parameter server that do not wait for each other, on four gloo processes:
`python -m tests.support.distributed.stale FOLDER` leaves what was found in `found.json` there."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.data.batch import Batch
from llm_core.parallel.config import ParallelConfig
from llm_core.training.step import token_losses
from llm_core.training.trainer import Trainer
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import LR, make_trainer, ranks_of
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.problem import ROWS, TOKENS, Problem
from tests.support.engine.small_runs import token_stream

WORLD, STEPS, LEARNT_STEPS = 4, 30, 200
BOUNDS = ((1, 0), (3, 0), (1, 1), (3, 2))
"""(staleness, servers) of the runs whose workers take their time."""


def main() -> None:
    folder = Path(sys.argv[1])
    fork_ranks(WORLD, folder, lambda: check(folder))


def check(folder: Path) -> None:
    found: dict[str, Any] = {"bounds": [], "losses": {}}
    for staleness, servers in BOUNDS:
        parallel = layout(WORLD, "server", staleness=staleness, servers=servers)
        found["bounds"].append({"staleness": staleness} | bound(parallel, folder))
    for name, parallel in (
        ("ddp", layout(WORLD, "ddp")),
        ("server", layout(WORLD, "server", staleness=3)),
    ):
        found["losses"][name] = learn(parallel, folder)
    found["stopped_at"] = stop(folder)
    found["bytes"] = [count(servers, folder) for servers in (0, 1)]
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")


def trainer_of(parallel: ParallelConfig, folder: Path) -> Trainer:
    """On rows that a model can learn."""
    trainer = make_trainer(Problem(tied=False), parallel, ROWS // WORLD, ranks_of(parallel), folder)
    own = slice(dist.get_rank() * ROWS // WORLD, (dist.get_rank() + 1) * ROWS // WORLD)

    def batches(step: int) -> Batch:
        ids, targets = rows_of(step)
        return Batch(ids[own], targets[own], None, None)

    trainer.batches, trainer.sources = batches, ()
    return trainer


def rows_of(step: int) -> tuple[Tensor, Tensor]:
    streams = [token_stream(TOKENS + 1, 1000 * step + row) for row in range(ROWS)]
    tokens = torch.stack([torch.from_numpy(stream.astype("int64")) for stream in streams])
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def everyone(mine: Any) -> list[Any]:
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, mine)
    return found


def bound(parallel: ParallelConfig, folder: Path) -> dict[str, Any]:
    """What servers see of workers that take random times; then all meet, save and resume."""
    trainer, chance = trainer_of(parallel, folder), random.Random(dist.get_rank())
    plain = trainer.batches
    slow = dist.get_rank() == 1

    def late(step: int) -> Batch:
        time.sleep(chance.uniform(0, 0.02) + 0.01 * slow)
        return plain(step)

    trainer.batches = late
    for step in range(STEPS):
        trainer.train_step(step, LR)
    worker = trainer._worker
    assert worker is not None and worker._server is not None
    dist.barrier()
    ahead, missed = worker._server.ahead, worker._server.missed
    worker.meet()
    updates = int(trainer.optimizer.num_updates)
    saved = Checkpoints(folder / f"{parallel.staleness}-{parallel.servers}", ranks_of(parallel))
    saved.save(STEPS, trainer.layout, trainer.optimizer)
    state = {
        name: t.clone() for name, t in collect_state(trainer.layout, trainer.optimizer).items()
    }
    other = trainer_of(layout(WORLD, "ddp"), folder)
    saved.load(other.layout, other.optimizer)
    loaded = collect_state(other.layout, other.optimizer)
    same = loaded.keys() == state.keys() and all(torch.equal(loaded[n], state[n]) for n in state)
    return {
        "ahead": max(map(max, everyone(ahead))),
        "missed": max(map(max, everyone(missed))),
        "mean_missed": sum(missed) / len(missed),
        "gradients": [len(each) for each in everyone(missed)],
        "updates": everyone(updates)[0],
        "same": all(everyone(same)),
    }


def learn(parallel: ParallelConfig, folder: Path) -> list[float]:
    """Loss on rows that were not trained on, before and after."""
    trainer = trainer_of(parallel, folder)
    losses = [held_out(trainer)]
    for step in range(LEARNT_STEPS):
        trainer.train_step(step, LR)
    if trainer._worker is not None:
        trainer._worker.meet()
    return [*losses, held_out(trainer)]


def held_out(trainer: Trainer) -> float:
    ids, targets = rows_of(10**6)
    with torch.no_grad():
        losses = token_losses(trainer.layout, ids, targets, {})
    assert losses is not None
    return float(losses.mean())


def count(servers: int, folder: Path) -> dict[str, Any]:
    """Bytes of the weights that each process serves, and of what it sends in a step of all."""
    trainer = trainer_of(layout(WORLD, "server", servers=servers), folder)
    trainer.train_step(0, LR)
    assert trainer.layout.servers is not None
    served = [w for w in trainer.layout.bare.parameters() if trainer.layout.servers.serves(w)]
    return {
        "served": everyone(sum(w.nbytes for w in served)),
        "sent": everyone(trainer.layout.servers.sent_bytes),
    }


def stop(folder: Path) -> list[int]:
    """The step after which each worker stops where one is asked to in its fifth."""
    trainer = trainer_of(layout(WORLD, "server", staleness=2), folder)
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return dist.get_rank() == 2 and asked >= 5

    trainer = dataclasses.replace(trainer, should_stop=should_stop)
    step = 0
    while trainer._worker is not None and not trainer._worker.stops:
        trainer.train_step(step, LR)
        step += 1
    assert trainer._worker is not None and trainer._worker.meet()
    return everyone(step)


if __name__ == "__main__":
    main()
