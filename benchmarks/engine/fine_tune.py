"""Times steps of LoRA and QLoRA on a Llama of 8 billion weights, and those of another engine.

`python -m benchmarks.engine.fine_tune [train.seq_len=2048 …]` takes overrides of the run below.
Weights and codes are random and made on the device: neither speed nor memory depends on them. The
kinds run in turn, `--rounds` times each, every time in a process of its own. `--peer "command"`
adds that command, which must print a JSON line with `tok_s_gpu` and `peak_gib`, as ours does. A
step is everything from ids on the host to updated factors, with the device waited for; its time is
the median after `--skip` steps. Memory is torch's peak of allocated and of reserved bytes.

The last line is JSON: {"lora", "qlora", "peer": {"tok_s_gpu", "peak_gib", "reserved_gib",
"step_s"}, "ratio" (tokens per second of lora over the peer's), "card", "torch"}.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks.engine.train import last_row, make_parser, random_batch, read_config
from llm_core.device import device_name, set_threads, synchronize
from llm_core.model.adapter import AdapterConfig, is_factor
from llm_core.optim.build import build_optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.frozen import coded_weights
from llm_core.parallel.ranks import open_ranks
from llm_core.printing import show
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step

LLAMA_8B = [
    "model.vocab_size=128256",
    "model.dim=4096",
    "model.num_layers=32",
    "model.num_heads=32",
    "model.num_kv_heads=8",
    "model.ffn_dim=14336",
    "model.max_seq_len=8192",
    "optim.lr=1e-4",
    "train.num_steps=12",
    "train.global_batch_sequences=4",
    "train.micro_batch_sequences=1",
    "train.seq_len=2048",
    "train.compile=false",
    "memory.recompute=full",
    "memory.loss_chunk_tokens=256",
]
BASES = {
    "lora": AdapterConfig("lora", base_dtype="bf16"),
    "qlora": AdapterConfig("lora", base_dtype="bf16", base_codes="nf4"),
}
MEASURED = ("tok_s_gpu", "peak_gib", "reserved_gib", "step_s")


def main() -> None:
    parser = make_parser(__doc__, skip=4)
    parser.add_argument("--peer", help="command of another engine")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run, in turn")
    parser.add_argument("--only", choices=tuple(BASES), help="this kind, in this process")
    arguments = parser.parse_intermixed_args()
    if arguments.only:
        config = read_config([*LLAMA_8B, *arguments.overrides])
        config = replace(config, adapter=BASES[arguments.only])
        show(json.dumps(measure(config, arguments.skip)), flush=True)
        return
    own = [sys.executable, "-m", "benchmarks.engine.fine_tune", *arguments.overrides]
    own += ["--skip", str(arguments.skip), "--only"]
    commands = {kind: [*own, kind] for kind in BASES}
    if arguments.peer:
        commands["peer"] = shlex.split(arguments.peer)
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in commands}
    for _ in range(arguments.rounds):
        for kind, command in commands.items():
            rows[kind].append(last_row(command))
            show(json.dumps({"kind": kind} | rows[kind][-1]), flush=True)
    show(json.dumps(summarise(rows)))


def summarise(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds of each kind."""
    found: dict[str, Any] = {
        kind: {
            name: statistics.median(row[name] for row in of_kind)
            for name in MEASURED
            if all(row.get(name) is not None for row in of_kind)
        }
        for kind, of_kind in rows.items()
    }
    ratio = None
    if "peer" in found:
        ratio = round(found["lora"]["tok_s_gpu"] / found["peer"]["tok_s_gpu"], 4)
    first = rows["lora"][0]
    return found | {"ratio": ratio, "card": first["card"], "torch": first["torch"]}


def measure(config: RunConfig, skip: int) -> dict[str, Any]:
    """Time the steps of one kind in this process."""
    set_threads(config.parallel.num_threads, config.parallel.num_processes)
    with open_ranks(config.parallel) as ranks:
        device, train = ranks.device, config.train
        layout = build_layout(
            config.trained_model,
            config.parallel,
            train,
            ranks,
            config.memory,
            fill=False,
            trains=is_factor,
        )
        fill(layout.bare)
        optimizer = build_optimizer(layout, config.optim, train.dtype)
        generator, times, losses = torch.Generator().manual_seed(0), [], []
        for _ in range(train.num_steps):
            batch = random_batch(config, ranks, generator)
            synchronize(device)
            began = time.perf_counter()
            report = train_step(layout, optimizer, batch, config.optim.lr, config, ranks)
            synchronize(device)
            times.append(time.perf_counter() - began)
            losses.append(round(float(report[0]), 4))
        step_s, on_gpu = statistics.median(times[skip:] or times), device.type == "cuda"
        peaks = (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved)
        peak, reserved = (round(read() / 2**30, 2) if on_gpu else None for read in peaks)
        return {
            "name": "textmill",
            "tok_s_gpu": round(train.tokens_per_step / step_s, 1),
            "peak_gib": peak,
            "reserved_gib": reserved,
            "step_s": round(step_s, 5),
            "losses": losses,
            "card": device_name(device),
            "torch": torch.__version__,
        }


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Give all weights random values of usual sizes, on the device."""
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if name.endswith("lora.b"):
            weight.zero_()
        elif weight.ndim == 1:
            weight.fill_(1)
        else:
            weight.normal_(std=0.01)
    for _, coded in coded_weights(model):  # type: ignore[arg-type]
        coded.codes_OI.random_(256)
        # Block scales of about 0.02, as weights of usual sizes have.
        coded.absmax_OK.random_(100, 156)
        coded.groups_G2.copy_(torch.tensor([0.01, 0.02]).expand_as(coded.groups_G2))
        places = torch.arange(len(coded.first_O), device=coded.first_O.device)
        coded.first_O.copy_(places * coded.absmax_OK.shape[1])


if __name__ == "__main__":
    main()
