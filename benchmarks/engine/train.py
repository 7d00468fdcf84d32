"""Times whole training steps on random tokens, beside another engine's in the same call.

`python -m benchmarks.engine.train [model.dim=2048 parallel.num_processes=4 …]` takes overrides of
the run below. With `--peer "command"` both are run in turn, `--rounds` times; the command must
print a JSON line with `tok_s_gpu` and `peak_gib`, as ours does. A step is everything from ids on
the host to updated weights; its time is the median after `--skip` steps, the device waited for.
FLOPs count the causal half of attention and no input embedding.

First the same tokens are trained on in one process, plainly (benchmarks.engine.agreement): where
losses differ by more than noise, speeds are withheld and the exit code is 1. The last line is JSON:
{"tok_s", "peer_tok_s", "ratio", "mfu_causal", "peak_gib", "peer_peak_gib", "card", "loss",
"plain_loss", "loss_difference", "norm_difference", "losses_agree"}, tokens per second and GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from omegaconf import OmegaConf

from benchmarks.engine.agreement import Row, held_against, plain
from llm_core.config import build
from llm_core.data.batch import Batch
from llm_core.device import device_name, set_threads, synchronize
from llm_core.optim.build import build_optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.ranks import Ranks, open_ranks
from llm_core.printing import show
from llm_core.profiling.roofline import training_peak
from llm_core.training.run_config import RunConfig
from llm_core.training.schedule import learning_rate
from llm_core.training.step import train_step

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
    "optim": {"lr": 1e-4, "warmup_steps": 10, "schedule": "constant"},
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
"""A Llama of 1.1 billion weights, at a rate at which training is stable, so that losses can be
compared."""

SPEEDS = ("step_s", "tok_s_gpu", "mfu_causal")


def main() -> None:
    parser = make_parser(__doc__, skip=10)
    parser.add_argument("--peer", help="command of another engine")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run, in turn")
    parser.add_argument(
        "--only", choices=("own", "plain"), help="this training, as a rank of it in this process"
    )
    arguments = parser.parse_intermixed_args()
    config = read_config(arguments.overrides)
    if arguments.only:
        row = measure(config if arguments.only == "own" else plain(config), arguments.skip)
        if row:
            show(json.dumps(row), flush=True)
        return
    options = [*arguments.overrides, "--skip", str(arguments.skip), "--only"]
    reference = last_row([*launcher(plain(config)), *options, "plain"])
    runs: dict[str, list[Row]] = {"own": [], "peer": []}
    for _ in range(arguments.rounds):
        row = last_row([*launcher(config), *options, "own"])
        runs["own"].append(held_against(row, reference, config, SPEEDS))
        show(json.dumps(runs["own"][-1]), flush=True)
        if arguments.peer:
            runs["peer"].append(last_row(shlex.split(arguments.peer)))
            show(json.dumps(runs["peer"][-1]), flush=True)
    summary = summarise(runs["own"], runs["peer"])
    show(json.dumps(summary))
    sys.exit(not summary["losses_agree"])


def make_parser(text: str | None, skip: int) -> argparse.ArgumentParser:
    """What every benchmark of the engine takes. text: of its module. skip: steps, unless given."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="group.key=value")
    parser.add_argument("--skip", type=int, default=skip, help="steps that are not timed")
    return parser


def summarise(own: list[Row], peer: list[Row]) -> Row:
    """Medians over the rounds; without speeds where one of ours is withheld."""
    worst = max(own, key=lambda row: (not row["losses_agree"], row["loss_difference"]))
    tok_s = statistics.median(row["tok_s_gpu"] for row in own) if worst["losses_agree"] else None
    peer_tok_s = statistics.median(row["tok_s_gpu"] for row in peer) if peer else None
    peaks = [
        max((row["peak_gib"] for row in found if row["peak_gib"] is not None), default=None)
        for found in (own, peer)
    ]
    return {
        "tok_s": tok_s,
        "peer_tok_s": peer_tok_s,
        "ratio": round(tok_s / peer_tok_s, 4) if tok_s and peer_tok_s else None,
        "mfu_causal": max(row["mfu_causal"] for row in own) if worst["losses_agree"] else None,
        "peak_gib": peaks[0],
        "peer_peak_gib": peaks[1],
        "card": own[0]["card"],
    } | {
        name: worst[name]
        for name in ("loss", "plain_loss", "loss_difference", "norm_difference", "losses_agree")
    }


def read_config(overrides: list[str]) -> RunConfig:
    values = OmegaConf.merge(RUN, OmegaConf.from_dotlist(overrides))
    return build(RunConfig, OmegaConf.to_container(values))  # type: ignore[arg-type]


def launcher(config: RunConfig) -> list[str]:
    ranks = config.parallel.num_processes
    start = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    return [sys.executable, "-m", *(start if ranks > 1 else []), "benchmarks.engine.train"]


def last_row(command: list[str]) -> Row:
    return json_rows(command)[-1]


def json_rows(command: list[str]) -> list[Row]:
    """The JSON lines of a command. Raises RuntimeError with what it wrote where there is none."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        raise RuntimeError(
            f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
        )
    return [json.loads(row) for row in rows]


def measure(config: RunConfig, skip: int) -> Row | None:
    """Run here, as one rank of the layout; the first gives a row."""
    set_threads(config.parallel.num_threads, config.parallel.num_processes)
    with open_ranks(config.parallel) as ranks:
        layout = build_layout(
            config.model,
            config.parallel,
            config.train,
            ranks,
            config.memory,
            scratch=config.optim.state_folder,
        )
        optimizer = build_optimizer(layout, config.optim, config.train.dtype)
        generator = torch.Generator().manual_seed(0)
        times, reports = [], []
        for step in range(1, config.train.num_steps + 1):
            batch = random_batch(config, ranks, generator)
            lr = learning_rate(step, config.train.num_steps, config.optim)
            synchronize(ranks.device)
            began = time.perf_counter()
            reports.append(train_step(layout, optimizer, batch, lr, config, ranks)[:2])
            synchronize(ranks.device)
            times.append(time.perf_counter() - began)
        losses, norms = torch.stack(reports).T.tolist()
        row = row_of(config, statistics.median(times[skip:] or times), ranks)
        return row | {"losses": losses, "norms": norms} if ranks.is_first else None


def random_batch(config: RunConfig, ranks: Ranks, generator: torch.Generator) -> Batch:
    """This rank's rows of the next global batch, which is the same under every layout."""
    shape = config.train.global_batch_sequences, config.train.seq_len + 1
    tokens = torch.randint(0, config.model.vocab_size, shape, generator=generator)[
        ranks.data_rank :: ranks.data_world
    ]
    pair = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    on_gpu = ranks.device.type == "cuda"
    return Batch(*(tensor.pin_memory() if on_gpu else tensor for tensor in pair))


def row_of(config: RunConfig, step_s: float, ranks: Ranks) -> Row:
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
