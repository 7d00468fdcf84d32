"""Times whole steps on random tokens with the optimizer's state, or the weights, on the device and
elsewhere, each place in turn.

`python -m benchmarks.engine.offload [model.dim=1024 parallel.device=cuda …] [--folder DIR]` takes
overrides of the run below. It is trained with state on the device, in main memory, on the disk of
DIR, and with weights in main memory or on that disk, each in a process of its own. Times are after
`--skip` steps, the device waited for. The disk is measured, not the kernel's cache: files are
opened with O_DIRECT, and where a file system has none the row says so (`direct_io`).

Speeds of a place whose losses differ from those with state on the device are withheld. A row per
place, and as the last line that of the disk as JSON: {"state", "step_s", "update_s" (of the
optimizer alone), "device_state_bytes" (of moments and buffers where weights are), "state_bytes",
"peak_bytes" (of GPU memory, or of the process), "disk_read_mb_s", "disk_write_mb_s", "hidden_frac"
(share of the seconds of reading and writing that the update did not wait for), "direct_io",
"step_s_of", "loss_difference_of" (largest to state on the device, 0 where all bits are the same),
"losses_agree"}. A row of weights on the disk has "weights_bytes", "weights_buffer_bytes",
"weights_read_mb_s" and "weights_write_mb_s" as well.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.agreement import largest_difference
from benchmarks.engine.train import last_row, make_parser, random_batch, read_config
from llm_core.device import device_name, set_threads, synchronize
from llm_core.memory.backing import OnDisk
from llm_core.memory.resting import RestingWeights
from llm_core.optim.build import build_optimizer
from llm_core.optim.offload import Offloaded
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.ranks import open_ranks
from llm_core.printing import show
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step

SMALL = [
    "model.vocab_size=32768",
    "model.dim=512",
    "model.num_layers=12",
    "model.num_heads=8",
    "model.num_kv_heads=8",
    "model.ffn_dim=1408",
    "model.max_seq_len=1024",
    "train.num_steps=12",
    "train.global_batch_sequences=1",
    "train.micro_batch_sequences=1",
    "train.seq_len=32",
    "train.dtype=fp32",
    "train.compile=false",
    "parallel.device=cpu",
]
"""72 million weights, so 578 MB of moments, and few tokens: what is measured is the update."""

PLACES: dict[str, list[str]] = {
    "device": [],
    "host": ["optim.state_in=host"],
    "disk": ["optim.state_in=disk"],
    "weights in host": ["memory.weights_in=host", "parallel.kind=fsdp"],
    # ZeRO-Offload: copies in train.dtype are on the device all through a step.
    "weights in host, copies on device": ["memory.weights_in=host", "parallel.kind=zero2"],
    "weights in host, disk": [
        "memory.weights_in=host",
        "parallel.kind=fsdp",
        "optim.state_in=disk",
    ],
    "weights on disk, disk": [
        "memory.weights_in=disk",
        "parallel.kind=fsdp",
        "optim.state_in=disk",
    ],
}
SPEEDS = ("step_s", "update_s", "disk_read_mb_s", "disk_write_mb_s", "hidden_frac")
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Largest difference of a loss: weights in main memory are updated by another kernel, and FSDP
rounds embedding gradients."""


def main() -> None:
    parser = make_parser(__doc__, skip=2)
    parser.add_argument("--folder", type=Path, default=".", help="on the disk that is measured")
    parser.add_argument("--only", choices=PLACES, help="one place, in this process")
    arguments = parser.parse_intermixed_args()
    if arguments.only:
        config = read_config([*SMALL, *arguments.overrides, *PLACES[arguments.only]])
        row = measure(config, arguments.skip, arguments.folder)
        show(json.dumps({"state": arguments.only} | row))
        return
    options = [f"--skip={arguments.skip}", f"--folder={arguments.folder}", *arguments.overrides]
    command = [sys.executable, "-m", "benchmarks.engine.offload", *options]
    limit = TOLERANCE[read_config([*SMALL, *arguments.overrides]).train.dtype]
    rows: dict[str, dict[str, Any]] = {}
    expected: list[float] = []
    for place in PLACES:
        row = last_row([*command, "--only", place])
        losses = row.pop("losses")
        expected = expected or losses
        rows[place] = withhold(
            row | {"loss_difference": largest_difference(losses, expected)}, limit
        )
        show(json.dumps(rows[place]), flush=True)
    summary = {
        "step_s_of": {place: row["step_s"] for place, row in rows.items()},
        "loss_difference_of": {place: row["loss_difference"] for place, row in rows.items()},
        "losses_agree": all(row["loss_difference"] <= limit for row in rows.values()),
    }
    show(json.dumps(rows["disk"] | summary))
    sys.exit(not summary["losses_agree"])


def withhold(row: dict[str, Any], limit: float) -> dict[str, Any]:
    """The row, without its speeds where its losses are further than that from those with state on
    the device."""
    return (
        row
        if row["loss_difference"] <= limit
        else row | {name: None for name in SPEEDS if name in row}
    )


def measure(config: RunConfig, skip: int, folder: Path) -> dict[str, Any]:
    """Train here for `config.train.num_steps` steps."""
    set_threads(config.parallel.num_threads, config.parallel.num_processes)
    with open_ranks(config.parallel) as ranks:
        layout = build_layout(
            config.model, config.parallel, config.train, ranks, config.memory, scratch=folder
        )
        optimizer = build_optimizer(layout, config.optim, config.train.dtype, folder)
        update_s = clock_updates(optimizer, ranks.device)
        generator = torch.Generator().manual_seed(0)
        # Few batches, so that they are learnt.
        batches = [random_batch(config, ranks, generator) for _ in range(2)]
        step_s, losses = [], []
        for number in range(config.train.num_steps):
            if number == skip:
                forget_traffic(optimizer, layout.resting)
            began = time.perf_counter()
            batch = batches[number % 2]
            report = train_step(layout, optimizer, batch, config.optim.lr, config, ranks)
            losses.append(report[0])
            synchronize(ranks.device)
            step_s.append(time.perf_counter() - began)
        on_gpu = ranks.device.type == "cuda"
        peak = (
            torch.cuda.max_memory_allocated()
            if on_gpu
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
    return (
        {
            "step_s": round(statistics.median(step_s[skip:]), 4),
            "update_s": round(statistics.median(update_s[skip:]), 4),
            "peak_bytes": peak,
            "card": device_name(ranks.device),
            "losses": [float(loss) for loss in losses],
        }
        | state_row(optimizer)
        | weights_row(layout.resting)
    )


def clock_updates(optimizer: Optimizer, device: torch.device) -> list[float]:
    """Seconds of each update from now on."""
    seconds: list[float] = []
    plain = optimizer.step

    def step(lr: float, loss: Tensor, norm: Tensor, num_targets: Tensor | None = None) -> Tensor:
        synchronize(device)
        began = time.perf_counter()
        report = plain(lr, loss, norm, num_targets)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
        return report

    optimizer.step = step  # type: ignore[method-assign]
    return seconds


def forget_traffic(optimizer: Optimizer, resting: RestingWeights | None) -> None:
    if resting is not None:
        resting.backing.reset_traffic()
    for method in optimizer.methods:
        if isinstance(method, Offloaded):
            method.pager.waited_s = 0.0
            if isinstance(method.pager.backing, OnDisk):
                method.pager.backing.reset_traffic()


def state_row(optimizer: Optimizer) -> dict[str, Any]:
    """How much state there is, how much of it is where weights are, and how fast it came and
    went."""
    total = sum(state.piece.nbytes for state in optimizer.states())
    method = optimizer.methods[0]
    if not isinstance(method, Offloaded):
        pieces = [state.piece for state in optimizer.states()]
        here = [p.nbytes for p in pieces if p.device.type == optimizer.guard.device.type]
        return {"state_bytes": total, "device_state_bytes": sum(here)}
    pager = method.pager
    row = {"state_bytes": total, "device_state_bytes": pager.device_bytes}
    if isinstance(pager.backing, OnDisk):
        traffic = pager.backing.traffic
        hidden_frac = 1 - pager.waited_s / (traffic.read_s + traffic.write_s)
        row |= {
            "disk_read_mb_s": round(traffic.read_bytes / traffic.read_s / 1e6, 1),
            "disk_write_mb_s": round(traffic.written_bytes / traffic.write_s / 1e6, 1),
            "hidden_frac": round(max(0.0, hidden_frac), 3),
            "direct_io": pager.backing.is_direct,
        }
    return row


def weights_row(resting: RestingWeights | None) -> dict[str, Any]:
    """How much of weights on a disk is in main memory, and how fast they came and went."""
    if resting is None:
        return {}
    traffic = resting.backing.traffic
    return {
        "weights_bytes": len(resting.backing.bytes_N),
        "weights_buffer_bytes": resting.num_bytes,
        "weights_read_mb_s": round(traffic.read_bytes / traffic.read_s / 1e6, 1),
        "weights_write_mb_s": round(traffic.written_bytes / traffic.write_s / 1e6, 1),
    }


if __name__ == "__main__":
    main()
