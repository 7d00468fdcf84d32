"""Programs that tests start: a fresh process each, which may then fork ranks
(`tests.support.distributed.forks`)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT


def run_program(module: str, arguments: list[str], folder: Path, timeout_s: float = 200.0) -> None:
    """Run `python -m module arguments`; fails the test with what it wrote when it fails or takes
    too long."""
    log = folder / "program.log"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    try:
        with log.open("wb") as stream:
            done = subprocess.run(
                command,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{module} hangs after {timeout_s:.0f} s:\n{log.read_text('utf-8')}")
    assert done.returncode == 0, log.read_text("utf-8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
