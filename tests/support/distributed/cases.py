"""The cases of the exactness matrix: layouts, and what is varied under each."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, get_args

from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.optim.config import OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import V_SHAPED, ContextKind
from tests.support.distributed.problem import ROWS, Problem


@dataclass(frozen=True)
class Case:
    """A problem under a layout of `parallel`, in micro batches of `micro` sequences."""

    parallel: ParallelConfig
    problem: Problem
    micro: int
    memory: MemoryConfig = NO_SAVINGS

    @property
    def layout(self) -> str:
        return layout_name(self.parallel)


def layout(world: int, kind: str, **values: Any) -> ParallelConfig:
    return ParallelConfig(num_processes=world, kind=kind, device="cpu", num_threads=1, **values)  # type: ignore[arg-type]


def layout_name(parallel: ParallelConfig) -> str:
    """As in the table: the axes with more than one process, and how the data-parallel processes
    hold their weights."""
    stages = f" of {parallel.pp_stages_per_rank}" if parallel.pp_stages_per_rank else ""
    parts = [f"pp{parallel.pp} {parallel.pp_schedule}{stages}"] if parallel.pp > 1 else []
    parts += (
        [f"cp{parallel.cp} {parallel.cp_kind}{' balanced' if parallel.cp_balanced else ''}"]
        if parallel.cp > 1
        else []
    )
    overlap = "" if parallel.tp_overlap == "none" else f" {parallel.tp_overlap}"
    grid = parallel.grid
    parts += [f"tp{grid.side}x{grid.side}x{grid.depth} {grid.kind}"] if grid is not None else []
    parts += (
        [f"tp{parallel.tp}{' sequence' if parallel.sequence_parallel else ''}{overlap}"]
        if parallel.tp > 1 and grid is None
        else []
    )
    replicas = parallel.dp * parallel.cp
    if parallel.kind == "hsdp":
        parts.append(f"hsdp of {replicas // parallel.dp_shard} x {parallel.dp_shard}")
    elif replicas > 1:
        some = f", {parallel.servers} of them servers" if parallel.servers else ""
        parts.append(f"{parallel.kind} of {replicas}{some}")
    parts += [f"ep{parallel.ep}"] if parallel.ep > 1 else []
    return ", ".join(parts) or "single"


LAYOUTS = [
    layout(1, "none"),
    *(layout(4, kind) for kind in ("ddp", "zero1", "zero2", "fsdp")),
    layout(4, "hsdp", dp_shard=2),
    layout(4, "ddp", tp=4),
    layout(4, "ddp", tp=4, sequence_parallel=False),
    *(layout(4, kind, tp=2) for kind in ("ddp", "zero1", "zero2", "fsdp")),
    layout(4, "ddp", tp=4, tp_overlap="ring"),
    layout(4, "fsdp", tp=2, tp_overlap="ring"),
    layout(4, "ddp", pp=2, tp=2, pp_schedule="zero_bubble", tp_overlap="ring"),
    *(
        layout(4, "ddp", pp=4, pp_schedule=s)
        for s in (
            "naive",
            "gpipe",
            "1f1b",
            "interleaved",
            "zero_bubble",
            "zero_bubble_v",
            "dualpipe_v",
        )
    ),
    *(layout(4, kind, pp=2) for kind in ("ddp", "zero1", "zero2", "fsdp")),
    layout(4, "fsdp", pp=2, pp_schedule="zero_bubble_v"),
    layout(4, "ddp", pp=2, pp_schedule="interleaved", pp_stages_per_rank=3),
    layout(4, "ddp", pp=2, tp=2),
    layout(4, "ddp", pp=2, tp=2, pp_schedule="interleaved", sequence_parallel=False),
    layout(4, "ddp", cp=4),
    layout(4, "ddp", cp=4, cp_balanced=True),
    layout(4, "ddp", cp=4, cp_kind="ulysses"),
    layout(4, "ddp", cp=4, cp_kind="ring"),
    layout(4, "ddp", cp=4, cp_kind="ring", cp_balanced=True),
    *(layout(4, kind, cp=2) for kind in ("zero1", "fsdp")),
    layout(4, "fsdp", cp=2, cp_kind="ring", cp_balanced=True),
    layout(4, "ddp", cp=2, tp=2),
    layout(4, "ddp", cp=2, tp=2, cp_kind="ring"),
    layout(4, "ddp", pp=2, cp=2),
    layout(4, "ddp", pp=2, cp=2, cp_balanced=True),
    layout(4, "ddp", pp=2, cp=2, cp_kind="ulysses"),
    layout(4, "zero2", cp=2, cp_kind="ulysses"),
    layout(4, "hsdp", dp_shard=2, cp=2),
    layout(4, "fsdp", pp=2, pp_schedule="interleaved"),
    *(layout(8, kind, pp=2, tp=2) for kind in ("ddp", "zero1", "zero2", "fsdp")),
    layout(8, "zero1", pp=2, tp=2, pp_schedule="interleaved"),
    layout(8, "zero1", pp=2, tp=2, pp_schedule="dualpipe_v"),
    layout(8, "hsdp", dp_shard=2, tp=2),
    layout(8, "hsdp", dp_shard=2, pp=2),
    layout(8, "fsdp", cp=2, tp=2),
    layout(8, "zero1", cp=2, tp=2),
    layout(8, "ddp", pp=2, cp=2, tp=2),
    layout(8, "fsdp", pp=2, cp=2),
]
"""Of four and of eight processes; the first is one process that accumulates."""

VARIED = [
    Problem(vocab=vocab, tied=tied, masks=masks)
    for vocab, tied, masks in itertools.product((64, 51), (True, False), ("uneven", "idle"))
]
FAMILIES = [
    Problem(family=family, tied=family == "gpt2", packed=family != "gpt2", z_loss=z_loss)
    for family, z_loss in (("qwen2", 0.0), ("qwen3", 0.1), ("gpt2", 0.0))
]

FROZEN = [Problem(frozen=r"^embedding|\.attention\.qkv\.|norm", tied=False)]
OPTIMIZERS = [
    Problem(optim=kind, tied=kind == "muon", ema=0.5)
    for kind in get_args(OptimizerKind)[1:]
    if kind != "lamb"
]
OFFLOADED = [Problem(state_in="disk"), Problem(state_in="disk", optim="lion", tied=False, ema=0.5)]

CROSS = [
    (layout(4, "fsdp"), layout(4, "ddp", tp=4)),
    (layout(4, "ddp", tp=4), layout(4, "fsdp")),
    (layout(4, "fsdp", tp=2), layout(4, "zero1", pp=2)),
    (layout(4, "zero1", pp=2), layout(4, "fsdp", tp=2)),
    (layout(4, "hsdp", dp_shard=2), layout(4, "zero1", tp=2)),
    (layout(4, "zero1", tp=2), layout(4, "ddp", pp=4, pp_schedule="zero_bubble_v")),
    (layout(4, "ddp", pp=4, pp_schedule="zero_bubble_v"), layout(4, "zero2")),
    (layout(4, "zero1"), layout(4, "fsdp", cp=2)),
    (layout(8, "zero1", pp=2, tp=2), layout(8, "fsdp", cp=2, tp=2)),
    (layout(8, "fsdp", pp=2, tp=2), layout(8, "hsdp", dp_shard=2, pp=2)),
    (layout(8, "hsdp", dp_shard=2, tp=2), layout(8, "ddp", pp=2, cp=2, tp=2)),
    (layout(8, "ddp", pp=2, cp=2, tp=2), layout(8, "zero1", pp=2, tp=2, pp_schedule="dualpipe_v")),
]
"""Who saves, who loads."""
SERVED_CROSS = [
    (layout(4, "server"), layout(4, "ddp")),
    (layout(4, "ddp"), layout(4, "server", servers=3)),
]


def micro_sizes(parallel: ParallelConfig, rows: int) -> tuple[int, ...]:
    """Sequences in a micro batch: all that a process has of `rows`, and half of them, if that is
    one or more.

    A pipeline needs as many micro batches as ranks, one in the shape of a V as stages.
    """
    most = rows // (parallel.dp * _least_micro_batches(parallel))
    return tuple(size for size in (most, most // 2) if size >= 1)


def rows_for(parallel: ParallelConfig) -> int:
    """So many sequences that there are two sizes of micro batches."""
    return max(ROWS, 2 * parallel.dp * _least_micro_batches(parallel))


def _least_micro_batches(parallel: ParallelConfig) -> int:
    return parallel.pp * (2 if parallel.pp > 1 and parallel.pp_schedule in V_SHAPED else 1)


def layers_for(*layouts: ParallelConfig) -> int:
    """As many as the stages of the deepest pipeline, of two in a rank or more."""
    return max(parallel.pp * max(2, parallel.pp_stages_per_rank) for parallel in layouts)


def cases_of(parallel: ParallelConfig, problems: list[Problem]) -> list[Case]:
    """Each problem in both sizes of micro batches, the larger one first."""
    layers, rows = layers_for(parallel), rows_for(parallel)
    sizes = micro_sizes(parallel, rows)
    return [
        Case(parallel, dataclasses.replace(p, layers=layers, rows=rows), micro)
        for p in problems
        for micro in sizes
    ]


COPIED_KEYS = [
    cases_of(parallel, [Problem(kv_heads=kv, tied=False, family=family)])[0]
    for parallel, kv, family in (
        (layout(4, "ddp", tp=4), 2, "qwen2"),
        (layout(4, "ddp", tp=4), 1, "qwen3"),
        (layout(4, "ddp", tp=4, sequence_parallel=False), 1, "qwen2"),
        (layout(4, "ddp", tp=4, tp_overlap="ring"), 2, "qwen2"),
        *((layout(4, kind, tp=2), 1, "llama") for kind in ("zero1", "fsdp")),
        (layout(4, "ddp", pp=2, tp=2, pp_schedule="zero_bubble"), 1, "llama"),
        (layout(4, "ddp", cp=2, tp=2), 1, "llama"),
        (layout(4, "ddp", cp=2, tp=2, cp_kind="ring"), 1, "qwen3"),
        (layout(8, "fsdp", tp=4), 2, "qwen2"),
    )
]
"""More tensor ranks than key/value heads."""

SERVED = [
    *cases_of(layout(4, "server"), [*VARIED, *FAMILIES, Problem(ema=0.5)]),
    *cases_of(layout(4, "server", servers=1), [Problem(tied=False, masks="idle")]),
    *cases_of(layout(4, "server", servers=3), [Problem(optim="lion"), Problem(masks="empty")]),
    *cases_of(layout(4, "server"), [Problem(adapter="lora"), Problem(optim="adafactor")]),
]
"""Of parameter servers whose workers wait for each other."""

MATRIX = [case for parallel in LAYOUTS for case in cases_of(parallel, VARIED)]
MATRIX += [case for parallel in LAYOUTS for case in cases_of(parallel, FAMILIES)[::2]]
MATRIX += SERVED
MATRIX += COPIED_KEYS
MATRIX += [case for parallel in LAYOUTS for case in cases_of(parallel, OPTIMIZERS + OFFLOADED)[::2]]
FEW = [
    LAYOUTS[0],
    *(layout(4, kind) for kind in ("ddp", "zero1", "fsdp")),
    *(layout(4, "ddp", tp=2, sequence_parallel=sequence) for sequence in (True, False)),
    layout(4, "fsdp", tp=2),
    layout(4, "ddp", pp=2, tp=2),
    layout(4, "ddp", cp=2, tp=2),
]
"""Each axis, and pairs of them."""
MATRIX += [case for parallel in FEW for case in cases_of(parallel, FROZEN)[::2]]
GRID_LAYOUTS = (
    layout(4, "ddp", tp=4, tp_kind="2d"),
    layout(8, "ddp", tp=4, tp_kind="2d"),
    layout(8, "ddp", tp=8, tp_kind="2.5d", tp_depth=2),
    layout(8, "ddp", tp=8, tp_kind="3d"),
)
GRIDS = [
    dataclasses.replace(cases_of(parallel, [problem])[size], memory=memory)
    for parallel in GRID_LAYOUTS
    for problem, size, memory in (
        (Problem(), 0, NO_SAVINGS),
        (Problem(tied=False, masks="idle", packed=True), -1, NO_SAVINGS),
        (Problem(family="gpt2", tied=False, packed=True), 0, MemoryConfig(recompute="full")),
        (Problem(family="qwen3", vocab=64, z_loss=0.1), -1, MemoryConfig(recompute="full")),
        (Problem(family="qwen2", optim="lion", ema=0.5, masks="empty"), 0, NO_SAVINGS),
        (Problem(state_in="disk"), 0, MemoryConfig("every", loss_chunk_tokens=5)),
        (Problem(frozen=FROZEN[0].frozen, tied=False, optim="sgd"), -1, NO_SAVINGS),
        (Problem(dtype="fp32"), 0, NO_SAVINGS),
        (Problem(dtype="bf16", packed=True), 0, NO_SAVINGS),
        (Problem(dtype="fp16"), 0, NO_SAVINGS),
    )
]
"""Grids of tensor ranks with families, optimizers, number formats and savings by pairs."""
MATRIX += GRIDS
GRID_CROSS = [
    pair
    for grid in GRID_LAYOUTS
    for pair in (
        (grid, LAYOUTS[0]),
        (LAYOUTS[0], grid),
        (layout(grid.num_processes, "fsdp", tp=2), grid),
        (grid, layout(grid.num_processes, "zero1", tp=2)),
    )
]
"""Who saves, who loads."""
SINGLES = [
    case
    for parallel in LAYOUTS
    for case in cases_of(parallel, [Problem(dtype="fp32"), Problem(dtype="fp32", tied=False)])
]
KERNELS = [
    Case(
        parallel,
        Problem(dtype="fp32", kernels="triton", tied=False, packed=True, layers=parallel.pp),
        8 // (parallel.dp * parallel.pp),
    )
    for parallel in (
        layout(4, "fsdp", tp=2),
        *(layout(4, "ddp", tp=4, sequence_parallel=sequence) for sequence in (True, False)),
        layout(4, "ddp", tp=4, tp_overlap="ring"),
        *(layout(4, kind) for kind in ("zero1", "fsdp")),
        layout(4, "ddp", pp=4),
        layout(4, "ddp", pp=2, tp=2),
        *(layout(4, "ddp", cp=4, cp_kind=kind) for kind in get_args(ContextKind)),
        layout(4, "fsdp", cp=2, tp=2),
    )
]
"""Kernels under each axis and pairs of them; how data-parallel processes hold weights is nothing to
a kernel."""
LARGE = [
    case
    for parallel in (
        *(layout(4, kind) for kind in ("zero1", "fsdp")),
        *(layout(4, "ddp", tp=4, sequence_parallel=sequence) for sequence in (True, False)),
        layout(4, "fsdp", tp=2),
        layout(4, "ddp", pp=2, tp=2),
        layout(4, "ddp", cp=2, tp=2),
        layout(8, "zero1", pp=2, tp=2),
    )
    for case in cases_of(parallel, [Problem(vocab=50257, dtype="fp32")])[:1]
]
"""A vocabulary of people's size: a million numbers in one weight, and ids that no number of
processes divides."""
SHORT = [
    case
    for parallel in LAYOUTS
    for bits in (32, 16)
    if parallel.shards_weights
    for case in cases_of(parallel, [Problem(dtype="bf16", gradient_bits=bits)])[-1:]
]
"""Gradients of bfloat16 summed over many micro batches in 32 and in 16 bits."""
ROUGH = [
    case
    for parallel in LAYOUTS
    for dtype in ("bf16", "fp16")
    for case in cases_of(parallel, [Problem(dtype=dtype, packed=True)])[:1]
]
