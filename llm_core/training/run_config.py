"""Configures a trainer process, and checks what goes together: layouts against layers, heads,
tokens and micro batches.

A layout that cannot run is refused with its whole product and the nearest that can. Standard
library only, as `llm_core.training.config`.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_core.config import ConfigError, build
from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.model.adapter import AdapterConfig, adapted
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig, OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import (
    StagePlan,
    check_context,
    check_expert_ranks,
    check_tensor,
    divisors,
)
from llm_core.parallel.grid.shape import check_grid
from llm_core.training.combinations.settings import (
    check_compression,
    check_places,
    check_settings,
)
from llm_core.training.config import TrainConfig
from llm_core.training.fit import PredictedMemory


@dataclass(frozen=True)
class RunConfig:
    """The whole input of the trainer process, written to a file before it starts."""

    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    parallel: ParallelConfig
    shards: Path
    """Folder of token shards."""
    bytes_per_token: Path
    """int32 array: UTF-8 bytes that each token id stands for."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    predicted: PredictedMemory | None = None
    """What the run is held against the memory of its device by. None: it is not."""

    def __post_init__(self) -> None:
        model = self.trained_model
        check_run(model, self.train, self.parallel, self.memory, self.optim.kind)
        check_compression(self.optim, self.train, self.parallel)
        check_places(self.optim, self.memory)
        if self.parallel.kind == "auto":
            raise ConfigError(
                "parallel.kind (auto) must be resolved before a trainer starts; name a layout"
            )
        if self.model.vocab_size == 0:
            raise ConfigError(
                "model.vocab_size (0) must be resolved before a trainer starts; give the size of"
                " the tokenizer"
            )

    @property
    def trained_model(self) -> ModelConfig:
        """The model with the factors of its adapter, where it has one."""
        return adapted(self.model, self.adapter)


def read_run_config(file: Path) -> RunConfig:
    """Raises ConfigError where the file is not the JSON of a run."""
    try:
        values = json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--config {file} is not JSON ({error}); give the resolved config of a run"
        ) from error
    return build(RunConfig, values)


def check_run(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig = NO_SAVINGS,
    optimizer: OptimizerKind = "adamw",
) -> None:
    """Raises ConfigError for groups that do not fit together, and names degrees that would run."""

    def check(parallel: ParallelConfig) -> None:
        check_layout(model, train, parallel, memory, optimizer)

    if train.seq_len > model.max_seq_len:
        raise ConfigError(
            f"train.seq_len ({train.seq_len}) must not exceed model.max_seq_len"
            f" ({model.max_seq_len}); set model.max_seq_len={train.seq_len}"
        )
    if parallel.kind == "auto":
        return  # the planner takes none that cannot run
    try:
        _check_degrees(model, train, parallel)
    except ConfigError as error:
        divides = parallel.num_processes % (parallel.pp * parallel.cp * parallel.tp) == 0
        if divides and parallel.num_processes == 1:
            raise
        own = f"num_processes {parallel.num_processes} = {parallel.product}; " if divides else ""
        raise ConfigError(f"{error} ({own}{_what_can_run(parallel, check)})") from None
    check_settings(model, train, parallel, memory, optimizer)


def check_layout(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig = NO_SAVINGS,
    optimizer: OptimizerKind = "adamw",
) -> None:
    """As `check_run`, for many layouts in turn: looks for none that would run instead."""
    _check_degrees(model, train, parallel)
    check_settings(model, train, parallel, memory, optimizer)


def _what_can_run(parallel: ParallelConfig, check: Callable[[ParallelConfig], None]) -> str:
    """The nearest products of as many processes, or else the most processes that can run."""
    if near := nearest_layouts(parallel, check):
        return f"nearest that can run: {' or '.join(other.product for other in near)}"
    for num_processes in range(parallel.num_processes - 1, 0, -1):
        with contextlib.suppress(ConfigError):
            check(replace(parallel, num_processes=num_processes))
            return f"no other product of as many can run; num_processes={num_processes} can"
    return "no other product of as many or fewer can run with the rest as it is"


def nearest_layouts(
    parallel: ParallelConfig, check: Callable[[ParallelConfig], None], most: int = 2
) -> list[ParallelConfig]:
    """Layouts of as many processes that pass, by how little their degrees differ as ratios."""

    def distance(degrees: tuple[int, ...]) -> float:
        asked = (parallel.pp, parallel.cp, parallel.tp, parallel.dp_shard or degrees[3])
        return sum(abs(math.log(a / b)) for a, b in zip(degrees, asked, strict=True) if a)

    products = [
        (pp, cp, tp, shard)
        for pp in divisors(parallel.num_processes)
        for cp in divisors(parallel.num_processes // pp)
        for tp in divisors(parallel.num_processes // pp // cp)
        for shard in (
            divisors(parallel.num_processes // pp // tp) if parallel.kind == "hsdp" else [0]
        )
    ]
    found: list[ParallelConfig] = []
    for pp, cp, tp, shard in sorted(products, key=distance):
        with contextlib.suppress(ConfigError):
            other = replace(parallel, pp=pp, cp=cp, tp=tp, dp_shard=shard)
            check(other)
            found.append(other)
        if len(found) == most:
            break
    return found


def _check_degrees(model: ModelConfig, train: TrainConfig, parallel: ParallelConfig) -> None:
    """Raises ConfigError where layers, heads, tokens or micro batches do not divide."""
    check_shares(parallel)
    plan = parallel.plan(model)
    piece = train.micro_batch_sequences * parallel.readers
    for size in reversed(train.batch_sizes.all):
        name = "global_batch_sequences" if size == train.global_batch_sequences else "batch_ramp"
        if size % piece:
            suggestion = max(1, size // piece) * piece
            is_plain = parallel.pp * parallel.cp * parallel.tp == 1
            of = "num_processes" if is_plain else "data-parallel degree"
            of = "outer.members" if parallel.outer.kind != "none" else of
            raise ConfigError(
                f"train.{name} ({size}) must be a multiple of micro_batch_sequences x {of}"
                f" ({train.micro_batch_sequences} x {parallel.readers});"
                f" {_smaller_micro_batch(train, parallel.readers, plan)}try"
                f" {suggestion if name == 'batch_ramp' else f'{name}={suggestion}'}"
            )
        if plan is not None:
            plan.check_micro_batches(size // piece, _smaller_micro_batch(train, parallel.dp, plan))
    if parallel.cp > 1:
        check_context(
            model, train.seq_len, parallel.cp, parallel.cp_kind, parallel.cp_balanced, parallel.tp
        )
    if parallel.ep > 1:
        shares = parallel.dp_shard or parallel.dp * parallel.cp
        check_expert_ranks(model, parallel.ep, shares, parallel.tp)
    if parallel.grid is not None:
        check_grid(model, parallel.grid)
    elif parallel.tp > 1:
        check_tensor(model, train.seq_len // parallel.cp, parallel.tp, parallel.sequence_parallel)


def check_shares(parallel: ParallelConfig) -> None:
    """Whether each axis, and the groups of hsdp, get whole processes. Raises ConfigError."""
    together = parallel.pp * parallel.cp * parallel.tp
    if parallel.num_processes % together:
        raise ConfigError(
            f"parallel.num_processes ({parallel.num_processes}) must be a multiple of pp x cp x tp "
            f"({parallel.pp} x {parallel.cp} x {parallel.tp})"
        )
    if parallel.kind != "hsdp" and parallel.dp_shard:
        raise ConfigError(
            f"parallel.dp_shard ({parallel.dp_shard}) belongs to kind=hsdp, kind is"
            f" {parallel.kind}; set parallel.dp_shard=0"
        )
    replicas = parallel.num_processes // (parallel.pp * parallel.tp)
    if parallel.kind == "hsdp" and (
        not 1 < parallel.dp_shard < replicas or replicas % parallel.dp_shard
    ):
        possible = [size for size in divisors(replicas) if 1 < size < replicas]
        way_out = "use fsdp, or more processes"
        if possible:
            way_out = f"try dp_shard={' or '.join(map(str, possible))}"
        raise ConfigError(
            f"parallel.dp_shard ({parallel.dp_shard}) must divide the {replicas} processes that"
            f" hold the same layers into groups of two or more; {way_out}"
        )


def _smaller_micro_batch(train: TrainConfig, dp: int, plan: StagePlan | None) -> str:
    """The way out that leaves training as it is: the largest smaller micro batch that can run."""
    for size in range(train.micro_batch_sequences - 1, 0, -1):
        if all(
            each % (size * dp) == 0
            and (plan is None or plan.micro_batch_rule(each // (size * dp)) is None)
            for each in train.batch_sizes.all
        ):
            return f"try micro_batch_sequences={size} for the same steps, or "
    return ""
