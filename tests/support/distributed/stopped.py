"""Stops one of three processes that share a store, and lets it go on: `python -m
tests.support.distributed.stopped FOLDER` leaves `found.json` there. No process group is needed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.hosts.liveness import Liveness

WORLD, STOPPED = 3, 1
HEARTBEAT_S = 15.0
"""Long, so that processes on a busy machine are not silent without being stopped."""


def main() -> None:
    folder = Path(sys.argv[1])
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    told: Any = context.Queue()
    ranks = [
        context.Process(target=live, args=(rank, server.port, told, folder), daemon=True)
        for rank in range(WORLD)
    ]
    for rank in ranks:
        rank.start()
    assert {told.get(timeout=60)[1] for _ in ranks} == {"joined"}
    pid = ranks[STOPPED].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    alarms = [told.get(timeout=60) for _ in range(WORLD - 1)]
    named_after_s = time.monotonic() - stopped_at
    os.kill(pid, signal.SIGCONT)
    # The one that was stopped hears of its own alarm too.
    alarms += [told.get(timeout=60) for _ in range(WORLD + 1)]
    server.set("over", "")
    for one in ranks:
        one.join(60)
    found = {"pid": pid, "named_after_s": named_after_s, "alarms": alarms}
    found["codes"] = [one.exitcode for one in ranks]
    (folder / "found.json").write_text(json.dumps(found), "utf-8")


def live(rank: int, port: int, told: Any, folder: Path) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    hosts = Hosts(dist.PrefixStore("hosts", store), rank, WORLD)

    def tell(alarm: str, text: str) -> None:
        told.put((rank, alarm, text))

    with Liveness(hosts, HEARTBEAT_S, 600.0, folder / "flight", tell):
        hosts.ask(None)
        told.put((rank, "joined", ""))
        store.get("over")


if __name__ == "__main__":
    main()
