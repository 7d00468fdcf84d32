"""Trains a small model on the same tokens under layouts that change the result, in the engine
itself, and compares the loss and the bytes sent for each token: four processes on this CPU.

`python -m benchmarks.engine.equal_tokens --steps 1000 --table FILE` takes so many steps of 8 x 128
bytes of the sample on a cosine, with the same initial weights and rows for all. Losses are of
held-out text after the last step. What is compared is arithmetic and bytes: links are free, and no
time is measured. `--table FILE` gets a line of JSON for each run as soon as it is done; a call with
the same file continues after those of the same settings.

The last line is JSON: {run: {"val_loss", "over" (val_loss over that of the run it is compared with,
less 1), "bytes_per_token" (sent by a process in the mean, for each token of the whole batch)}}.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.engine import throttled
from benchmarks.engine.layouts import WORLD, add_rows
from benchmarks.engine.parallel_runs import (
    MODEL,
    ROWS,
    TOKENS,
    answer_of,
    make_trainer,
    meet,
    settings,
)
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.ranks import Ranks
from llm_core.printing import percent, show
from llm_core.training.metric_log import iter_rows
from llm_core.training.outer.diloco import make_outer
from llm_core.training.schedule import learning_rate
from llm_core.training.trainer import Trainer
from llm_core.training.validate import result

ADAM = OptimConfig(lr=1e-3, beta2=0.98, warmup_steps=50)
LAMB = replace(ADAM, kind="lamb", lr=5e-3)
MODELS = {"demo": MODEL, "tiny": ModelConfig(256, 64, 2, 4, 4, 176, 1024)}
RUNS: dict[str, tuple[str, OptimConfig, str]] = {
    "AdamW": ("DDP", ADAM, "AdamW"),
    "1-bit Adam": ("1-bit Adam", ADAM, "AdamW"),
    "PowerSGD": ("PowerSGD", ADAM, "AdamW"),
    "int8": ("int8", ADAM, "AdamW"),
    "DiLoCo": ("DiLoCo", ADAM, "AdamW"),
    "stale server": ("stale server", ADAM, "AdamW"),
    "LAMB": ("DDP", LAMB, "AdamW"),
    "1-bit LAMB": ("1-bit Adam", LAMB, "LAMB"),
}
"""(layout of `benchmarks.engine.parallel_runs`, optimizer, what its loss is compared with)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="demo")
    add("--steps", type=int, default=1000)
    add("--seed", type=int, default=0, help="of the initial weights")
    add("--warmup", type=int, default=200, help="steps whose sums are exact")
    add("--compress-rank", type=int, default=4, help="of PowerSGD")
    add("--only", nargs="*", default=list(RUNS), choices=RUNS)
    add("--table", type=Path, help="JSON lines of the runs so far")
    arguments = parser.parse_args()
    names = ("model", "steps", "seed", "warmup", "compress_rank")
    asked: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        table = arguments.table or Path(folder) / "table.jsonl"
        for name in arguments.only:
            setting = setting_of(name, asked)
            if not any(setting.items() <= row.items() for row in iter_rows(table)):
                add_rows(table, [setting | answer_of(_rank, name, asked)])
        found = {
            row["run"]: row
            for row in iter_rows(table)
            if setting_of(row["run"], asked).items() <= row.items()
        }
    for name, row in found.items():
        base = found.get(RUNS[name][2])
        row["over"] = None if base is None else row["val_loss"] / base["val_loss"] - 1
        show(
            f"{name:12} loss {row['val_loss']:.4f}"
            f" ({'-' if row['over'] is None else percent(row['over'], '+.2')}),"
            f" {row['bytes_per_token']:9.1f} bytes a token"
        )
    show(json.dumps(found))


def setting_of(name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What decides the result of a run."""
    compress = settings(RUNS[name][0], Path("none"))[1].compress
    used = {"onebit": {"warmup"}, "powersgd": {"warmup", "compress_rank"}}.get(compress, set())
    return {"run": name} | {
        key: value for key, value in asked.items() if key in {"model", "steps", "seed"} | used
    }


def _rank(rank: int, folder: Path, name: str, asked: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
    link, _ = throttled.register(*throttled.FREE)
    dist.init_process_group(
        throttled.NAME, init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    layout, optim, _ = RUNS[name]
    config, parallel = settings(layout, folder / "meeting", rank)
    config = replace(config, num_steps=asked["steps"], seed=asked["seed"])
    if parallel.compress in ("powersgd", "onebit"):
        parallel = replace(
            parallel,
            compress_warmup_steps=asked["warmup"],
            compress_rank=asked["compress_rank"],
        )
    trainer, _ = make_trainer(config, parallel, optim, rank, folder, MODELS[asked["model"]])
    everyone = Ranks(rank, WORLD, torch.device("cpu"))
    sent_bytes = float(everyone.sum(take_steps(trainer, asked["steps"], everyone, link))) / WORLD
    sums = trainer.validation_sums()
    assert sums is not None
    if rank == 0:
        row = {
            "val_loss": result(sums[0].cpu()).val_loss,
            "bytes_per_token": sent_bytes / (asked["steps"] * ROWS * TOKENS),
        }
        (folder / "found.json").write_text(json.dumps(row), "utf-8")
    everyone.barrier()
    dist.destroy_process_group()


def take_steps(trainer: Trainer, steps: int, everyone: Ranks, link: throttled.Link) -> Tensor:
    """Train to the end; the bytes that this process has sent."""
    outer = trainer.outer = make_outer(trainer.config.parallel, trainer.layout)
    attended = nullcontext(0) if outer is None else outer.attended(0)
    sent = link.sent_bytes
    with attended:
        # Members that start alone would end the first round without the others.
        everyone.barrier()
        for step in range(1, steps + 1):
            trainer.train_step(step - 1, learning_rate(step, steps, trainer.config.optim))
            if outer is not None:
                outer.after(step)
        meet(trainer)
    moved = 0 if outer is None else outer.moved_bytes
    return torch.tensor(link.sent_bytes - sent + moved, dtype=torch.float64)


if __name__ == "__main__":
    main()
