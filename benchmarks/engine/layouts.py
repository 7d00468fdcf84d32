"""Holds the planner's choice of a layout against the measured times of all that can run: four
processes of this CPU whose links are throttled (`benchmarks.engine.throttled`).

`python -m benchmarks.engine.layouts --model wide --top 8 --sample 12` times the planner's first 8
layouts of `llm_core.planner.layouts` and 12 of the others: these, in the order of their predicted
times, are cut into 12 runs, of which each gives its middle one. Without `--top` all are timed. All
are without recomputation, which no memory here asks for. A time is the median of `--steps` after
one, each as long as the slowest process took. The constants of the CPU are those of `--hardware
FILE`, a record of `textmill calibrate`; those of the links are what was asked for.

`--table FILE` gets a line of JSON for each layout as soon as it is timed, with the load of the
machine. A call with the same file continues after those of the same model and links, so that all
can be timed in pieces of `--seconds`, whenever the machine is idle.

The last line is JSON: {"model", "legal" (layouts), "selected" (of them), "measured", "left" (of the
selected), "chosen", "chosen_ms", "best", "best_ms", "ratio" (of the first choice to the measured
best), "within_5", "spearman" (correlation of predicted and measured order)}.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from scipy.stats import spearmanr

from benchmarks.engine import throttled
from llm_core.calibration.steps import random_step
from llm_core.config import build
from llm_core.durable import write_durably
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks, make_meshes
from llm_core.planner.hardware import HardwareConfig, LinkConfig, read_record
from llm_core.planner.layouts import Candidate, choose_layout
from llm_core.planner.step import Work
from llm_core.printing import show
from llm_core.training.config import TrainConfig
from llm_core.training.metric_log import iter_rows

WORLD = 4
MODELS = {
    "wide": (ModelConfig(256, 256, 4, 4, 4, 704, 64), 8, 32),
    "long": (ModelConfig(256, 48, 4, 4, 4, 128, 128), 32, 64),
}
"""(shape, rows of a step, tokens of a row): many weights for few tokens, and the reverse."""
Table = dict[str, dict[str, Any]]
"""{name of a layout: {"model", "start_ms", "mb_s", "layout", "steps_s" (of each step), "load" (of
the machine when they ended)}}."""
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
    add("--steps", type=int, default=3)
    add("--top", type=int, help="time so many of the planner's first, and --sample others")
    add("--sample", type=int, default=12)
    add("--seconds", type=float, default=150.0, help="begin no layout after that")
    add("--table", type=Path, required=True, help="JSON lines, one for each layout")
    arguments = parser.parse_args()
    hardware = throttle(
        build(HardwareConfig, read_record(arguments.hardware)), arguments.start_ms, arguments.mb_s
    )
    ranked = candidates(arguments.model, hardware)
    wanted = ranked if arguments.top is None else select(ranked, arguments.top, arguments.sample)
    known = known_rows(arguments.table, setting_of(arguments))

    def keep(name: str, steps_s: list[float]) -> None:
        row = {"layout": name, "steps_s": steps_s, "load": os.getloadavg()[0]}
        known[name] = setting_of(arguments) | row
        add_rows(arguments.table, [known[name]])
        show(f"{name:60} {median_s(known[name]) * 1e3:9.0f} ms", flush=True)

    if missing := [one for one in wanted if one.name not in known]:
        measure(missing, arguments, keep)
    report(arguments.model, ranked, wanted, known)


def setting_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What rows of one table have in common."""
    return {"model": arguments.model, "start_ms": arguments.start_ms, "mb_s": arguments.mb_s}


def known_rows(file: Path, setting: Mapping[str, Any]) -> Table:
    """Of a setting, those timed so far."""
    return {row["layout"]: row for row in iter_rows(file) if setting.items() <= row.items()}


def add_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Put rows at the end of a table, in place of one that was torn off."""
    write_durably(file, (json.dumps(row) + "\n" for row in [*iter_rows(file), *rows]))


def select(ranked: Sequence[Candidate], top: int, sample: int) -> list[Candidate]:
    """The first ones, and of as many equal runs of the others the middle one of each."""
    others = ranked[top:]
    sample = min(sample, len(others))
    middles = [(2 * run + 1) * len(others) // (2 * sample) for run in range(sample)]
    return [*ranked[:top], *(others[middle] for middle in middles)]


def median_s(row: Mapping[str, Any]) -> float:
    return statistics.median(row["steps_s"])


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


def measure(
    wanted: Sequence[Candidate],
    arguments: argparse.Namespace,
    keep: Callable[[str, list[float]], None],
) -> None:
    """Time layouts in processes of their own, and give the seconds of each to `keep` at once."""
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
        while any(each.exitcode is None for each in ranks) or not answers.empty():
            if any(each.exitcode for each in ranks):
                break
            while not answers.empty():
                keep(*answers.get())
            time.sleep(0.1)
        failed = any(each.exitcode for each in ranks)
        for each in ranks:
            each.kill()
            each.join()
    if failed:
        raise RuntimeError("a rank failed; its traceback is above, and what was timed is kept")


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
            steps_s = _steps_s(work, ranks, arguments.steps)
            if rank == 0:
                answers.put((name, steps_s))
        dist.destroy_process_group()
        if done:
            return


def _steps_s(work: Work, ranks: Ranks, num_steps: int) -> list[float]:
    """Of the slowest process, after one step that warms up."""
    run = random_step(work, ranks)
    found = []
    for _ in range(num_steps + 1):
        ranks.barrier()
        began = time.perf_counter()
        run()
        step_s = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(step_s, dist.ReduceOp.MAX)
        found.append(float(step_s))
    return found[1:]


def report(
    model: str, ranked: Sequence[Candidate], wanted: Sequence[Candidate], known: Table
) -> None:
    """The rows in their measured order, each with its predicted place and time."""
    rows = [
        (median_s(known[one.name]), place, one)
        for place, one in enumerate(ranked, 1)
        if one.name in known
    ]
    if not rows:
        show("no layout was timed; give more --seconds")
        return
    for step_s, place, one in sorted(rows, key=lambda row: row[0]):
        show(
            f"{one.name:60} {step_s * 1e3:7.0f} ms, predicted {one.time.step_s * 1e3:7.0f}"
            f" (place {place:2}), load {known[one.name]['load']:.1f}"
        )
    best_s, _, best = min(rows, key=lambda row: row[0])
    chosen_s = median_s(known[ranked[0].name]) if ranked[0].name in known else math.nan
    order = spearmanr([step_s for step_s, _, _ in rows], [place for _, place, _ in rows])
    found = {
        "model": model,
        "legal": len(ranked),
        "selected": len(wanted),
        "left": sum(one.name not in known for one in wanted),
        "measured": len(rows),
        "chosen": ranked[0].name,
        "chosen_ms": chosen_s * 1e3,
        "best": best.name,
        "best_ms": best_s * 1e3,
        "ratio": chosen_s / best_s,
        "within_5": chosen_s <= 1.05 * best_s,
        "spearman": float(order.statistic),
    }
    # JSON has no number for what was not measured.
    show(json.dumps({name: None if value != value else value for name, value in found.items()}))


if __name__ == "__main__":
    main()
