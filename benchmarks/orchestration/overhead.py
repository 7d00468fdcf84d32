"""Measures the processor time of a run whose stages are all in the store: the bookkeeping alone.

`python -m benchmarks.orchestration.overhead [--repeats 3] [--place DIR] [run=demo …]` fills a store
once, then gives the same command again: without an orchestrator, under Prefect without tracking,
and with both. Counted is the processor time of the command and of what it waits for, user and
system; not that of the server, which was started before. The first run of each kind is not counted.

The last line is JSON: {kind: {"cpu_s", "cpu_s_min", "cpu_s_max", "wall_s"}, "repeats"}; `cpu_s` and
`wall_s` are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from llm_core.printing import note, show
from tasks.runtime.code import ROOT

KINDS = {
    "plain": ("orchestrator=none", "tracking=off"),
    "prefect": ("orchestrator=prefect", "tracking=off"),
    "prefect_mlflow": ("orchestrator=prefect", "tracking=local"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--place", type=Path, help="keeps the store for the next time")
    given, overrides = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = (given.place or Path(folder)).resolve()
        words = [*(overrides or ["run=demo"]), f"store={place}/store", f"state={place}/state"]
        note("filling the store")
        run_once("run", *words, *KINDS["plain"])
        try:
            result = {kind: measure(words, kind, given.repeats) for kind in KINDS}
        finally:
            run_once("down", f"state={place}/state")
    for kind, figures in result.items():
        show(f"{kind:15} {figures['cpu_s']:5.2f} s of processor time, {figures['wall_s']:5.2f} s")
    show(json.dumps({**result, "repeats": given.repeats}))


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


def run_once(*words: str) -> tuple[float, float]:
    """Seconds of processor time and of the clock that a command takes. Raises where it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=ROOT,
        env=env,
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
