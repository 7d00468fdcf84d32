"""Checks and times every collective, by size, group and type: gloo between processes of the CPU,
NCCL where there are GPUs.

`python -m benchmarks.engine.collectives --processes 4` runs each in all groups of `--groups`
neighbours at once, in and out of place, on `--sizes` bytes in all. Correctness comes first: four
processes of ones sum to 4.0, all-to-all with uneven pieces, then every kind on the pattern of
`llm_core.calibration.collectives`, before and after its repeats. Sizes and bandwidths are those of
nccl-tests; times are the slowest process's, median and least of `--times` after `--warm-up`.

`--page FILE` writes a chart. The last line is JSON: {"right", "backend", "device", "processes",
"links" (per kind and group: "start_us" per hop and "gb_s", as hardware.links has them), "rows"}.
The exit code is 1 where a result was wrong, and its speeds are withheld.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from llm_core.calibration.collectives import (
    IN_PLACE,
    KINDS,
    make_groups,
    prepare,
    uneven_exchange_is_right,
)
from llm_core.calibration.links import Timing, fit_links, time_collective
from llm_core.config import to_plain
from llm_core.device import device_name, pick_device
from llm_core.printing import show
from tasks.report import charts
from tasks.report.charts import WIDE, Series, lines

TONES = ("a", "b", "r1", "r2")


def main() -> None:
    arguments = read_arguments()
    if "RANK" not in os.environ:
        start = ["torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.processes}"]
        command = [sys.executable, "-m", *start, "-m", "benchmarks.engine.collectives"]
        sys.exit(subprocess.run([*command, *sys.argv[1:]], check=False).returncode)
    device = pick_device(arguments.device, arguments.processes, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        right, rows = measure(arguments, device)
        if dist.get_rank() == 0:
            report(right, rows, device, arguments.page)
    finally:
        dist.destroy_process_group()
    sys.exit(not right)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--processes", type=int, default=4)
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    add("--groups", type=int, nargs="+", default=[2, 4], help="processes that work together")
    add("--sizes", type=int, nargs="+", default=[1 << power for power in range(3, 27, 3)])
    add("--dtypes", nargs="+", default=["float32"], choices=("float32", "bfloat16", "int64"))
    add("--times", type=int, default=20)
    add("--warm-up", type=int, default=5)
    add("--page", type=Path, help="an HTML file for the chart")
    arguments = parser.parse_args()
    if wrong := [size for size in arguments.groups if size < 2 or arguments.processes % size]:
        parser.error(
            f"--groups ({wrong[0]}) must be 2 or more and divide --processes"
            f" ({arguments.processes})"
        )
    return arguments


def measure(arguments: argparse.Namespace, device: torch.device) -> tuple[bool, list[Timing]]:
    """(whether all was right, timings). Collective over all processes."""
    world = dist.group.WORLD
    assert world is not None
    ones = prepare("all_reduce", 5, world, device=device, fill=_ones)
    right = ones.is_right() and bool(ones.result.eq(arguments.processes).all())
    rows: list[Timing] = []
    for size in arguments.groups:
        group = make_groups(size)
        right = uneven_exchange_is_right(group, device) and right
        for kind in arguments.kinds:
            for dtype in arguments.dtypes if kind != "barrier" else ["float32"]:
                for num_bytes in arguments.sizes if kind != "barrier" else [0]:
                    for in_place in (False, True) if kind in IN_PLACE else (False,):
                        found = time_collective(
                            kind, num_bytes, group, device, getattr(torch, dtype), in_place,
                            arguments.times, arguments.warm_up,
                        )  # fmt: skip
                        rows.append(found)
                        if dist.get_rank() == 0:
                            show(line_of(found), flush=True)
    # Groups work at the same time, and each knows of its own members only.
    wrong = torch.tensor(int(not (right and all(row.right for row in rows))), device=device)
    dist.all_reduce(wrong, dist.ReduceOp.MAX)
    return not wrong, rows


def _ones(rank: int, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones(numel, dtype=dtype, device=device)


def line_of(row: Timing) -> str:
    place = "in place" if row.in_place else ""
    speed = f"{row.algorithm_gb_s:8.3f} {row.bus_gb_s:8.3f} GB/s" if row.num_bytes else ""
    return (
        f"{row.kind:14} {row.processes} {row.dtype:8} {row.num_bytes:>11,} B"
        f" {row.median_s * 1e6:>11,.1f} us ({row.min_s * 1e6:,.1f}) {speed} {place}"
        f"{'' if row.right else ' WRONG'}"
    )


def report(right: bool, rows: Sequence[Timing], device: torch.device, file: Path | None) -> None:
    sized = [row for row in rows if row.num_bytes and not row.in_place]
    links = {
        f"{size}": to_plain(fit_links(row for row in sized if row.processes == size))
        for size in sorted({row.processes for row in sized})
    }
    if file is not None and right:
        file.write_text(chart_page(sized), "utf-8")
    found = {
        "right": right,
        "backend": dist.get_backend(),
        "device": device_name(device),
        "processes": dist.get_world_size(),
        "links": links if right else None,
        "rows": [
            asdict(row) | {"algorithm_gb_s": row.algorithm_gb_s, "bus_gb_s": row.bus_gb_s}
            for row in rows
            if right
        ],
    }
    show(json.dumps(found))


def chart_page(rows: Sequence[Timing]) -> str:
    """Bus bandwidth over size, a chart for each size of group and few kinds, in one file. A kind is
    a line for each type."""
    kinds = list(dict.fromkeys(f"{row.kind}, {row.dtype}" for row in rows))
    style = (Path(charts.__file__).parent / "style.css").read_text("utf-8")
    parts = ["<!doctype html><meta charset=utf-8><title>Collectives</title>", "<style>", style]
    parts.append("</style><main>")
    for size in sorted({row.processes for row in rows}):
        for first in range(0, len(kinds), len(TONES)):
            tones = dict(zip(kinds[first:], TONES, strict=False))
            series = [
                Series(
                    kind,
                    [
                        (row.num_bytes, row.bus_gb_s)
                        for row in rows
                        if (f"{row.kind}, {row.dtype}", row.processes) == (kind, size)
                    ],
                    tone,
                    dots=True,
                )
                for kind, tone in tones.items()
            ]
            parts.append(f"<h2>Groups of {size}</h2><p class=legend>")
            parts += [
                f'<span><i class="line {tone}"></i>{kind}</span>' for kind, tone in tones.items()
            ]
            chart = lines(
                series, WIDE, x_label="bytes", y_label="GB/s, bus", from_zero=True, log=True
            )
            parts += ["</p>", chart]
    return "\n".join([*parts, "</main>"])


if __name__ == "__main__":
    main()
