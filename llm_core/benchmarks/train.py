"""How fast does the engine train? Whole steps on random tokens, beside another engine's in the same call.

`python -m llm_core.benchmarks.train [model.dim=2048 parallel.num_processes=4 …]` takes overrides of the run below. With
`--peer "command"` both are run in turn, `--rounds` times; the command must print a JSON line with `tok_s_gpu` and `peak_gib`,
as ours does. A step is everything from ids on the host to updated weights; its time is the median after `--skip` steps, the
device waited for. FLOPs count the causal half of attention and no input embedding. The last line is JSON: {"tok_s",
"peer_tok_s", "ratio", "mfu_causal", "peak_gib", "peer_peak_gib", "card"}, tokens per second and GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from llm_core.config import build
from llm_core.device import device_name, set_threads, synchronize
from llm_core.optim.build import build_optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.ranks import Ranks, open_ranks
from llm_core.roofline import training_peak
from llm_core.run_config import RunConfig
from llm_core.step import train_step

RUN: dict[str, Any] = {
    "model": {
        "vocab_size": 32768,
        "dim": 2048,
        "num_layers": 16,
        "num_heads": 16,
        "num_kv_heads": 8,
        "ffn_dim": 8192,
        "max_seq_len": 4096,
        "rope_theta": 500000.0,
        "tied_embeddings": False,
    },
    "optim": {"lr": 3e-4},
    "train": {
        "num_steps": 25,
        "global_batch_sequences": 8,
        "micro_batch_sequences": 8,
        "seq_len": 4096,
        "dtype": "bf16",
        "compile": True,
    },
    "parallel": {"kind": "none", "num_processes": 1},
    "shards": "none",
    "bytes_per_token": "none",
}
"""A Llama of 1.1 billion weights."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="group.key=value, the value as JSON or a word")
    parser.add_argument("--skip", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--peer", help="command of another engine")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run, in turn")
    arguments = parser.parse_intermixed_args()
    config = read_config(arguments.overrides)
    if arguments.peer is None and (config.parallel.num_processes == 1 or "RANK" in os.environ):
        measure(config, arguments.skip)
        return
    own = [*launcher(config), *arguments.overrides, "--skip", str(arguments.skip)]
    runs: dict[str, list[dict[str, Any]]] = {"own": [], "peer": []}
    for _ in range(arguments.rounds):
        runs["own"].append(last_row(own))
        if arguments.peer:
            runs["peer"].append(last_row(shlex.split(arguments.peer)))
    tok_s, peer_tok_s = (statistics.median(run["tok_s_gpu"] for run in found) if found else None for found in runs.values())
    peaks = [max((run["peak_gib"] for run in found), default=None) for found in runs.values()]
    best = max(runs["own"], key=lambda run: run["tok_s_gpu"])
    summary = {"tok_s": tok_s, "peer_tok_s": peer_tok_s, "ratio": round(tok_s / peer_tok_s, 4) if tok_s and peer_tok_s else None}
    print(
        json.dumps(
            summary | {"mfu_causal": best["mfu_causal"], "peak_gib": peaks[0], "peer_peak_gib": peaks[1], "card": best["card"]}
        )
    )


def read_config(overrides: list[str]) -> RunConfig:
    values: dict[str, Any] = json.loads(json.dumps(RUN))
    for override in overrides:
        path, _, text = override.partition("=")
        *groups, key = path.split(".")
        place = values
        for group in groups:
            place = place.setdefault(group, {})
        try:
            place[key] = json.loads(text)
        except json.JSONDecodeError:
            place[key] = text
    return build(RunConfig, values)


def launcher(config: RunConfig) -> list[str]:
    python = [sys.executable, "-m"]
    if config.parallel.num_processes > 1:
        python += ["torch.distributed.run", "--standalone", f"--nproc-per-node={config.parallel.num_processes}", "-m"]
    return [*python, "llm_core.benchmarks.train"]


def last_row(command: list[str]) -> dict[str, Any]:
    """The last JSON line of a command. Raises RuntimeError with what it wrote where there is none."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    print(rows[-1], flush=True)
    row: dict[str, Any] = json.loads(rows[-1])
    return row


def measure(config: RunConfig, skip: int) -> None:
    """Run here, as one rank of the layout; the first prints a row."""
    set_threads(config.parallel)
    with open_ranks(config.parallel) as ranks:
        layout = build_layout(config.model, config.parallel, config.train, ranks, config.memory)
        optimizer = build_optimizer(layout, config.optim, config.train.dtype)
        generator = torch.Generator().manual_seed(ranks.data_rank)
        times = []
        for _ in range(config.train.num_steps):
            batch = random_batch(config, ranks, generator)
            synchronize(ranks.device)
            began = time.perf_counter()
            loss = train_step(layout, optimizer, batch, config.optim.lr, config, ranks)
            synchronize(ranks.device)
            times.append(time.perf_counter() - began)
        if ranks.is_first:
            print(
                json.dumps(row_of(config, statistics.median(times[skip:]), ranks) | {"loss": round(float(loss[0]), 4)}),
                flush=True,
            )


def random_batch(config: RunConfig, ranks: Ranks, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    rows = config.train.global_batch_sequences // ranks.data_world
    tokens = torch.randint(0, config.model.vocab_size, (rows, config.train.seq_len + 1), generator=generator)
    pair = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return tuple(tensor.pin_memory() for tensor in pair) if ranks.device.type == "cuda" else pair


def row_of(config: RunConfig, step_s: float, ranks: Ranks) -> dict[str, Any]:
    card = device_name(ranks.device)
    tok_s = config.train.tokens_per_step / step_s / ranks.world
    flops = config.model.training_flops_per_token(config.train.seq_len, causal=True)
    peak, peak_is = training_peak(ranks.device, config.train.dtype)
    on_gpu = ranks.device.type == "cuda"
    return {
        "name": "textmill",
        "card": card,
        "world": ranks.world,
        "step_s": round(step_s, 5),
        "tok_s_gpu": round(tok_s, 1),
        "mfu_causal": round(tok_s * flops / peak, 4),
        "peak_is": peak_is,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
    }


if __name__ == "__main__":
    main()
