"""Holds the planner's choice of a layout against the measured times of all that can run: four
processes of this CPU whose links are throttled (`benchmarks.engine.throttled`).

`python -m benchmarks.engine.layouts --model wide --part 0 --parts 4` times every fourth layout of
`llm_core.planner.layouts` from the first on, without recomputation, which no memory here asks for;
`--table FILE` keeps the rows, and a call with the same file continues after them. A time is the
least of `--steps` after one. The constants of the CPU are those of `--hardware FILE`, a record of
`textmill calibrate`; those of the links are what was asked for.

The last line is JSON: {"model", "measured" (layouts), "legal", "chosen", "chosen_ms", "best",
"best_ms", "ratio" (of the first choice to the measured best), "within_5"}.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engine import throttled
from llm_core.calibration.steps import random_step
from llm_core.config import build
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks, make_meshes
from llm_core.planner.hardware import HardwareConfig, LinkConfig, read_record
from llm_core.planner.layouts import Candidate, choose_layout
from llm_core.planner.step import Work
from llm_core.printing import show
from llm_core.training.config import TrainConfig

WORLD = 4
MODELS = {
    "wide": (ModelConfig(256, 256, 4, 4, 4, 704, 64), 8, 32),
    "long": (ModelConfig(256, 48, 4, 4, 4, 128, 128), 32, 64),
}
"""(shape, rows of a step, tokens of a row): many weights for few tokens, and the reverse."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="wide")
    add("--hardware", type=Path, required=True, help="a record of textmill calibrate")
    add("--start-ms", type=float, default=2.0)
    add("--mb-s", type=float, default=10.0)
    add("--steps", type=int, default=2)
    add("--part", type=int, default=0)
    add("--parts", type=int, default=1)
    add("--seconds", type=float, default=150.0, help="begin no layout after that")
    add("--table", type=Path, required=True, help="JSON of the rows so far")
    arguments = parser.parse_args()
    hardware = throttle(
        build(HardwareConfig, read_record(arguments.hardware)), arguments.start_ms, arguments.mb_s
    )
    ranked = candidates(arguments.model, hardware)
    known = json.loads(arguments.table.read_text("utf-8")) if arguments.table.exists() else {}
    wanted = [one for one in ranked[arguments.part :: arguments.parts] if one.name not in known]
    if wanted:
        known |= measured(wanted, arguments)
        arguments.table.write_text(json.dumps(known, indent=1), "utf-8")
    report(arguments.model, ranked, known)


def throttle(hardware: HardwareConfig, start_ms: float, mb_s: float) -> HardwareConfig:
    links = {kind: LinkConfig(start_ms * 1e3, mb_s / 1e3) for kind in KINDS}
    return replace(hardware, links=links, overlap=1.0, devices_per_node=WORLD)


def candidates(name: str, hardware: HardwareConfig) -> list[Candidate]:
    """All that can run, the planner's first choice first."""
    model, rows, seq_len = MODELS[name]
    train = TrainConfig(
        num_steps=4,
        seq_len=seq_len,
        global_batch_sequences=rows,
        micro_batch_sequences=1,
        dtype="fp32",
    )
    parallel = ParallelConfig("auto", WORLD, device="cpu", num_threads=1)
    choice = choose_layout(Work(model, OptimConfig(lr=1e-3), train, parallel), hardware, WORLD)
    return [one for one in choice.fitting if one.work.memory.recompute == "none"]


def measured(wanted: Sequence[Candidate], arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step by the name of a layout; in processes of their own."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        works = [(one.name, one.work) for one in wanted]
        ranks = [
            context.Process(target=_rank, args=(rank, Path(folder), works, arguments, answers))
            for rank in range(WORLD)
        ]
        for each in ranks:
            each.start()
        found: dict[str, float] = {}
        while any(each.exitcode is None for each in ranks) or not answers.empty():
            if any(each.exitcode for each in ranks):
                break
            while not answers.empty():
                name, step_s = answers.get()
                found[name] = step_s
                show(f"{name:60} {step_s * 1e3:9.0f} ms", flush=True)
            time.sleep(0.1)
        failed = any(each.exitcode for each in ranks)
        for each in ranks:
            each.kill()
            each.join()
    if failed:
        raise RuntimeError(f"a rank failed after {len(found)} layouts; its traceback is above")
    return found


def _rank(
    rank: int, folder: Path, works: list[tuple[str, Work]], arguments: Any, answers: Any
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
    throttled.register(arguments.start_ms * 1e-3, arguments.mb_s * 1e6)
    until = time.perf_counter() + arguments.seconds
    for number, (name, work) in enumerate(works):
        dist.init_process_group(
            throttled.NAME,
            init_method=f"file://{folder}/{number}",
            rank=rank,
            world_size=WORLD,
        )
        device = torch.device("cpu")
        ranks = Ranks(rank, WORLD, device, *make_meshes(work.parallel, device))
        done = ranks.any(time.perf_counter() > until)
        if not done:
            step_s = _step_s(work, ranks, arguments.steps)
            if rank == 0:
                answers.put((name, step_s))
        dist.destroy_process_group()
        if done:
            return


def _step_s(work: Work, ranks: Ranks, num_steps: int) -> float:
    """The least of the slowest process."""
    run = random_step(work, ranks)
    best = math.inf
    for number in range(num_steps + 1):
        ranks.barrier()
        began = time.perf_counter()
        run()
        step_s = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(step_s, dist.ReduceOp.MAX)
        best = min(best, float(step_s)) if number else best
    return best


def report(model: str, ranked: Sequence[Candidate], known: dict[str, float]) -> None:
    rows = [(one, known[one.name]) for one in ranked if one.name in known]
    for one, step_s in rows:
        show(f"{one.name:60} {step_s * 1e3:9.0f} ms, predicted {one.time.step_s * 1e3:9.0f}")
    chosen, best = ranked[0].name, min(known, key=lambda name: known[name])
    ratio = known[chosen] / known[best] if chosen in known else None
    found = {
        "model": model,
        "measured": len(rows),
        "legal": len(ranked),
        "chosen": chosen,
        "chosen_ms": known.get(chosen, math.nan) * 1e3 if chosen in known else None,
        "best": best,
        "best_ms": known[best] * 1e3,
        "ratio": ratio,
        "within_5": ratio is not None and ratio <= 1.05,
    }
    show(json.dumps(found))


if __name__ == "__main__":
    main()
