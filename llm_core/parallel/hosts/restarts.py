"""Tells processes of this start of the run from those of an earlier start that the launcher ended.

torchrun keeps one store of addresses over its restarts, with those of processes that are gone:
whoever reads one before its new owner has written calls a port at which nobody listens. How often
an agent has restarted names no start, since agents of several machines count apart. So the first
process and each other one show each other something new.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

PAUSE_S = 0.02


def store_of_this_start(store: dist.Store, rank: int, world: int, timeout: timedelta) -> dist.Store:
    """The launcher's store for this start only. Raises RuntimeError when a process is missing."""
    own, deadline = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    if rank == 0:
        name = _as_first(store, world, own, deadline)
    else:
        name = _as_other(store, rank, own, deadline)
    return dist.PrefixStore(f"start-{name}", store)


def _as_first(store: dist.Store, world: int, own: str, deadline: float) -> str:
    """Tell everyone the start's name and who was told, until all have found themselves there."""
    told: list[str] = []
    while not all(store.check([f"joined-{own}-{rank}"]) for rank in range(1, world)):
        there = [store.get(f"came-{rank}").decode() for rank in range(1, world)]
        if there != told:
            store.set("start", json.dumps([own, there]))
            told = there
        _pause(deadline, "others")
    return own


def _as_other(store: dist.Store, rank: int, own: str, deadline: float) -> str:
    store.set(f"came-{rank}", own)
    while True:
        name, there = json.loads(store.get("start"))
        if rank <= len(there) and there[rank - 1] == own:
            store.set(f"joined-{name}-{rank}", "")
            return str(name)
        _pause(deadline, "first")


def _pause(deadline: float, who: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(
            f"the {who} of the run did not join this start in time; see the log of the launcher"
        )
    time.sleep(PAUSE_S)
