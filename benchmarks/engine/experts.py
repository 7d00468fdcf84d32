"""Trains a model of experts and a dense one of as many active weights on the same bytes.

`python -m benchmarks.engine.experts --text DIR [--steps 1200] [train.seq_len=1024 …]` takes
overrides of the run below for both. Text is the bytes of files with one of `--suffix` under DIR, in
the order of their paths; every 50th file is held out. A token is a byte, so nearly all weights are
in blocks. Both see the same sequences at the same rates.

Each `--every` steps prints {"kind", "step", "tokens", "flops" (of training so far, active weights
and causal attention), "loss" (nats a byte, held-out text), "tok_s" (since the last row, without
evaluation), "load" (the largest load over the mean, worst layer), "elapsed_s"}. `--most-s` ends a
model's run early. The last line is {"flops_ratio" (FLOPs of experts, interpolated, to the last
dense loss over those of the dense model; null: not reached), "speed_ratio" (median tokens per
second of experts over dense), "dense", "experts" (weights, active weights, last loss), "card"}.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.agreement import Row
from benchmarks.engine.train import make_parser, read_config
from llm_core.data.batch import Batch
from llm_core.device import device_name, set_threads, synchronize
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.precision import autocast
from llm_core.optim.build import build_optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks, open_ranks
from llm_core.printing import show
from llm_core.training.run_config import RunConfig
from llm_core.training.schedule import learning_rate
from llm_core.training.step import token_losses, train_step

RUN = [
    "model.vocab_size=256",
    "model.dim=768",
    "model.num_layers=12",
    "model.num_heads=12",
    "model.num_kv_heads=4",
    "model.ffn_dim=512",
    "model.max_seq_len=2048",
    "model.rope_theta=10000",
    "model.tied_embeddings=true",
    "optim.lr=1e-3",
    "optim.warmup_steps=100",
    "optim.schedule=wsd",
    "train.global_batch_sequences=64",
    "train.micro_batch_sequences=32",
    "train.seq_len=1024",
]
"""Of experts, whose width is ffn_dim: with those below 90 million active weights of 487."""
EXPERTS = ExpertsConfig(32, 4, score="sigmoid", shared_dim=512, bias_rate=0.003, z_loss=0.001)
HELD_OUT, HELD_OUT_ROWS = 50, 64


def main() -> None:
    parser = make_parser(__doc__, skip=0)
    add_text(parser)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations")
    parser.add_argument("--most-s", type=float, default=330.0, help="of the run of one model")
    parser.add_argument("--kinds", nargs="+", choices=("dense", "experts"), default=None)
    arguments = parser.parse_intermixed_args()
    overrides = [*RUN, f"train.num_steps={arguments.steps}", *arguments.overrides]
    runs = configs(overrides, EXPERTS)
    train, held_out = read_bytes(arguments.text, arguments.suffix)
    show(json.dumps({"train_bytes": len(train), "held_out_bytes": len(held_out)}), flush=True)
    rows: dict[str, list[Row]] = {}
    for kind in arguments.kinds or runs:
        rows[kind] = []
        for row in curve(runs[kind], train, held_out, arguments.every, arguments.most_s):
            rows[kind].append({"kind": kind} | row)
            show(json.dumps(rows[kind][-1]), flush=True)
    show(json.dumps(summary(runs, rows)))


def add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=Path, required=True, help="folder of text")
    parser.add_argument("--suffix", nargs="+", default=[".py", ".txt", ".md"], help="of its files")


def configs(overrides: list[str], experts: ExpertsConfig) -> dict[str, RunConfig]:
    """Both runs. A token passes through feed-forwards of the same total width."""
    config = read_config(overrides)
    width = experts.top_k * config.model.ffn_dim + experts.shared_dim
    dense = replace(config, model=replace(config.model, ffn_dim=width))
    return {
        "dense": dense,
        "experts": replace(config, model=replace(config.model, experts=experts)),
    }


def read_bytes(folder: Path, suffixes: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(training text, held-out text), uint8. Raises SystemExit where there is too little."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())
    parts: tuple[list[bytes], list[bytes]] = [], []
    for number, file in enumerate(files):
        parts[number % HELD_OUT == 0].append(file.read_bytes() + b"\0")
    train, held_out = (np.frombuffer(b"".join(part), dtype=np.uint8) for part in parts)
    if min(len(train), len(held_out)) < 10_000:
        raise SystemExit(
            f"--text {folder} has {len(files)} files of {', '.join(suffixes)} with {len(train)}"
            f" bytes and {len(held_out)} held out; give a folder with more"
        )
    return train, held_out


def curve(
    config: RunConfig,
    train: np.ndarray,
    held_out: np.ndarray,
    every: int,
    most_s: float = math.inf,
) -> Iterator[Row]:
    """The rows of one model."""
    set_threads(config.parallel.num_threads, config.parallel.num_processes)
    rows, seq_len = config.train.global_batch_sequences, config.train.seq_len
    flops = config.model.training_flops_per_token(seq_len, causal=True)
    with open_ranks(config.parallel) as ranks:
        layout = build_layout(config.model, config.parallel, config.train, ranks, config.memory)
        optimizer = build_optimizer(layout, config.optim, config.train.dtype)
        began = since = time.perf_counter()
        report, last_step = torch.zeros(0), 0
        for step in range(1, config.train.num_steps + 1):
            batch = pinned(sequences(train, rows, seq_len, seed=step), ranks)
            lr = learning_rate(step, config.train.num_steps, config.optim)
            report = train_step(layout, optimizer, batch, lr, config, ranks)
            is_over = step % every == 0 and time.perf_counter() - began > most_s
            if step % every and step != config.train.num_steps:
                continue
            synchronize(ranks.device)
            tok_s = (step - last_step) * rows * seq_len / (time.perf_counter() - since)
            yield {
                "step": step,
                "tokens": step * rows * seq_len,
                "flops": step * rows * seq_len * flops,
                "loss": round(held_out_loss(layout, config, ranks, held_out), 5),
                "tok_s": round(tok_s, 1),
                "load": load_of(report, config),
                "elapsed_s": round(time.perf_counter() - began, 1),
            }
            if is_over:
                return
            since, last_step = time.perf_counter(), step


def sequences(text: np.ndarray, rows: int, seq_len: int, seed: int) -> Tensor:
    """int64 [rows, seq_len + 1], from places that the seed draws."""
    begins = np.random.default_rng(seed).integers(0, len(text) - seq_len - 1, rows)
    return torch.from_numpy(text[begins[:, None] + np.arange(seq_len + 1)].astype(np.int64))


def pinned(tokens: Tensor, ranks: Ranks) -> Batch:
    pair = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    on_gpu = ranks.device.type == "cuda"
    return Batch(*(tensor.pin_memory() if on_gpu else tensor for tensor in pair))


@torch.no_grad()
def held_out_loss(layout: Layout, config: RunConfig, ranks: Ranks, text: np.ndarray) -> float:
    """Nats a byte, of the same sequences each time."""
    tokens = sequences(text, HELD_OUT_ROWS, config.train.seq_len, seed=0)
    losses = []
    for piece in tokens.split(config.train.micro_batch_sequences):
        ids_BT, targets_BT = (part.to(ranks.device) for part in (piece[:, :-1], piece[:, 1:]))
        with autocast(ranks.device, config.train.dtype):
            losses_BT = token_losses(layout, ids_BT.contiguous(), targets_BT.contiguous(), {})
        assert losses_BT is not None
        losses.append(losses_BT.double().sum())
    return float(torch.stack(losses).sum()) / tokens[:, 1:].numel()


def load_of(report: Tensor, config: RunConfig) -> float | None:
    """The largest load over the mean in the last step, of the worst layer."""
    experts, layers = config.model.experts, config.model.num_layers
    if experts is None:
        return None
    loads_LE = report[-layers * experts.number :].view(layers, experts.number)
    return round(float((loads_LE.amax(1) / loads_LE.mean(1)).max()), 3)


def summary(runs: dict[str, RunConfig], rows: dict[str, list[Row]]) -> Row:
    speeds = {
        kind: statistics.median(row["tok_s"] for row in found) for kind, found in rows.items()
    }
    both = len(rows) == len(runs)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Any] = {
        kind: {
            "weights": runs[kind].model.num_parameters(),
            "active": runs[kind].model.num_parameters(active=True),
            "loss": rows[kind][-1]["loss"],
            "tok_s": speeds[kind],
        }
        for kind in rows
    }
    ratio = flops_to_reach(rows["experts"], rows["dense"][-1]["loss"]) if both else None
    return {
        "flops_ratio": round(ratio / rows["dense"][-1]["flops"], 4) if ratio else None,
        "speed_ratio": round(speeds["experts"] / speeds["dense"], 4) if both else None,
        **found,
        "card": device_name(device),
    }


def flops_to_reach(rows: Sequence[Row], loss: float) -> float | None:
    """FLOPs at which a curve first has a loss, between two rows by a straight line; None: never."""
    for before, after in zip([None, *rows[:-1]], rows, strict=True):
        if after["loss"] <= loss:
            if before is None:
                return float(after["flops"])
            part = (before["loss"] - loss) / (before["loss"] - after["loss"])
            return float(before["flops"] + part * (after["flops"] - before["flops"]))
    return None


if __name__ == "__main__":
    main()
