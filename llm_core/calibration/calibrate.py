"""Measures this machine as one rank of the processes given, all of them at work at the same time:
`python -m llm_core.calibration.calibrate WORK.json RECORD.json`, by torchrun for several.

The record is JSON: {"hardware": values of `HardwareConfig`, "machine": what was measured and when,
"products", "steps" (of each setting, measured and as then predicted), "links"}. Values are means
over the processes; the first writes the file.

Between a shape and a time lies one rate of products, weighted by the FLOPs of the model given. On
one core of an EPYC, shapes of models of width 128 to 2,048 differ from it by 15 % at most.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from llm_core.calibration import operations
from llm_core.calibration.links import PLANNED, SIZES, Timing, fit_links, time_collective
from llm_core.calibration.operations import Stopwatch
from llm_core.calibration.steps import Step, fit_passes, launch_ms, own_steps, time_step
from llm_core.config import ConfigError, build, to_plain
from llm_core.device import device_name, memory_bytes, set_threads
from llm_core.durable import write_durably
from llm_core.fingerprint import device_fingerprint
from llm_core.json_files import dump_json
from llm_core.memory_limit import memory_limit_bytes
from llm_core.model.config import ModelConfig
from llm_core.parallel.config import Kind, ParallelConfig
from llm_core.parallel.ranks import Ranks, open_ranks
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_time
from llm_core.printing import note, one_line
from llm_core.profiling.roofline import BF16_FLOPS

MAX_TOKENS = {"cpu": 2048, "cuda": 1 << 16}
"""Of a micro batch that is timed: more would take longer and go no faster."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CPU_RESERVE_GB = 0.5
"""Of Python and torch in one process."""
OVERLAP_BYTES = 8 << 20
REFUSED, REFUSED_MARK = 2, "refused: "
"""Exit code, and how the line begins that says why."""


@dataclass(frozen=True)
class Findings:
    """Of all processes."""

    hardware: HardwareConfig
    products: list[operations.Product]
    steps: list[Step]
    links: list[Timing]


def main() -> None:
    try:
        _calibrate(*map(Path, sys.argv[1:]))
    except ConfigError as error:
        note(f"{REFUSED_MARK}{one_line(error)}")
        sys.exit(REFUSED)


def _calibrate(work_file: Path, record_file: Path) -> None:
    work = build(Work, json.loads(work_file.read_text("utf-8")))
    began = time.perf_counter()
    threads = set_threads(work.parallel.num_threads, work.parallel.num_processes)
    kind: Kind = "none" if work.parallel.num_processes == 1 else "ddp"
    everyone = ParallelConfig(
        kind,
        work.parallel.num_processes,
        device=work.parallel.device,
        backend=work.parallel.backend,
    )
    with open_ranks(everyone) as ranks:
        found = measure(work, Stopwatch(ranks))
        if not ranks.is_first:
            return
        machine = {
            "device": device_fingerprint(),
            "processes": ranks.world,
            "threads": threads,
            "dtype": work.train.dtype,
            "torch": torch.__version__,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "elapsed_s": round(time.perf_counter() - began, 1),
        }
    write_durably(record_file, dump_json("a calibration", record(found, machine), indent=1) + "\n")


def measure(work: Work, watch: Stopwatch, step_budget_s: float = 4.0) -> Findings:
    """Collective over all processes. step_budget_s: for each setting of which steps are timed."""
    model, train, ranks, device = work.model, work.train, watch.ranks, watch.device
    dtype, alone, mean = DTYPES[train.dtype], Ranks(0, 1, device), watch.mean
    steps_watch = replace(watch, budget_s=step_budget_s)
    tokens = min(train.micro_batch_sequences * train.seq_len, MAX_TOKENS[device.type])
    rows = max(1, tokens // train.seq_len)

    copied = mean(operations.copy_rate(watch))
    products = operations.time_products(model, tokens, dtype, watch)
    rate = mean(operations.rate_of(products, model.num_layers))
    half, whole = _peaks(rate, train.dtype, watch)
    attended = mean(operations.attention_rate(model, rows, train.seq_len, dtype, watch))
    per_logit_s = mean(operations.loss_seconds(tokens, model.vocab_size, dtype, watch))
    hardware = HardwareConfig(
        name=device_name(device) if device.type == "cuda" else device_fingerprint(),
        memory_gb=(memory_bytes(device) or _share_of_memory(ranks.world)) / 1e9,
        memory_gb_s=copied / 1e9,
        memory_share=1.0,
        tflops=half / 1e12,
        tflops_fp32=whole / 1e12,
        matmul_share=min(1.0, rate / (whole if train.dtype == "fp32" else half)),
        attention_share=min(1.0, attended / rate),
        loss_passes=per_logit_s * copied,
        devices_per_node=ranks.world,
        launches_ahead=device.type == "cuda",
    )
    if device.type == "cpu":
        hardware = replace(hardware, reserve_gb=CPU_RESERVE_GB)
    if not train.compile:
        launch_watch = replace(watch, budget_s=step_budget_s / 4)
        block_ms, step_ms = map(mean, launch_ms(work, alone, launch_watch))
        hardware = replace(hardware, launch_ms=block_ms, step_ms=step_ms)
    steps = [
        Step(own, mean(time_step(own, alone, steps_watch).measured_s))
        for own in own_steps(work, MAX_TOKENS[device.type])
    ]
    hardware = replace(hardware, passes=fit_passes(steps, hardware))
    timings: list[Timing] = []
    if ranks.world > 1:
        world = dist.group.WORLD
        assert world is not None
        timings = [time_collective(kind, size, world, device) for kind in PLANNED for size in SIZES]
        if wrong := [row for row in timings if not row.right]:
            raise RuntimeError(f"{wrong[0].kind} of {wrong[0].num_bytes} bytes gave wrong numbers")
        overlap = mean(overlapped(model, tokens, dtype, ranks, watch))
        hardware = replace(hardware, links=fit_links(timings), overlap=overlap)
    return Findings(hardware, products, steps, timings)


def _peaks(rate: float, dtype: str, watch: Stopwatch) -> tuple[float, float]:
    """FLOP/s of 16-bit products and of float32: as the maker states, else as seen here. No less
    than the rate that the model reaches in its own."""
    half, whole = (
        float(operations.peak_rate(each, watch)) for each in (torch.bfloat16, torch.float32)
    )
    stated = [peak for name, peak in BF16_FLOPS.items() if name in device_name(watch.device)]
    if dtype == "fp32":
        whole = max(whole, rate)
    else:
        half = max(half, rate)
    return (stated[0] if stated else half), whole


def _share_of_memory(num_processes: int) -> float:
    """Bytes of one process, of what this machine or its container has."""
    total = psutil.virtual_memory().total
    return min(total, memory_limit_bytes() or total) / num_processes


def overlapped(
    model: ModelConfig, tokens: int, dtype: torch.dtype, ranks: Ranks, watch: Stopwatch
) -> float:
    """The part of the shorter of products and an all-reduce that is hidden when both run."""
    shape = operations.product_shapes(model)["gate_up"]
    x = torch.randn(tokens, shape[0], device=ranks.device).to(dtype)
    weight = torch.randn(shape[1], shape[0], device=ranks.device).to(dtype)
    sent = torch.zeros(OVERLAP_BYTES // 4, device=ranks.device)
    one_s = watch.least_s(lambda: x @ weight.T)

    def timed(sends: bool, count: int) -> float:
        best = float("inf")
        for _ in range(8):
            ranks.barrier()
            began = time.perf_counter()
            handle = dist.all_reduce(sent, async_op=True) if sends else None
            for _ in range(count):
                x @ weight.T
            if handle is not None:
                handle.wait()
            if ranks.device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        return best

    sent_s = timed(True, 0)
    # About as much of one as of the other.
    count = max(1, round(sent_s / one_s))
    count = int(ranks.sum(torch.tensor(float(count), device=ranks.device))) // ranks.world
    computed_s, both_s = timed(False, count), timed(True, count)
    hidden_s = sent_s + computed_s - both_s
    return min(1.0, max(0.0, hidden_s / min(sent_s, computed_s)))


def record(found: Findings, machine: dict[str, Any]) -> dict[str, Any]:
    values = to_plain(found.hardware)
    del values["file"]
    return {
        "hardware": values,
        "machine": machine,
        "products": [asdict(each) | {"tflops": each.tflops} for each in found.products],
        "steps": [
            {
                "dim": each.work.model.dim,
                "layers": each.work.model.num_layers,
                "sequences": each.work.train.micro_batch_sequences,
                "seq_len": each.work.train.seq_len,
                "measured_s": each.measured_s,
                "predicted_s": plan_time(each.work, found.hardware).step_s,
            }
            for each in found.steps
        ],
        "links": [asdict(each) for each in found.links],
    }


if __name__ == "__main__":
    main()
