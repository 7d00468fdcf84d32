"""Times runs of unequal length in two processes: `python -m tests.support.distributed.lockstep
FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from llm_core.calibration.operations import TURN_S, Stopwatch
from llm_core.parallel.ranks import Ranks
from llm_core.printing import show
from tests.support.distributed.forks import fork_ranks


def check() -> None:
    rank = dist.get_rank()
    own_s, begins = 0.004 * (1 + rank), []

    def run() -> None:
        begins.append(time.perf_counter())
        time.sleep(own_s)

    ranks = Ranks(rank, dist.get_world_size(), torch.device("cpu"))
    least_s = Stopwatch(ranks, 0.3).least_s(run, clock=time.perf_counter)
    assert least_s >= own_s
    both: list[list[float]] = [[], []]
    dist.all_gather_object(both, begins)
    assert len(both[0]) == len(both[1]) > 30
    # Turns begin together, so the faster of the two is never further ahead than one of them.
    runs_a_turn = max(2, round(TURN_S / 0.006) + 1)
    assert all(early >= late for early, late in zip(both[0][runs_a_turn:], both[1], strict=False))
    show("right")


if __name__ == "__main__":
    fork_ranks(2, Path(sys.argv[1]), check)
