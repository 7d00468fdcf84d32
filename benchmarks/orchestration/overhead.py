"""Measures the processor time of a run whose stages are all in the store: the bookkeeping alone.

`python -m benchmarks.orchestration.overhead [--repeats 3] [--place DIR] [run=demo …]` fills a store
once, then gives the same command again: without an orchestrator, under Prefect without tracking,
and with both. Counted is the processor time of the command and of what it waits for, user and
system; not that of the server, which was started before. The first run of each kind is not counted.

Then it trains for a while, with both and with neither. The command's own process only does the
bookkeeping, since the trainer is a separate process. The difference between the two is what Prefect
and MLflow cost, at the start (`fixed_s`) and for each second (`rate`).

The last line is JSON: {kind: {"cpu_s", "cpu_s_min", "cpu_s_max", "wall_s"}, "repeats", "training":
{"fixed_s", "rate", "of_ten_minutes_frac"}}; `cpu_s` and `wall_s` are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from flows.live.announced import read_live
from llm_core.printing import note, show
from tasks.runtime.code import ROOT

KINDS = {
    "plain": ("orchestrator=none", "tracking=off"),
    "prefect": ("orchestrator=prefect", "tracking=off"),
    "prefect_mlflow": ("orchestrator=prefect", "tracking=local"),
}
SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SETTLES_S = 20.0
"""Time after the start of a training until one-off work is over."""
TEN_MINUTES_S = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--place", type=Path, help="keeps the store for the next time")
    parser.add_argument("--train-s", type=float, default=60.0, help="how long training is watched")
    given, overrides = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = (given.place or Path(folder)).resolve()
        words = [*(overrides or ["run=demo"]), f"store={place}/store", f"state={place}/state"]
        note("filling the store")
        run_once("run", *words, *KINDS["plain"])
        try:
            result = {kind: measure(words, kind, given.repeats) for kind in KINDS}
            told, alone = (
                watch_training(words, kind, given.train_s) for kind in ("prefect_mlflow", "plain")
            )
        finally:
            run_once("down", f"state={place}/state")
    for kind, figures in result.items():
        show(f"{kind:15} {figures['cpu_s']:5.2f} s of processor time, {figures['wall_s']:5.2f} s")
    fixed_s, rate = (round(one - other, 5) for one, other in zip(told, alone, strict=True))
    frac = round(fixed_s / TEN_MINUTES_S + rate, 4)
    show(f"bookkeeping of a run of ten minutes: {100 * frac:.2f} % of them")
    training = {"fixed_s": fixed_s, "rate": rate, "of_ten_minutes_frac": frac}
    show(json.dumps({**result, "repeats": given.repeats, "training": training}))


def measure(words: Sequence[str], kind: str, repeats: int) -> dict[str, float]:
    run_once("run", *words, *KINDS[kind])
    cpu_s, wall_s = zip(
        *(run_once("run", *words, *KINDS[kind]) for _ in range(repeats)), strict=True
    )
    return {
        "cpu_s": round(statistics.median(cpu_s), 3),
        "cpu_s_min": round(min(cpu_s), 3),
        "cpu_s_max": round(max(cpu_s), 3),
        "wall_s": round(statistics.median(wall_s), 3),
    }


def watch_training(words: Sequence[str], kind: str, seconds: float) -> tuple[float, float]:
    """Processor time of the command's own process, in seconds, until training is under way, and for
    each second from then on. The training is stopped afterwards."""
    endless = ["only=train", "train.num_steps=1000000", "train.validate_every=1000000"]
    command = [sys.executable, "-m", "flows.cli", "run", *words, *KINDS[kind], *endless]
    state = Path(next(w for w in words if w.startswith("state=")).partition("=")[2])
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **SILENT) as process:
        own = psutil.Process(process.pid)
        try:
            while not any(run.stage == "train" for run in read_live(state)):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.2)
            time.sleep(SETTLES_S)
            before = sum(own.cpu_times()[:2])
            time.sleep(seconds)
            return before, (sum(own.cpu_times()[:2]) - before) / seconds
        finally:
            process.send_signal(signal.SIGTERM)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}


def run_once(*words: str) -> tuple[float, float]:
    """Seconds of processor time and of the clock that a command takes. Raises where it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s


if __name__ == "__main__":
    main()
