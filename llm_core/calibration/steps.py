"""Times whole training steps of small models, and takes from them what no operation shows alone:
how often blocks move what they keep, what a block takes to be launched, and what a step takes
whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from llm_core.calibration.operations import Stopwatch
from llm_core.data.batch import Batch
from llm_core.model.config import ModelConfig
from llm_core.optim.build import build_optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_time
from llm_core.training.config import TrainConfig
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step

NUM_LAYERS = 2
"""Of the steps that are timed: enough to tell blocks from the rest."""
NARROW = ModelConfig(64, 16, 1, 2, 2, 32, 16)
"""A model of which a step is launches alone."""


@dataclass(frozen=True)
class Step:
    """A setting and the least time of its step."""

    work: Work
    measured_s: float


def random_step(work: Work, ranks: Ranks) -> Callable[[], None]:
    """What does a training step on random tokens. Every rank of the layout builds and calls one."""
    # The trainer's config; its files of data are not read.
    nowhere = Path("none")
    config = RunConfig(
        work.model, work.optim, work.train, work.parallel, nowhere, nowhere, work.memory
    )
    layout = build_layout(
        work.model,
        work.parallel,
        work.train,
        ranks,
        work.memory,
        scratch=work.optim.state_folder,
    )
    optimizer = build_optimizer(layout, work.optim, work.train.dtype, ema=work.train.ema)
    rows = work.train.global_batch_sequences // work.parallel.dp
    tokens = torch.randint(work.model.vocab_size, (rows, work.train.seq_len + 1))
    batch = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def run() -> None:
        train_step(layout, optimizer, batch, work.optim.lr, config, ranks)

    return run


def time_step(
    work: Work, ranks: Ranks, watch: Stopwatch, clock: Callable[[], float] | None = None
) -> Step:
    """At least five steps after three. ranks: those of the layout; every process of the stopwatch
    calls it, and gets the time of its own. clock: None is that of the stopwatch, which leaves out
    waiting for others."""
    return Step(work, watch.least_s(random_step(work, ranks), 5, 3, clock))


def launch_ms(work: Work, ranks: Ranks, watch: Stopwatch) -> tuple[float, float]:
    """(of a block and micro batch, of a step), from narrow models of one and of five blocks."""
    train = replace(
        work.train,
        seq_len=8,
        global_batch_sequences=1,
        batch_ramp={},
        micro_batch_sequences=1,
        init_from=None,
    )
    narrow = Work(NARROW, work.optim, train, ParallelConfig(device=work.parallel.device))
    one, five = (
        time_step(replace(narrow, model=replace(NARROW, num_layers=n)), ranks, watch).measured_s
        for n in (1, 5)
    )
    block_s = max(0.0, five - one) / 4
    return block_s * 1e3, max(0.0, one - block_s) * 1e3


def own_steps(work: Work, max_tokens: int) -> list[Work]:
    """Settings of the model in few layers and one process: rows as they are, and half as long."""
    train = work.train
    found = []
    for seq_len in (train.seq_len, max(1, train.seq_len // 2)):
        rows = max(1, min(train.micro_batch_sequences, max_tokens // seq_len))
        settings: TrainConfig = replace(
            train,
            seq_len=seq_len,
            global_batch_sequences=rows,
            batch_ramp={},
            micro_batch_sequences=rows,
            init_from=None,
        )
        model = replace(work.model, num_layers=min(work.model.num_layers, NUM_LAYERS))
        one = ParallelConfig(device=work.parallel.device)
        found.append(Work(model, work.optim, settings, one, work.memory))
    return found


def fit_passes(steps: list[Step], hardware: HardwareConfig) -> float:
    """How often blocks move what they keep, that the steps take as long as they do: the mean of
    each. Predictions are linear in it."""
    found = []
    for step in steps:
        at_1, at_2 = (
            plan_time(step.work, replace(hardware, passes=passes)).step_s for passes in (1.0, 2.0)
        )
        found.append(1 + (step.measured_s - at_1) / (at_2 - at_1))
    return max(0.1, sum(found) / len(found))
