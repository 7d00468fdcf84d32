"""Runs the trainer as a session of its own on this machine, and judges how a trainer ended.

The outcome is what `status.json` says, whatever the return code: torchrun has its own. A trainer
that ends without a word gets its cause from here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llm_core.printing import note
from llm_core.process import describe_end, terminate_with_parent
from llm_core.training.run_config import RunConfig
from llm_core.training.status import (
    STATUS_FILE,
    is_held,
    note_death,
    read_status,
    status_as_written,
)
from tasks.runtime.code import ROOT
from tasks.runtime.environment import without_secrets
from tasks.runtime.stage import StageFailure, StageInterrupted

LOG_FILE = "trainer.log"
LAUNCHER_S = 10.0
"""How much longer a launcher of several processes has to end them."""
POLL_S = 0.5


def run_trainer(run: RunConfig, workdir: Path, progress: Callable[[Path], None]) -> None:
    """Start the trainer, wait for it and judge by its status file; a break in here stops it first.

    Call it from the main thread: the trainer is told to save and stop when the thread that started
    it ends.
    """
    earlier = status_as_written(workdir / STATUS_FILE)
    log = workdir / LOG_FILE
    # A file and not a pipe: a trainer whose parent was killed must still be able to speak while it
    # saves.
    with log.open("ab") as stream:
        trainer = subprocess.Popen(
            trainer_command(run, workdir),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=terminate_with_parent,
            env=trainer_environment(),
        )
    # Whatever breaks here, a Ctrl-C included, must not leave a trainer that nobody waits for.
    try:
        while trainer.poll() is None:
            progress(workdir)
            time.sleep(POLL_S)
        wait_for_ranks(workdir, run.train.grace_s)
    except BaseException as error:
        stop_session(trainer, run)
        # SIGTERM, as whoever runs the stage has turned it into Python: a trainer that saved says
        # so. Ctrl-C stays what it is.
        if not isinstance(error, (Exception, KeyboardInterrupt)):
            raise_if_preempted(run, workdir)
        _judge(workdir, earlier, _cause(trainer.returncode, workdir))
        raise
    progress(workdir)
    conclude(run, workdir, earlier, _cause(trainer.returncode, workdir))


def conclude(run: RunConfig, workdir: Path, earlier: Mapping[str, Any], cause: str) -> None:
    """Judge a trainer that has ended.

    earlier: the status before it began. cause: how it ended if it did not say so.
    Raises StageInterrupted where it was asked to stop and saved, StageFailure with its last words
    where it did not finish.
    """
    if status_as_written(workdir / STATUS_FILE) != earlier:
        raise_if_preempted(run, workdir)
    status = _judge(workdir, earlier, cause)
    if status["outcome"] == "finished":
        return
    reason = status.get("error")
    if status["outcome"] == "died":
        reason = (
            f"{status['cause']}, after step {status['step']}; run again to resume from the last"
            " checkpoint"
        )
    log = workdir / LOG_FILE
    said = log.read_text("utf-8", errors="replace").splitlines()[-15:] if log.exists() else []
    lines = [f"  | {line}" for line in said if not status.get("refused")]
    raise StageFailure("\n".join([f"training failed: {reason}", *lines, f"whole log: {log}"]))


def _judge(workdir: Path, earlier: Mapping[str, Any], cause: str) -> dict[str, Any]:
    """How the trainer ended; a death without a word becomes `died`, with the cause."""
    status = status_as_written(workdir / STATUS_FILE)
    if status != earlier and status.get("outcome") in ("finished", "preempted", "failed", "died"):
        return status
    try:
        note_death(workdir / STATUS_FILE, cause)
    except OSError as error:
        note(f"{workdir / STATUS_FILE} was not written: {error}")
    return {"step": status.get("step", 0)} | status | {"outcome": "died", "cause": cause}


def _cause(code: int, workdir: Path) -> str:
    cause = f"the trainer {describe_end(code)}"
    # Writing to a mapped file on a full disk ends in SIGBUS.
    if -code == signal.SIGBUS:
        cause += f"; {shutil.disk_usage(workdir).free / 1e9:.1f} GB are free in {workdir}"
    return cause


def wait_for_ranks(workdir: Path, limit_s: float) -> None:
    """Let processes whose launcher was killed save: the first of them holds the work directory."""
    deadline = time.monotonic() + limit_s
    while is_held(workdir) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def raise_if_preempted(run: RunConfig, workdir: Path) -> None:
    """Raise StageInterrupted where the trainer was asked to stop and saved, whatever its return
    code: torchrun has its own."""
    status = read_status(workdir / STATUS_FILE)
    if status.get("outcome") == "preempted":
        raise StageInterrupted(
            f"training stopped at step {status['step']} of {run.train.num_steps} and saved; run"
            " again to resume"
        )


def trainer_command(run: RunConfig, workdir: Path) -> list[str]:
    """One process runs the module itself, several are started by torchrun on a free port."""
    module = "launch" if run.parallel.num_processes > 1 else "train"
    options = ("--config", str(workdir / "config.json"), "--workdir", str(workdir))
    return [sys.executable, "-m", f"llm_core.training.{module}", *options]


def trainer_environment() -> dict[str, str]:
    """This environment without secrets, with the code on the path, and threads that sleep while
    they wait for each other.

    Spinning threads are some 12 % faster on idle cores, but on shared ones each step waits for
    whole time slices: two threads on two busy cores were measured 80 times slower. A policy that is
    set already is kept.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"OMP_WAIT_POLICY": "PASSIVE"} | without_secrets() | {"PYTHONPATH": path}


def stop_session(trainer: subprocess.Popen[bytes], run: RunConfig) -> None:
    """SIGTERM to the trainer's whole session, time to save, then SIGKILL to what is left."""
    grace_s = run.train.grace_s + (LAUNCHER_S if run.parallel.num_processes > 1 else 0)
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
        if trainer.poll() is None:
            os.killpg(trainer.pid, number)
        try:
            trainer.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            note(f"the trainer did not stop within {grace_s:.0f} s (train.grace_s); killing it")
