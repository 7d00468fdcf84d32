"""Real processes for tests: each rank is a Python process of its own, joined by gloo on a free local port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tasks.keys import ROOT


def run_ranks(module: str, world: int, arguments: list[str], folder: Path, timeout_s: float = 200.0) -> None:
    """Run `python -m module arguments` as ranks 0 … world - 1; fails with the output of all as soon as one fails.

    MASTER_PORTS names a port for each process group that the ranks open in turn: a group must not meet the store of the last.
    """
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORTS": " ".join(str(free_port()) for _ in range(4)),
        "OMP_NUM_THREADS": "1",
    }
    logs = [folder / f"rank-{rank}.log" for rank in range(world)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("wb") as stream:
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", module, *arguments]
            processes.append(subprocess.Popen(command, env=own, stdout=stream, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + timeout_s
    try:
        while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
            assert time.monotonic() < deadline, "ranks hang:\n" + "\n".join(log.read_text() for log in logs)
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(p.returncode for p in processes), "\n".join(log.read_text() for log in logs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def artifacts(folder: Path, kind: str) -> Path:
    """Where the ranks of one layout leave what they computed."""
    path = folder / kind
    path.mkdir(parents=True, exist_ok=True)
    return path
