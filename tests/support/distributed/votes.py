"""Four ranks vote, stop and save: `python -m tests.support.distributed.votes FOLDER` leaves
`rank-N.json` of each in the folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from llm_core.parallel.ranks import Ranks
from llm_core.parallel.vote import Vote
from llm_core.training.trainer import Preempted
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import make_trainer, ranks_of
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.problem import Problem

WORLD, TURNS = 4, 8
ASKED: dict[int, tuple[int, ...]] = {0: (4, 5), 1: (2,), 2: (), 3: ()}
"""At which turns each rank says yes."""
ASKED_TO_STOP_AT = 2
"""The step after which the last rank, and no other, is asked to stop."""


def main() -> None:
    folder = Path(sys.argv[1])
    fork_ranks(WORLD, folder, lambda: run(folder))


def run(folder: Path) -> None:
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    found = {
        "answers": answers(ranks),
        "at_once": ranks.any(ranks.rank == 1),
        "stopped": stop(folder),
    }
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found), "utf-8")


def answers(ranks: Ranks) -> list[bool]:
    """Of each turn; ranks come late to them, so that the first would run ahead."""
    vote, found = Vote(ranks), []
    for turn in range(TURNS):
        time.sleep(0.005 * ranks.rank)
        found.append(vote.ask(turn in ASKED[ranks.rank]))
    return [*found, vote.settle(), vote.settle()]


def stop(folder: Path) -> str:
    """What a run of four steps says that is asked to stop on one rank."""
    parallel, asked = layout(WORLD, "ddp"), iter(range(1, 5))
    trainer = make_trainer(Problem(), parallel, 2, ranks_of(parallel), folder / "checkpoints")
    trainer.should_stop = lambda: (
        next(asked) == ASKED_TO_STOP_AT and trainer.ranks.rank == WORLD - 1
    )
    try:
        trainer.run(0)
    except Preempted as stopped:
        return str(stopped)
    return "ran to its end"


if __name__ == "__main__":
    main()
