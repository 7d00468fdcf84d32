"""Trains one model in 16 and in 8 bits on the same bytes, and says whether their losses differ by
more than two seeds of 16 bits do.

`python -m benchmarks.engine.precision --text DIR [--steps 1000] [model.dim=1024 …]` takes overrides
of the run below for all runs. Text as in `benchmarks.engine.experts`. Runs: `bf16`, `fp8` from the
same weights, and `bf16 again` from those of another seed; all see the same sequences.

Prints the rows of each run, then {"gap" (mean loss of fp8 over bf16, nats a byte, of the rows in
the last half), "noise" (the same of `bf16 again`), "within_noise" (|gap| <= |noise|), "speed_ratio"
(median tokens per second of fp8 over bf16), "losses" (the last of each), "weights", "card"}.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks.engine.agreement import Row
from benchmarks.engine.experts import add_text, curve, read_bytes
from benchmarks.engine.train import make_parser, read_config
from llm_core.device import device_name
from llm_core.printing import show
from llm_core.training.run_config import RunConfig

RUN = [
    "model.vocab_size=256",
    "model.dim=1024",
    "model.num_layers=20",
    "model.num_heads=16",
    "model.num_kv_heads=8",
    "model.ffn_dim=2816",
    "model.max_seq_len=2048",
    "model.rope_theta=10000",
    "model.tied_embeddings=true",
    "optim.lr=6e-4",
    "optim.warmup_steps=100",
    "optim.schedule=wsd",
    "train.global_batch_sequences=32",
    "train.micro_batch_sequences=16",
    "train.seq_len=1024",
]
"""236 million weights, nearly all in blocks."""


def main() -> None:
    parser = make_parser(__doc__, skip=0)
    add_text(parser)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations")
    arguments = parser.parse_intermixed_args()
    overrides = [*RUN, f"train.num_steps={arguments.steps}", *arguments.overrides]
    train, held_out = read_bytes(arguments.text, arguments.suffix)
    rows: dict[str, list[Row]] = {}
    for kind, config in configs(read_config(overrides)).items():
        rows[kind] = []
        for row in curve(config, train, held_out, arguments.every):
            rows[kind].append({"kind": kind} | row)
            show(json.dumps(rows[kind][-1]), flush=True)
    config = read_config(overrides)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    summary = compared(rows) | {"weights": config.model.num_parameters()}
    show(json.dumps(summary | {"card": device_name(device)}))


def configs(config: RunConfig) -> dict[str, RunConfig]:
    train = config.train
    return {
        "bf16": config,
        "fp8": replace(config, train=replace(train, float8=True)),
        "bf16 again": replace(config, train=replace(train, seed=train.seed + 1)),
    }


def compared(rows: Mapping[str, Sequence[Row]]) -> Row:
    def above(kind: str) -> float:
        pairs = list(zip(rows["bf16"], rows[kind], strict=True))
        return statistics.mean(
            other["loss"] - one["loss"] for one, other in pairs[len(pairs) // 2 :]
        )

    speeds = {
        kind: statistics.median(row["tok_s"] for row in found) for kind, found in rows.items()
    }
    gap, noise = above("fp8"), above("bf16 again")
    return {
        "gap": round(gap, 5),
        "noise": round(noise, 5),
        "within_noise": abs(gap) <= abs(noise),
        "speed_ratio": round(speeds["fp8"] / speeds["bf16"], 4),
        "losses": {kind: found[-1]["loss"] for kind, found in rows.items()},
    }


if __name__ == "__main__":
    main()
