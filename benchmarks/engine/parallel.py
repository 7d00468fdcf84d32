"""Trains a small model under layouts of every kind over slow links, and compares what each has
learnt in the same time: four processes on this CPU, whose links are throttled
(`benchmarks.engine.throttled`).

`python -m benchmarks.engine.parallel` trains every layout for 40 uncounted steps over free links,
and from there for `--seconds` over each link. By then 1-bit Adam is out of its warm-up. Members of
DiLoCo meet through files; their bytes are delayed as on a link. Losses are of held-out text after
the last step. Predictions are those of `llm_core.planner.step` with the constants of the CPU in the
record of `textmill calibrate` that `--hardware FILE` names; without one the machine is calibrated
first, for as many processes.

`--table FILE` gets a line of JSON for each layout and link once that layout is done, and a call
with the same file continues after those of as many seconds. `--chart FILE` draws the table.

The last line is JSON: {link: {layout: {"steps", "tokens_per_s", "predicted_tokens_per_s",
"bytes_per_step" (sent by one process), "val_loss"}}}.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engine import throttled
from benchmarks.engine.layouts import KINDS, WORLD, add_rows
from benchmarks.engine.parallel_chart import chart
from benchmarks.engine.parallel_runs import (
    LAYOUTS,
    MODEL,
    OPTIM,
    ROUND_STEPS,
    ROWS,
    TOKENS,
    Deadline,
    answer_of,
    in_rounds,
    make_trainer,
    settings,
    together,
    until_workers_stop,
    warmed_up,
)
from benchmarks.engine.plan import calibrate
from llm_core.checkpoint.state import collect_state
from llm_core.config import build
from llm_core.model.transformer import Transformer
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.places import local
from llm_core.parallel.ranks import Ranks
from llm_core.planner.hardware import HardwareConfig, LinkConfig, read_record
from llm_core.planner.step import Work, plan_time
from llm_core.printing import show
from llm_core.training.metric_log import iter_rows
from llm_core.training.outer.diloco import Outer
from llm_core.training.trainer import Trainer
from llm_core.training.validate import result

LINKS = {
    "10 Gb/s": (0.1e-3, 1.25e9),
    "1 Gb/s": (0.2e-3, 125e6),
    "100 Mb/s": (1e-3, 12.5e6),
    "100 Mb/s, 50 ms": (50e-3, 12.5e6),
}
"""(start, bytes per second)."""
Rows = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hardware", type=Path, help="a record of textmill calibrate")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each layout and link")
    parser.add_argument("--only", nargs="*", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--table", type=Path, help="JSON lines of what was measured so far")
    parser.add_argument("--chart", type=Path, help="SVG of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = arguments.table or Path(folder) / "table.jsonl"
        asked = {"seconds": arguments.seconds}
        known = {row["layout"] for row in iter_rows(table) if asked.items() <= row.items()}
        missing = [name for name in arguments.only if name not in known]
        if missing:
            hardware = hardware_of(arguments.hardware, Path(folder))
        for name in missing:
            measured = answer_of(_rank, name, arguments.seconds)
            add_rows(table, [row | asked for row in rows_of(name, measured, hardware)])
        found: dict[str, Rows] = {link: {} for link in LINKS}
        for row in iter_rows(table):
            if asked.items() <= row.items():
                found[row.pop("link")][row.pop("layout")] = row
    if arguments.chart:
        arguments.chart.write_text(chart(found), "utf-8")
    show(json.dumps(found))


def hardware_of(record: Path | None, state: Path) -> HardwareConfig:
    return calibrate(WORLD, state) if record is None else build(HardwareConfig, read_record(record))


def rows_of(name: str, measured: Rows, hardware: HardwareConfig) -> list[dict[str, Any]]:
    """With what was predicted, each shown."""
    rows = []
    for link, row in measured.items():
        predicted = predict(name, link, hardware)
        show(
            f"{link:16} {name:12} {row['steps']:4} steps {row['tokens_per_s']:8.0f} tokens/s"
            f" (predicted {predicted:.0f}), {row['bytes_per_step'] / 1e6:7.3f} MB a step,"
            f" loss {row['val_loss']:.3f}",
            flush=True,
        )
        rows.append({"layout": name, "link": link} | row | {"predicted_tokens_per_s": predicted})
    return rows


def predict(name: str, link: str, hardware: HardwareConfig) -> float:
    """Tokens per second by the planner; for DiLoCo from steps of one process and its bytes."""
    start_s, bytes_per_s = LINKS[link]
    links = {kind: LinkConfig(start_s * 1e6, bytes_per_s / 1e9) for kind in KINDS}
    hardware = replace(hardware, links=links, overlap=1.0, devices_per_node=WORLD)
    train, parallel = settings(name, Path("none"))
    if name != "DiLoCo":
        step_s = plan_time(Work(MODEL, OPTIM, train, parallel), hardware).step_s
        return ROWS * TOKENS / step_s
    alone = replace(train, global_batch_sequences=ROWS // WORLD)
    single = ParallelConfig(device="cpu", num_threads=1)
    step_s = plan_time(Work(MODEL, OPTIM, alone, single), hardware).step_s
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in Transformer(MODEL).parameters())
    return ROWS * TOKENS / (step_s + (2 * 4 * weights / bytes_per_s + 2 * start_s) / ROUND_STEPS)


def _rank(rank: int, folder: Path, name: str, seconds: float) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
    link, _ = throttled.register(*throttled.FREE)
    dist.init_process_group(
        throttled.NAME, init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    everyone = Ranks(rank, WORLD, torch.device("cpu"))
    trainer, deadline = make_trainer(*settings(name, folder, rank), OPTIM, rank, folder)
    begin = {key: local(t).clone() for key, t in warmed_up(trainer).items()}
    found: Rows = {}
    for number, (of_link, speed) in enumerate(LINKS.items()):
        state = collect_state(trainer.layout, trainer.optimizer)
        for key, tensor in begin.items():
            local(state[key]).copy_(tensor)
        outer = None
        if name == "DiLoCo":
            meeting = replace(trainer.config.parallel.outer, folder=folder / f"meeting-{number}")
            outer = Outer(meeting, trainer.layout)
        everyone.barrier()
        found[of_link] = train_for(seconds, trainer, deadline, outer, everyone, link, speed)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def train_for(
    seconds: float,
    trainer: Trainer,
    deadline: Deadline,
    outer: Outer | None,
    everyone: Ranks,
    link: throttled.Link,
    speed: tuple[float, float],
) -> dict[str, Any]:
    """Train from the present state over a link of this speed."""
    link.set_speed(*speed)
    sent, began = link.sent_bytes, time.perf_counter()
    deadline.at = began + seconds
    if outer is not None:
        steps = in_rounds(trainer, outer, everyone, link, deadline)
    elif trainer._worker is not None:
        steps = until_workers_stop(trainer)
    else:
        steps = together(trainer, everyone, deadline)
    elapsed_s = time.perf_counter() - began
    deadline.at = math.inf
    link.set_speed(*throttled.FREE)
    sent_bytes = link.sent_bytes - sent
    sums = trainer.validation_sums()
    assert sums is not None
    return {
        "steps": steps,
        "tokens_per_s": steps * ROWS * TOKENS / elapsed_s,
        "bytes_per_step": sent_bytes / steps,
        "val_loss": result(sums[0].cpu()).val_loss,
    }


if __name__ == "__main__":
    main()
