"""Trains a small model under layouts of every kind over slow links, and compares what each has
learnt in the same time: four processes on this CPU, whose links are throttled
(`benchmarks.engine.throttled`).

`python -m benchmarks.engine.parallel --hardware FILE` trains every layout for 40 uncounted steps
over free links, and from there for `--seconds` over each link. By then 1-bit Adam is out of its
warm-up. Members of DiLoCo meet through files; their bytes are delayed as on a link. Losses are of
held-out text after the last step. Predictions are those of `llm_core.planner.step` with the
constants of the CPU in a record of `textmill calibrate`; without one there are none. `--chart FILE`
draws the losses.

The last line is JSON: {link: {layout: {"steps", "tokens_per_s", "predicted_tokens_per_s",
"bytes_per_step" (sent by one process), "val_loss"}}}.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engine import throttled
from benchmarks.engine.layouts import KINDS, WORLD
from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.config import build
from llm_core.data.batch import Batch
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import OptimConfig
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.outer import OuterConfig
from llm_core.parallel.places import local
from llm_core.parallel.ranks import Ranks, make_meshes
from llm_core.planner.hardware import HardwareConfig, LinkConfig, read_record
from llm_core.planner.step import Work, plan_time
from llm_core.printing import show
from llm_core.training.config import TrainConfig
from llm_core.training.outer.diloco import Outer
from llm_core.training.run_config import RunConfig
from llm_core.training.throughput import StepClock
from llm_core.training.trainer import Trainer
from llm_core.training.validate import ValidationSet, result

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "sample.jsonl"
ROWS, TOKENS, WARMUP, ROUND_STEPS = 8, 128, 40, 20
MODEL = ModelConfig(256, 128, 4, 4, 4, 352, 1024)
"""That of `run=demo`, on bytes."""
OPTIM = OptimConfig(lr=3e-3, beta2=0.9, schedule="constant", warmup_steps=20)
LINKS = {
    "10 Gb/s": (0.1e-3, 1.25e9),
    "1 Gb/s": (0.2e-3, 125e6),
    "100 Mb/s": (1e-3, 12.5e6),
    "100 Mb/s, 50 ms": (50e-3, 12.5e6),
}
"""(start, bytes per second)."""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "DDP": (2, {}),
    "ZeRO-1": (2, {"kind": "zero1"}),
    "FSDP": (2, {"kind": "fsdp"}),
    "PP": (2, {"pp": 4}),
    "TP": (8, {"tp": 4}),
    "int8": (2, {"compress": "int8"}),
    "PowerSGD": (2, {"compress": "powersgd", "compress_warmup_steps": WARMUP // 2}),
    "1-bit Adam": (2, {"compress": "onebit", "compress_warmup_steps": WARMUP - 5}),
    "DiLoCo": (2, {"kind": "none", "num_processes": 1}),
}
"""(sequences of a micro batch, settings of `parallel` beside ddp)."""
Rows = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hardware", type=Path, help="a record of textmill calibrate")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each layout and link")
    parser.add_argument("--only", nargs="*", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--chart", type=Path, help="SVG of the losses")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found: dict[str, Rows] = {link: {} for link in LINKS}
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            given = (Path(folder), name, arguments.seconds)
            ranks = [context.Process(target=_rank, args=(rank, *given)) for rank in range(WORLD)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            if any(rank.exitcode for rank in ranks):
                raise RuntimeError(f"a process of {name} failed; its traceback is above")
            measured = json.loads((Path(folder) / "found.json").read_text("utf-8"))
        for link, row in measured.items():
            row["predicted_tokens_per_s"] = predict(name, link, arguments.hardware)
            found[link][name] = row
            predicted = row["predicted_tokens_per_s"]
            show(
                f"{link:16} {name:11} {row['steps']:4} steps {row['tokens_per_s']:8.0f} tokens/s"
                f" (predicted {'-' if predicted is None else f'{predicted:.0f}'}),"
                f" {row['bytes_per_step'] / 1e6:7.3f} MB a step, loss {row['val_loss']:.3f}",
                flush=True,
            )
    if arguments.chart:
        arguments.chart.write_text(chart(found), "utf-8")
    show(json.dumps(found))


def settings(name: str, folder: Path, member: int = 0) -> tuple[TrainConfig, ParallelConfig]:
    micro, values = LAYOUTS[name]
    if name == "DiLoCo":
        outer = OuterConfig("diloco", ROUND_STEPS, WORLD, member, folder, lease_s=60)
        values = values | {"outer": outer}
    train = TrainConfig(
        num_steps=1_000_000 * ROUND_STEPS,
        seq_len=TOKENS,
        global_batch_sequences=ROWS,
        micro_batch_sequences=micro,
        dtype="fp32",
    )
    plain: dict[str, Any] = {
        "kind": "ddp",
        "num_processes": WORLD,
        "device": "cpu",
        "num_threads": 1,
    }
    return train, ParallelConfig(**(plain | values))


def predict(name: str, link: str, record: Path | None) -> float | None:
    """Tokens per second by the planner; for DiLoCo from steps of one process and its bytes."""
    if record is None:
        return None
    start_s, bytes_per_s = LINKS[link]
    links = {kind: LinkConfig(start_s * 1e6, bytes_per_s / 1e9) for kind in KINDS}
    hardware = replace(
        build(HardwareConfig, read_record(record)), links=links, overlap=1.0, devices_per_node=WORLD
    )
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


class Text:
    """Rows of bytes at places that depend on the step alone."""

    def __init__(self) -> None:
        lines = SAMPLE.read_text("utf-8").splitlines()
        text = "\n".join(json.loads(line)["text"] for line in lines).encode()
        whole = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._learnt, self._held_out = whole[: -(1 << 18)], whole[-(1 << 18) :]

    def batch(self, step: int, rank: int, world: int) -> Batch:
        """The share of a process."""
        rows = self._rows(self._learnt, step).chunk(world)[rank]
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    def _rows(self, text: torch.Tensor, seed: int, count: int = ROWS) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        begins = torch.randint(0, len(text) - TOKENS - 1, (count,), generator=generator)
        return torch.stack([text[begin : begin + TOKENS + 1] for begin in begins])

    def validation(self) -> ValidationSet:
        rows = self._rows(self._held_out, 0, 64)
        return ValidationSet(rows[:, :-1], rows[:, 1:], torch.ones(256, dtype=torch.int64))


def _rank(rank: int, folder: Path, name: str, seconds: float) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
    link, _ = throttled.register(*throttled.FREE)
    dist.init_process_group(
        throttled.NAME, init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    everyone = Ranks(rank, WORLD, torch.device("cpu"))
    trainer = make_trainer(name, rank, folder)
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
        found[of_link] = train_for(seconds, trainer, outer, everyone, link, speed)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def make_trainer(name: str, rank: int, folder: Path) -> Trainer:
    train, parallel = settings(name, folder, rank)
    nowhere = Path("none")
    config = RunConfig(MODEL, OPTIM, train, parallel, nowhere, nowhere)
    device = torch.device("cpu")
    world = parallel.num_processes
    ranks = Ranks(rank if world > 1 else 0, world, device, *make_meshes(parallel, device))
    layout = build_layout(MODEL, parallel, train, ranks)
    optimizer = build_optimizer(layout, OPTIM)
    text = Text()

    def batches(step: int) -> Batch:
        return text.batch(step, ranks.data_rank, ranks.data_world)

    saved = Checkpoints(folder / f"saved-{rank}", ranks)
    clock = StepClock(config, ranks)
    return Trainer(
        layout, optimizer, batches, text.validation(), config, ranks, saved, None, None, clock
    )


def warmed_up(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The state after the first steps; members all take the same ones, with the whole batch."""
    for step in range(WARMUP):
        trainer.train_step(step, OPTIM.lr * min(1.0, (step + 1) / OPTIM.warmup_steps))
    return collect_state(trainer.layout, trainer.optimizer)


def train_for(
    seconds: float,
    trainer: Trainer,
    outer: Outer | None,
    everyone: Ranks,
    link: throttled.Link,
    speed: tuple[float, float],
) -> dict[str, Any]:
    """Train from the present state over a link of this speed."""
    layout, step, done = trainer.layout, WARMUP, False
    link.set_speed(*speed)
    sent, began = link.sent_bytes, time.perf_counter()
    if outer is not None:
        plain, text, rank = trainer.batches, Text(), everyone.rank

        trainer.batches = lambda step: text.batch(step, rank, WORLD)
        trainer.outer = outer
        with outer.attended(0):
            moved, first = outer.moved_bytes, step
            while not done:
                trainer.train_step(step, OPTIM.lr)
                step += 1
                if (step - first) % ROUND_STEPS == 0:
                    before = outer.moved_bytes
                    outer.after(step - first)
                    link.pass_through(outer.moved_bytes - before, 2)
                    done = everyone.any(time.perf_counter() - began > seconds)
            sent_bytes = float(outer.moved_bytes - moved)
        trainer.batches, trainer.outer = plain, None
    else:
        while not done:
            trainer.train_step(step, OPTIM.lr)
            step += 1
            done = step % 5 == 0 and everyone.any(time.perf_counter() - began > seconds)
        sent_bytes = link.sent_bytes - sent
    elapsed_s = time.perf_counter() - began
    link.set_speed(*throttled.FREE)
    sums = trainer.validation_sums()
    assert sums is not None and layout is trainer.layout
    steps = step - WARMUP
    return {
        "steps": steps,
        "tokens_per_s": steps * ROWS * TOKENS / elapsed_s,
        "bytes_per_step": sent_bytes / steps,
        "val_loss": result(sums[0].cpu()).val_loss,
    }


def chart(found: dict[str, Rows]) -> str:
    """Bars of the loss of each layout, link by link."""
    losses = [row["val_loss"] for rows in found.values() for row in rows.values()]
    least, most = min(losses) - 0.05, max(losses)
    parts, y = [], 10
    for link, rows in found.items():
        parts.append(f'<text x="10" y="{y + 14}" font-weight="bold">{link}</text>')
        y += 22
        best = min(row["val_loss"] for row in rows.values())
        for name, row in sorted(rows.items(), key=lambda item: item[1]["val_loss"]):
            loss = row["val_loss"]
            width = 20 + 380 * (loss - least) / (most - least or 1)
            colour = "#2a6f97" if loss == best else "#a9c5d6"
            parts.append(f'<text x="110" y="{y + 12}" text-anchor="end">{name}</text>')
            parts.append(f'<rect x="118" y="{y}" width="{width:.0f}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{124 + width:.0f}" y="{y + 12}">{loss:.3f}</text>')
            y += 18
        y += 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{y}"'
        f' font-family="sans-serif" font-size="12"><rect width="600" height="{y}" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    main()
