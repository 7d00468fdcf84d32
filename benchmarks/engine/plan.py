"""Holds the planner's times against measured steps on this machine, calibrated first.

`python -m benchmarks.engine.plan --processes 1 2` runs, for each number of processes, `textmill
calibrate` of the first model, then a training step of each of `SETTINGS`: two models, rows of two
lengths, under ddp where there are several. Predictions come from the record alone, and the second
model is none of it. Times are the least of their steps, as in the calibration: other work on a
machine only adds. Steps of several processes are timed by the wall, or on a busy machine with
`--processor-time` by what their processors did, which leaves out waiting.

A row per setting; the last line is JSON: {"worst" (largest |predicted / measured - 1|), "within_15"
(whether that is at most 0.15), "rows", "threads" (of one process)}. The exit code is 1 beyond 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_core.calibration.operations import Stopwatch
from llm_core.calibration.steps import time_step
from llm_core.config import build
from llm_core.device import set_threads
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import open_ranks
from llm_core.planner.hardware import HardwareConfig, read_record
from llm_core.planner.step import Work, plan_time
from llm_core.printing import percent, show
from llm_core.training.config import TrainConfig
from tasks.training.trainer_process import trainer_environment

MODELS = {
    "width 128": ModelConfig(2048, 128, 4, 4, 4, 352, 1024),
    "width 256": ModelConfig(4096, 256, 4, 4, 4, 704, 1024),
}
SEQ_LENS = (128, 512)
TOKENS = 512
"""Of a micro batch."""
LIMIT = 0.15


def settings(processes: int) -> dict[str, Work]:
    found = {}
    for name, model in MODELS.items():
        for seq_len in SEQ_LENS:
            rows = TOKENS // seq_len
            train = TrainConfig(
                num_steps=10,
                seq_len=seq_len,
                global_batch_sequences=2 * rows * processes,
                micro_batch_sequences=rows,
                dtype="fp32",
            )
            parallel = ParallelConfig(
                "none" if processes == 1 else "ddp", processes, device="cpu", num_threads=1
            )
            work = Work(model, OptimConfig(lr=1e-3), train, parallel)
            found[f"{name}, {seq_len} tokens, {processes}"] = work
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budget-s", type=float, default=2.0, help="for each setting")
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    if "BENCH_PLAN_RANK" in os.environ:
        processes = arguments.processes[0]
        waits = processes > 1 and not arguments.processor_time
        measure(processes, arguments.budget_s, time.perf_counter if waits else None)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in arguments.processes:
            hardware = calibrate(processes, Path(folder))
            for name, measured_s in measured(processes, arguments).items():
                predicted_s = plan_time(settings(processes)[name], hardware).step_s
                off = predicted_s / measured_s - 1
                rows.append(
                    {"setting": name, "measured_ms": measured_s * 1e3}
                    | {"predicted_ms": predicted_s * 1e3, "off": off}
                )
                show(
                    f"{name:30} {measured_s * 1e3:9.1f} ms, predicted {predicted_s * 1e3:9.1f}"
                    f" ({percent(off, '+.1')})",
                    flush=True,
                )
    worst = max(abs(row["off"]) for row in rows)
    show(json.dumps({"worst": worst, "within_15": worst <= LIMIT, "rows": rows, "threads": 1}))
    sys.exit(worst > LIMIT)


def calibrate(processes: int, state: Path) -> HardwareConfig:
    model, work = MODELS["width 128"], next(iter(settings(processes).values()))
    words = [f"state={state}", f"tokenizer.vocab_size={model.vocab_size}", "model=tiny"]
    words += [f"parallel={work.parallel.kind}" if processes > 1 else "parallel=single"]
    words += [f"parallel.num_processes={processes}", "parallel.num_threads=1"]
    words += ["parallel.device=cpu", f"train.seq_len={SEQ_LENS[0]}", "train.dtype=fp32"]
    words += [f"train.micro_batch_sequences={TOKENS // SEQ_LENS[0]}"]
    words += [f"train.global_batch_sequences={2 * TOKENS // SEQ_LENS[0] * processes}"]
    command = [sys.executable, "-m", "flows.cli", "calibrate", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"textmill calibrate ended with {done.returncode}:\n{done.stderr}")
    show(done.stdout)
    return build(HardwareConfig, read_record(state / f"hardware-{processes}.json"))


def measured(processes: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step by setting, in processes of their own."""
    start = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    module = ["benchmarks.engine.plan", "--processes", str(processes)]
    module += ["--budget-s", str(arguments.budget_s)]
    module += ["--processor-time"] if arguments.processor_time else []
    command = [sys.executable, "-m", *(start if processes > 1 else []), *module]
    environment = trainer_environment() | {"BENCH_PLAN_RANK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the steps ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(processes: int, budget_s: float, clock: Callable[[], float] | None) -> None:
    """As one rank of each setting in turn; the first prints."""
    set_threads(1, processes)
    found = {}
    for name, work in settings(processes).items():
        with open_ranks(work.parallel) as ranks:
            found[name] = time_step(work, ranks, Stopwatch(ranks, budget_s), clock).measured_s
            first = ranks.is_first
    if first:
        show(json.dumps(found))


if __name__ == "__main__":
    main()
