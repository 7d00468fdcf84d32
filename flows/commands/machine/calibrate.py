"""Measures the constants of this machine that the planner predicts from, and keeps them as
hardware=this."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from flows.commands.command import command, with_source
from flows.compose import compose
from flows.console import say, table
from llm_core.config import ConfigError, to_plain
from llm_core.json_files import read_json
from llm_core.printing import show
from tasks.training.trainer_process import trainer_environment

REFUSED_MARK = "refused: "
"""How the line of the measurement begins that says why it cannot be, as in `MODULE`."""
MODULE = "llm_core.calibration.calibrate"
SHOWN = {
    "memory_gb": "GB of memory",
    "memory_gb_s": "GB/s copied",
    "tflops": "TFLOP/s, 16 bits",
    "tflops_fp32": "TFLOP/s, float32",
    "matmul_share": "of that, products of the model",
    "attention_share": "of that, attention",
    "passes": "times blocks move what they keep",
    "launch_ms": "ms to launch a block",
    "step_ms": "ms of any step",
    "overlap": "of traffic may hide",
}

_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer with the record in JSON.")


@command("[OVERRIDES]...", options=[_JSON])
def calibrate(words: Sequence[str], as_json: bool) -> int:
    """What products, attention, copies, launches and collectives take here, for a model and as
    many processes as parallel.num_processes."""
    config = compose(with_source(words), lays_out=False)
    if config.cluster.num_nodes > 1:
        raise ConfigError(
            f"cluster.num_nodes ({config.cluster.num_nodes}) is more than this machine; calibrate"
            " on one node, with the processes that run there"
        )
    processes = config.parallel.num_processes
    file = config.state / f"hardware-{processes}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    say(f"measuring for {processes} of {config.train.dtype}; other work on this machine spoils it")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.json"
        work.write_text(json.dumps(to_plain(config.planned)), "utf-8")
        start = [f"--nproc-per-node={processes}", "--standalone", "-m"]
        launcher = ["torch.distributed.run", *start] if processes > 1 else []
        command_line = [sys.executable, "-m", *launcher, MODULE, str(work), str(file.resolve())]
        done = subprocess.run(
            command_line,
            env=trainer_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    refused = [line for line in done.stdout.splitlines() if line.startswith(REFUSED_MARK)]
    if refused:
        raise ConfigError(refused[0].removeprefix(REFUSED_MARK))
    if done.returncode:
        say(done.stdout[-4000:])
        raise RuntimeError(f"the measurement ended with code {done.returncode}; see above")
    record = read_json(file)
    show(json.dumps(record) if as_json else describe(record, file))
    return 0


def describe(record: Mapping[str, Any], file: Path) -> str:
    """Constants, collectives, and how well they predict the steps that they were taken from."""
    values, machine = record["hardware"], record["machine"]
    rows = [(meaning, f"{values[name]:,.4g}") for name, meaning in SHOWN.items()]
    links = [
        (name, f"{link['start_us']:,.1f}", f"{link['gb_s']:,.3g}")
        for name, link in values["links"].items()
    ]
    steps = [
        (
            f"width {row['dim']}, {row['layers']} layers, {row['sequences']} x {row['seq_len']}",
            f"{row['measured_s'] * 1e3:,.1f}",
            f"{row['predicted_s'] * 1e3:,.1f}",
        )
        for row in record["steps"]
    ]
    parts = [
        f"{machine['device']}, {machine['processes']} of {machine['threads']} threads,"
        f" {machine['dtype']}, torch {machine['torch']}: {machine['elapsed_s']:.0f} s",
        table(("measured", "is"), rows),
    ]
    if links:
        parts.append(table(("collective", "us a hop", "GB/s"), links))
    parts.append(table(("step", "ms", "ms predicted"), steps))
    parts.append(f"{file}: hardware=this reads it")
    return "\n\n".join(parts)
