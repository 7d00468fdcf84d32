"""The exactness matrix: `python -m tests.support.distributed.matrix [FOLDER] [--only RUNS.json]
[--savings] [--table TABLE.md]`.

Forked processes and one group of them serve all cases of four processes, then of eight. Shows each
layout as it is done; leaves `found.json` in the folder and, where asked, the table of
`docs/exactness.md`. The last line is JSON: {"cases", "failed", "worst_loss", "worst_grad",
"worst_param"}, of the cases in float64. Exits with 1 where one failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from llm_core.config import ConfigError, build
from llm_core.memory.config import MemoryConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.settings import check_memory
from tests.support.distributed import cases, exactness, held, trained_cases
from tests.support.distributed.cases import Case
from tests.support.distributed.forks import fork_ranks
from tests.support.distributed.problem import Problem

LIMITS = {
    "fp64": dict.fromkeys(
        ("initial", "loss", "gradient", "norm", "sources", "validation", "parameter", "average"),
        1e-10,
    )
    | {"continued": 1e-10}
    | {"loaded": 0.0},
    # Some elements of a gradient lie 2e-6 of the largest apart, which is its rounding; its norm
    # says whether it is the same.
    "fp32": {"initial": 0.0, "loss": 1e-6, "gradient_norm": 1e-6, "norm": 1e-6, "sources": 1e-6},
    # Rounded to 8 or 11 bits: that the layout follows at all, with the losses of float32.
    # The gradient too, which sums in 16 bits may not change by more than products in 16 bits do.
    "bf16": {"initial": 0.0, "loss": 5e-3, "norm": 5e-2, "gradient_norm": 5e-2}
    | {"loaded": 0.0, "continued": 5e-2},
    "fp16": {"initial": 0.0, "loss": 6e-4, "norm": 6e-3},
}


@dataclass(frozen=True)
class Run:
    """One comparison: a case with one process, or a checkpoint of one layout (`case`) loaded into
    another."""

    case: Case
    into: ParallelConfig | None = None

    @property
    def name(self) -> str:
        return (
            self.case.layout
            if self.into is None
            else f"{self.case.layout} -> {cases.layout_name(self.into)}"
        )

    @property
    def world(self) -> int:
        """Processes; those of layouts of one are taken along by either group."""
        return max(4, self.case.parallel.num_processes, self.into.num_processes if self.into else 1)

    def execute(self, folder: Path) -> dict[str, float]:
        if self.into is None:
            return exactness.compare(self.case, folder)
        return exactness.exchange(self.case.problem, self.case.parallel, self.into, folder)


def whole_matrix() -> list[Run]:
    single = cases.LAYOUTS[0]
    pairs = [
        pair for parallel in cases.LAYOUTS[1:] for pair in ((parallel, single), (single, parallel))
    ]
    exchanges = [
        Run(Case(one, Problem(tied=tied, layers=cases.layers_for(one, into)), 1), into)
        for one, into in pairs + cases.CROSS + cases.SERVED_CROSS
        for tied in (True, False)
    ]
    exchanges += [
        Run(Case(one, replace(p, layers=cases.layers_for(one, into)), 1), into)
        for one, into in cases.CROSS
        for p in cases.OPTIMIZERS
    ]
    exchanges += [
        Run(case, into)
        for case in cases.COPIED_KEYS
        for into in (single, cases.layout(4, "fsdp"))
        if case.parallel.num_processes == 4
    ]
    exchanges += [Run(Case(one, p, 1), into) for p, one, into in trained_cases.ADAPTED_CROSS]
    exchanges += [
        Run(Case(one, Problem(family="glm4_moe", layers=4), 1), into)
        for one, into in trained_cases.SENT_CROSS
    ]
    exchanges += [Run(Case(one, Problem(), 2), into) for one, into in cases.GRID_CROSS]
    alone = (cases.MATRIX, trained_cases.TRAINED, cases.SINGLES)
    alone += (cases.LARGE, cases.ROUGH, cases.SHORT)
    return [Run(case) for group in alone for case in group] + exchanges


def savings_matrix() -> list[Run]:
    """Each layout with each kind of saving alone and all together, as far as they go together."""
    savings = [
        MemoryConfig(recompute="selective"),
        MemoryConfig(recompute="every", every_k=2),
        MemoryConfig(recompute="full"),
        MemoryConfig(loss_chunk_tokens=5),
        MemoryConfig(ffn_tiles=2),
        MemoryConfig(weights_in="host"),
        MemoryConfig(recompute="full", loss_chunk_tokens=9, ffn_tiles=2),
    ]
    runs = []
    for parallel, saving, dtype in itertools.product(cases.LAYOUTS, savings, ("fp64", "bf16")):
        problem = Problem(
            layers=max(4, cases.layers_for(parallel)),
            tied=dtype == "fp64",
            packed=dtype == "bf16",
            dtype=dtype,
        )
        if is_possible(parallel, saving, problem):
            runs.append(
                Run(Case(parallel, problem, cases.micro_sizes(parallel, problem.rows)[-1], saving))
            )
    return runs


def is_possible(parallel: ParallelConfig, saving: MemoryConfig, problem: Problem) -> bool:
    try:
        check_memory(saving, problem.model(), parallel)
    except ConfigError:
        return False
    return True


def failures(run: Run, found: dict[str, float]) -> list[str]:
    """What is further from one process than its arithmetic allows."""
    problem = run.case.problem
    # Kernels add up in another order than torch.
    limits = LIMITS[problem.dtype] | ({"norm": 1e-5} if problem.kernels != "torch" else {})
    return [
        f"{kind} {value:.2g}"
        for kind, value in found.items()
        if kind in limits and value > limits[kind]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        help="for checkpoints and found.json; a temporary one without",
    )
    parser.add_argument("--only", type=Path, help="runs as JSON; the whole matrix without")
    parser.add_argument("--savings", action="store_true", help="what saves memory, instead")
    parser.add_argument("--table", type=Path, help="where to write the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.only is not None:
            runs = [from_plain(run) for run in json.loads(arguments.only.read_text("utf-8"))]
        else:
            runs = savings_matrix() if arguments.savings else whole_matrix()
        bytes_of_steps = []
        if arguments.only is None and not arguments.savings:
            bytes_of_steps = held.measure_in(folder / "held")
        sys.exit(bool(hold(folder, runs, arguments.table, bytes_of_steps)))


def hold(
    folder: Path, runs: list[Run], table_file: Path | None, bytes_of_steps: list[held.Held]
) -> int:
    """Run, compare and report; how many failed."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are defined, which is in the ranks
    for world in sorted({run.world for run in runs}):
        own = [(number, run) for number, run in enumerate(runs) if run.world == world]
        fork_ranks(world, folder, lambda own=own: run_all(own, folder))  # type: ignore[misc]
    rows = [
        (run, json.loads((folder / f"{number}.json").read_text("utf-8")))
        for number, run in enumerate(runs)
    ]
    (folder / "found.json").write_text(json.dumps([found for _, found in rows]), "utf-8")
    if table_file is not None:
        table_file.write_text(table(rows, bytes_of_steps), "utf-8")
    if bytes_of_steps:
        print(held.table(bytes_of_steps))
    exact = [found for run, found in rows if run.case.problem.dtype == "fp64"]
    kinds = {"worst_loss": "loss", "worst_grad": "gradient", "worst_param": "parameter"}
    worst = {
        key: max((found[kind] for found in exact if kind in found), default=0.0)
        for key, kind in kinds.items()
    }
    num_failed = sum(bool(failures(run, found)) for run, found in rows)
    num_failed += sum(not each.is_right for each in bytes_of_steps)
    print(json.dumps({"cases": len(rows), "failed": num_failed} | worst))
    return num_failed


def run_all(runs: list[tuple[int, Run]], folder: Path) -> None:
    """On every process; the first leaves what it found of each, and says what is done and what
    failed."""
    first, began, last = dist.get_rank() == 0, time.perf_counter(), ""
    for done, (number, run) in enumerate(runs, start=1):
        found = run.execute(folder / str(number))
        if not first:
            continue
        (folder / f"{number}.json").write_text(json.dumps(found), "utf-8")
        if run.name != last or done == len(runs):
            print(
                f"{done}/{len(runs)} {run.name} ({time.perf_counter() - began:.0f} s)", flush=True
            )
            last = run.name
        if wrong := failures(run, found):
            print(
                f"FAILED {run.name}, {run.case.problem}, micro batches of {run.case.micro}:"
                f" {', '.join(wrong)}",
                flush=True,
            )


PREFACE = """# Every layout gives the answer of one process

`make exactness` trains small models under every layout in real processes (gloo, CPU) and holds each against one process that
sees the whole batch at once. Written by that command; a part of it is in `make test`.

What is varied under each layout: micro batches, a vocabulary of 64 and of 51 ids (which no number of processes divides), a
tied and an untied head, targets of which two in five do not count and batches of which some processes have none that counts,
Llama, Qwen 2 and 3 and GPT-2 (Gemma and GPT-NeoX under some), packed documents. Numbers are the worst over all of these of |layout - one process| / the
largest value of the tensor. In float64 a mistake shows as a difference far above rounding (1e-16): the limit is 1e-10.
Weights after three AdamW steps are the least exact, because a gradient near zero is divided by its own size. In float32 loss,
gradients (norm of the difference over the norm) and norms at equal weights stay within 1e-6, also with a vocabulary of 50,257,
and in bfloat16 losses within 5e-3. Initial weights are the same to the bit everywhere.

Layouts: pp pipeline stages and their schedule, cp context slices, tp tensor ranks (with sequence parallelism); the last part
says how the processes left over hold weights and optimizer state.



"""  # noqa: E501


def table(
    rows: list[tuple[Run, dict[str, float]]], bytes_of_steps: Sequence[held.Held] = ()
) -> str:
    """The page: a line per layout with its worst differences, then the exchanges of checkpoints,
    gradients in 16 bits, and what is held and sent."""
    columns = ("loss", "gradient", "norm", "parameter", "validation")
    lines = [
        f"| layout | cases | {' | '.join(columns)} | float32 loss | float32 gradient |",
        "|---" * (len(columns) + 4) + "|",
    ]
    plain = [(run, found) for run, found in rows if run.into is None]
    for name in dict.fromkeys(run.name for run, _ in plain):
        by_dtype = {
            d: [f for r, f in plain if r.name == name and r.case.problem.dtype == d] for d in LIMITS
        }
        values = [_worst(by_dtype["fp64"], column) for column in columns]
        values += [_worst(by_dtype["fp32"], column) for column in ("loss", "gradient_norm")]
        lines.append(f"| {name} | {sum(map(len, by_dtype.values()))} | {' | '.join(values)} |")
    lines += [
        "",
        "A checkpoint of one layout in another: three steps, save, load, one step more in both.",
        "",
    ]
    lines += ["| saved by -> loaded by | bit for bit | the step that follows |", "|---|---|---|"]
    for name in dict.fromkeys(run.name for run, _ in rows if run.into is not None):
        exchanged = [found for run, found in rows if run.into is not None and run.name == name]
        lines.append(
            f"| {name} | {'no' if any(f['loaded'] for f in exchanged) else 'yes'} |"
            f" {_worst(exchanged, 'continued')} |"
        )
    lines += ["", SHORT.strip(), "", *short_lines(plain), "", HELD.strip(), ""]
    return PREFACE.rstrip() + "\n\n" + "\n".join([*lines, held.table(bytes_of_steps)]) + "\n"


SHORT = """
## Gradients in 16 bits

`train.gradient_bits=16` rounds sums over micro batches and processes. Both columns of each kind are bfloat16 against one process in
float32, in the smallest micro batches: the layouts agree as closely with each other as with it.
"""  # noqa: E501

HELD = """
## What a process holds and sends

Bytes for each weight, AdamW, two micro batches. Measured: all storages that exist at once in a step, activations of a few tokens and
the buffers of one or two blocks (0.25 bytes a weight each in 16 bits) among them, and the content of all exchanges. ZeRO's formula
(Rajbhandari et al. 2020, section 5) counts weights, gradients and state alone. DDP holds sums over micro batches beside its buckets.
"""  # noqa: E501


def short_lines(plain: list[tuple[Run, dict[str, float]]]) -> list[str]:
    lines = ["| layout | loss, 32 bits | 16 bits | gradient, 32 bits | 16 bits |", "|---" * 5 + "|"]
    short = {run.name for run, _ in plain if run.case.problem.gradient_bits == 16}
    for name in dict.fromkeys(run.name for run, _ in plain if run.name in short):
        of_case = {run.case: found for run, found in plain if run.name == name}
        shorts = [case for case in of_case if case.problem.gradient_bits == 16]
        longs = [replace(c, problem=replace(c.problem, gradient_bits=32)) for c in shorts]
        values = [
            _worst([of_case[case] for case in cases_of_bits], column)
            for column in ("loss", "gradient_norm")
            for cases_of_bits in (longs, shorts)
        ]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return lines


def _worst(found: list[dict[str, float]], kind: str) -> str:
    return f"{max(f[kind] for f in found):.0e}" if found else "-"


def to_plain(run: Run) -> dict[str, Any]:
    return asdict(run)


def from_plain(values: dict[str, Any]) -> Run:
    case = values["case"]
    into = values["into"] and build(ParallelConfig, values["into"])
    memory = MemoryConfig(**case["memory"])
    return Run(
        Case(
            build(ParallelConfig, case["parallel"]),
            Problem(**case["problem"]),
            case["micro"],
            memory,
        ),
        into,
    )


if __name__ == "__main__":
    main()
