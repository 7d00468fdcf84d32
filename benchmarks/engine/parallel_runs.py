"""The runs of `benchmarks.engine.parallel`: a small model on the bytes of the sample, in four
processes, under layouts of every kind, and how each of them goes through steps."""

from __future__ import annotations

import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import throttled
from benchmarks.engine.layouts import WORLD
from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.data.batch import Batch
from llm_core.model.config import ModelConfig
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import OptimConfig
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.outer import OuterConfig
from llm_core.parallel.ranks import Ranks, make_meshes
from llm_core.training.config import TrainConfig
from llm_core.training.outer.diloco import Outer
from llm_core.training.run_config import RunConfig
from llm_core.training.throughput import StepClock
from llm_core.training.trainer import Trainer
from llm_core.training.validate import ValidationSet

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "sample.jsonl"
ROWS, TOKENS, WARMUP, ROUND_STEPS = 8, 128, 40, 20
MODEL = ModelConfig(256, 128, 4, 4, 4, 352, 1024)
"""That of `run=demo`, on bytes."""
OPTIM = OptimConfig(lr=3e-3, beta2=0.9, schedule="constant", warmup_steps=20)
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "DDP": (2, {}),
    "ZeRO-1": (2, {"kind": "zero1"}),
    "FSDP": (2, {"kind": "fsdp"}),
    "PP": (2, {"pp": 4}),
    "TP": (8, {"tp": 4}),
    "TP 2D": (8, {"tp": 4, "tp_kind": "2d"}),
    "int8": (2, {"compress": "int8"}),
    "PowerSGD": (2, {"compress": "powersgd", "compress_warmup_steps": WARMUP // 2}),
    "1-bit Adam": (2, {"compress": "onebit", "compress_warmup_steps": WARMUP - 5}),
    "DiLoCo": (2, {"kind": "none", "num_processes": 1}),
    "server": (2, {"kind": "server"}),
    "stale server": (2, {"kind": "server", "staleness": 3}),
}
"""(sequences of a micro batch, settings of `parallel` beside ddp)."""


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


class Deadline:
    """Asks a run to stop once its time is over; it has none at first."""

    at = math.inf

    def __call__(self) -> bool:
        return time.perf_counter() > self.at


def make_trainer(
    train: TrainConfig,
    parallel: ParallelConfig,
    optim: OptimConfig,
    rank: int,
    folder: Path,
    model: ModelConfig = MODEL,
) -> tuple[Trainer, Deadline]:
    """On rows of the sample's bytes; the deadline is for workers that do not wait for others."""
    nowhere, deadline = Path("none"), Deadline()
    config = RunConfig(model, optim, train, parallel, nowhere, nowhere)
    device = torch.device("cpu")
    world = parallel.num_processes
    ranks = Ranks(rank if world > 1 else 0, world, device, *make_meshes(parallel, device))
    layout = build_layout(model, parallel, train, ranks)
    optimizer = build_optimizer(layout, optim)
    text = Text()
    # A member of DiLoCo is a run of one process, and reads its share.
    share = parallel.outer.place or (ranks.data_rank, ranks.data_world)

    def batches(step: int) -> Batch:
        return text.batch(step, *share)

    trainer = Trainer(
        layout,
        optimizer,
        batches,
        text.validation(),
        config,
        ranks,
        Checkpoints(folder / f"saved-{rank}", ranks),
        None,
        None,
        StepClock(config, ranks),
        deadline,
    )
    return trainer, deadline


def meet(trainer: Trainer) -> None:
    """Wait for workers that do not wait for each other, if these are such."""
    if trainer._worker is not None:
        trainer._worker.meet()


def warmed_up(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The state after the first steps; members all take the same ones, with the whole batch."""
    plain, text = trainer.batches, Text()
    if trainer.config.parallel.outer.place is not None:
        trainer.batches = lambda step: text.batch(step, 0, 1)
    for step in range(WARMUP):
        trainer.train_step(step, OPTIM.lr * min(1.0, (step + 1) / OPTIM.warmup_steps))
    trainer.batches = plain
    meet(trainer)
    return collect_state(trainer.layout, trainer.optimizer)


def together(trainer: Trainer, everyone: Ranks, deadline: Deadline) -> int:
    """Steps until the time is over, as one of them finds, which is asked seldom: it takes a
    message. Where a step is long it takes little of it."""
    steps, every, done = 0, 1, False
    began = time.perf_counter()
    while not done:
        trainer.train_step(WARMUP + steps, OPTIM.lr)
        steps += 1
        if steps == 1:
            every = 1 if everyone.any(time.perf_counter() - began > 0.5) else 5
        done = steps % every == 0 and everyone.any(deadline())
    return steps


def in_rounds(
    trainer: Trainer, outer: Outer, everyone: Ranks, link: throttled.Link, deadline: Deadline
) -> int:
    """Steps of whole rounds of DiLoCo, whose files are as late as messages of their bytes."""
    steps, done = 0, False
    trainer.outer = outer
    with outer.attended(0):
        while not done:
            trainer.train_step(WARMUP + steps, OPTIM.lr)
            steps += 1
            if steps % ROUND_STEPS == 0:
                before = outer.moved_bytes
                outer.after(steps)
                link.pass_through(outer.moved_bytes - before, 2)
                done = everyone.any(deadline())
    trainer.outer = None
    return steps


def until_workers_stop(trainer: Trainer) -> int:
    """Steps until a worker finds that the time is over, and all stop after the same one."""
    worker, steps = trainer._worker, 0
    assert worker is not None
    while steps == 0 or not worker.stops:
        trainer.train_step(WARMUP + steps, OPTIM.lr)
        steps += 1
    worker.meet()
    return steps


def answer_of(rank: Callable[..., None], name: str, *given: Any) -> Any:
    """What the first of four processes leaves in `found.json` of a folder, where each runs
    `rank(its number, folder, name, *given)`. Raises RuntimeError once one of them fails."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=rank, args=(number, Path(folder), name, *given))
            for number in range(WORLD)
        ]
        for each in ranks:
            each.start()
        try:
            while any(each.exitcode is None for each in ranks):
                if any(each.exitcode for each in ranks):
                    break
                time.sleep(0.1)
            failed = any(each.exitcode for each in ranks)
        finally:
            # Those that wait for one that has failed would do so for long.
            for each in ranks:
                each.kill()
                each.join()
        if failed:
            raise RuntimeError(f"a process of {name} failed; its traceback is above")
        return json.loads((Path(folder) / "found.json").read_text("utf-8"))
