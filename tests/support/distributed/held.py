"""What each process of a data-parallel layout holds and sends in a step, measured: `python -m
tests.support.distributed.held FOLDER`.

Bytes are those of all storages that exist at once while a step of two micro batches runs, and of
all exchanges, as gloo carries them out. A model of many small blocks and few tokens, so that the
state of the weights outweighs a unit's buffers and activations. The last line is JSON.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from llm_core.model.config import ModelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, memory_of, plan_time
from llm_core.planner.weights import Coordinates
from llm_core.printing import show
from llm_core.training.trainer import Trainer
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import LR, make_trainer, ranks_of
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.problem import Problem
from tests.support.engine.live_bytes import LiveBytes

WORLD = 4
MICRO_BATCHES = 2
MODEL = ModelConfig(256, 192, 8, 4, 4, 512, 16)
KINDS = ("ddp", "zero1", "zero2", "fsdp")
SHARES = {"allreduce_": 2.0, "_reduce_scatter_base_": 2.0}
"""How often each process sends (n - 1) / n of the whole tensor; others once. gloo's reduce-scatter
is an all-reduce."""


@dataclass(frozen=True)
class Held:
    """Of the first process, in bytes a weight of the model."""

    kind: str
    dtype: str
    gradient_bits: int
    peak: float
    """Of a step, with activations and buffers."""
    rest: float
    """Between steps."""
    sent: float
    planned: float
    """As `peak`, by the planner's arithmetic."""
    planned_sent: float

    @property
    def name(self) -> str:
        bits = f", {self.gradient_bits}-bit gradients" if self.kind != "ddp" else ""
        return f"{self.kind} of {WORLD}, {self.dtype}{bits}"

    @property
    def is_right(self) -> bool:
        """Whether it holds and sends what it should."""
        as_planned = abs(self.peak / self.planned - 1) < 0.1
        # DDP has a second copy of gradients, which no formula counts.
        holds = self.published is None or self.kind == "ddp" or self.holds_the_published
        return as_planned and holds and abs(self.sent - self.planned_sent) < 0.1

    @property
    def holds_the_published(self) -> bool:
        """And besides no more than the gathered copies of four blocks, and the gradients of two as
        they come and as they are sent."""
        units = 4 + self.gradient_bits // 8
        return self.published is not None and 0 < self.peak - self.published < units * self.unit

    @property
    def unit(self) -> float:
        """Of a block in 16 bits."""
        return 2 / MODEL.num_layers

    @property
    def published(self) -> float | None:
        """Of weights, gradients and AdamW's state (Rajbhandari et al. 2020, section 5), with
        gradients of these bits and shards of weights in float32 alone; None for other formats."""
        gradient = self.gradient_bits // 8
        if self.dtype == "fp32":
            return None
        return {
            # Gradients are those of the float32 weights, whose copies autocast keeps.
            "ddp": 2.0 + 4 + 12,
            "zero1": 2 + gradient + 12 / WORLD,
            "zero2": 2 + (gradient + 12) / WORLD,
            "fsdp": (gradient + 12) / WORLD,
        }[self.kind]


class Watch(LiveBytes):
    """Counts what exchanges send, too."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation.namespace == "c10d":
            name = operation._schema.name.split("::")[1]
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            whole = max((each.nbytes for each in tensors), default=0)
            self.sent[name] += int(SHARES.get(name, 1.0) * whole * (WORLD - 1) / WORLD)
        return super().__torch_dispatch__(operation, types, args, kwargs)


def every_format() -> list[tuple[str, str, int]]:
    """(kind, dtype, gradient bits)."""
    formats = [("bf16", 32), ("bf16", 16), ("fp32", 32)]
    products = itertools.product(KINDS, formats)
    return [(kind, *form) for kind, form in products if kind != "ddp" or form[1] == 32]


def measure(kind: str, dtype: str, gradient_bits: int, ranks: Ranks, folder: Path) -> Held:
    """Every process must call it."""
    parallel = layout(WORLD, kind)
    problem = Problem(rows=WORLD * MICRO_BATCHES, dtype=dtype, gradient_bits=gradient_bits)  # type: ignore[arg-type]
    watch = Watch()
    # Watching takes longer than the step does.
    with watch if ranks.is_first else nullcontext():
        trainer = make_trainer(problem, parallel, 1, ranks, folder, model=MODEL)
        trainer.train_step(0, LR)
        rest, watch.peak, watch.sent = watch.now, 0, Counter()
        trainer.train_step(1, LR)
    count = MODEL.num_parameters()
    planned, planned_sent = _plan(trainer)
    numbers = watch.peak, rest, sum(watch.sent.values()), planned, planned_sent
    return Held(kind, dtype, gradient_bits, *(number / count for number in numbers))


def _plan(trainer: Trainer) -> tuple[float, float]:
    config = trainer.config
    hardware = HardwareConfig("any", 1, 1, 1, 1, node_gb_s=1, fragmentation=0.0, reserve_gb=0.0)
    work = Work(config.model, config.optim, config.train, config.parallel, config.memory)
    sent = sum(each.num_bytes for each in plan_time(work, hardware).traffic)
    return memory_of(work, hardware, Coordinates()).allocated, sent


def measure_in(folder: Path) -> list[Held]:
    """In processes of their own."""
    file = folder / "held.json"

    def run() -> None:
        found = [
            measure(*form, ranks_of(layout(WORLD, form[0])), folder) for form in every_format()
        ]
        if dist.get_rank() == 0:
            file.write_text(json.dumps([dataclasses.asdict(each) for each in found]), "utf-8")

    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    fork_ranks(WORLD, folder, run)
    return [Held(**values) for values in json.loads(file.read_text("utf-8"))]


def table(found: Sequence[Held]) -> str:
    lines = [
        "| layout | ZeRO's formula | measured peak | planned | sent | planned |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        formula = "-" if each.published is None else f"{each.published:.2f}"
        lines.append(
            f"| {each.name} | {formula} | {each.peak:.2f} | {each.planned:.2f} |"
            f" {each.sent:.2f} | {each.planned_sent:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    found = measure_in(Path(sys.argv[1]))
    show(table(found))
    show(json.dumps([dataclasses.asdict(each) for each in found]))


if __name__ == "__main__":
    main()
