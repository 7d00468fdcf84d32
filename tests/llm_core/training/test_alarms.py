"""The status of a run has an alarm as long as one stands."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from torch.distributed import HashStore

from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.hosts.liveness import Liveness
from llm_core.training.alarms import watch
from llm_core.training.status import Heartbeat, status_as_written


def test_one_process_that_is_back_does_not_hide_another_that_is_silent(tmp_path: Path) -> None:
    store = HashStore()
    parallel = ParallelConfig("ddp", 3, heartbeat_s=2.0)
    first = SimpleNamespace(hosts=Hosts(store, 0, 3), rank=0, is_first=True)
    config = cast(Any, SimpleNamespace(parallel=parallel))

    def wait_for(begin: str | None) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            alarm = status_as_written(tmp_path / "status.json").get("alarm")
            if alarm == begin or (alarm and begin and alarm.startswith(begin)):
                return
            time.sleep(0.02)
        raise AssertionError(f"{begin} is not the alarm")

    def other(rank: int) -> Liveness:
        return Liveness(Hosts(store, rank, 3), 2.0, 60.0, tmp_path / "flight", lambda *_: None)

    with (
        Heartbeat(tmp_path) as status,
        watch(config, cast(Any, first), tmp_path / "flight", [], status),
    ):
        wait_for("rank 2 has given no sign of life")
        with other(1):
            time.sleep(1.0)
            wait_for("rank 2 has given no sign of life")
            with other(2):
                wait_for(None)
