"""Times a training step on the CPU against one of transformers: the same model, weights and
batches, in turn.

`python -m benchmarks.engine.step [model.dim=256 …]` takes overrides of the run below, the tiny
model as the demo trains it. Each side does a whole step: forward, loss, backward, clipping, AdamW
(fused), with the same threads in one process; of every pair either goes first in turn, so that a
busy machine slows both. The figure is the median of the pairs' ratios after `--skip` pairs. It is
withheld when the losses of the first steps differ, as the two would not be doing the same.

The last line is JSON: {"ratio" (transformers over ours, above 1 we are faster), "ratio_p05" and
"ratio_p95" (of fewer than 20 pairs "ratio_min" and "ratio_max"), "step_s", "peer_step_s",
"cpu_ratio" (the same of processor time), "losses_agree", "threads"}. Needs transformers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.engine.train import make_parser, read_config
from llm_core.bench.spread import spread
from llm_core.data.batch import Batch
from llm_core.device import set_threads
from llm_core.huggingface.config import hugging_face_config
from llm_core.huggingface.names import to_hugging_face
from llm_core.optim.build import build_optimizer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.ranks import open_ranks
from llm_core.printing import show
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step

TINY = [
    "model.vocab_size=4096",
    "model.dim=128",
    "model.num_layers=4",
    "model.num_heads=4",
    "model.num_kv_heads=4",
    "model.ffn_dim=352",
    "model.max_seq_len=1024",
    "model.rope_theta=10000.0",
    "model.tied_embeddings=true",
    "optim.lr=1e-3",
    "train.num_steps=60",
    "train.global_batch_sequences=8",
    "train.micro_batch_sequences=8",
    "train.seq_len=128",
    "train.dtype=fp32",
    "train.compile=false",
    "parallel.device=cpu",
]
"""The model of conf/model/tiny.yaml in steps of conf/train/demo.yaml."""

CHECKED_STEPS, TOLERANCE = 3, 1e-4
Step = Callable[[Tensor, Tensor], float]
"""(ids_BT, targets_BT) → the loss before the update."""


def main() -> None:
    arguments = make_parser(__doc__, skip=5).parse_intermixed_args()
    config = read_config([*TINY, *arguments.overrides])
    show(json.dumps(compare(config, arguments.skip)))


def compare(config: RunConfig, skip: int) -> dict[str, object]:
    """Time both sides on `config.train.num_steps` batches."""
    threads = set_threads(config.parallel.num_threads, config.parallel.num_processes)
    ours, theirs = own_step(config), peer_step(config)
    generator = torch.Generator().manual_seed(0)
    rows, columns = config.train.global_batch_sequences, config.train.seq_len + 1
    losses = np.empty((config.train.num_steps, 2))
    seconds = np.empty((config.train.num_steps, 2, 2))
    for number in range(config.train.num_steps):
        tokens = torch.randint(config.model.vocab_size, (rows, columns), generator=generator)
        for side in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter(), time.process_time()
            losses[number, side] = (ours, theirs)[side](tokens[:, :-1], tokens[:, 1:])
            seconds[number, side] = time.perf_counter() - began[0], time.process_time() - began[1]
    agree = bool(np.abs(losses[:CHECKED_STEPS, 0] - losses[:CHECKED_STEPS, 1]).max() < TOLERANCE)
    wall, cpu = (seconds[skip:, 1, clock] / seconds[skip:, 0, clock] for clock in (0, 1))
    figures = {
        "ratio": round(float(np.median(wall)), 3),
        **{f"ratio_{name}": round(value, 3) for name, value in spread(wall).items()},
        "cpu_ratio": round(float(np.median(cpu)), 3),
        "step_s": round(statistics.median(seconds[skip:, 0, 0].tolist()), 5),
        "peer_step_s": round(statistics.median(seconds[skip:, 1, 0].tolist()), 5),
    }
    shown = figures if agree else dict.fromkeys(figures)
    return shown | {"losses_agree": agree, "threads": threads, "torch": torch.__version__}


def own_step(config: RunConfig) -> Step:
    with open_ranks(config.parallel) as ranks:  # one process, so there is no group to leave
        layout = build_layout(config.model, config.parallel, config.train, ranks)
    optimizer = build_optimizer(layout, config.optim)

    def step(ids_BT: Tensor, targets_BT: Tensor) -> float:
        batch = Batch(ids_BT, targets_BT)
        return float(train_step(layout, optimizer, batch, config.optim.lr, config, ranks)[0])

    return step


def peer_step(config: RunConfig) -> Step:
    """A plain loop around the model of transformers, from our initial weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = hugging_face_config(config.model)
    shape = AutoConfig.for_model(**values)
    model = AutoModelForCausalLM.from_config(shape, attn_implementation="sdpa")
    with open_ranks(config.parallel) as ranks:
        weights = build_layout(config.model, config.parallel, config.train, ranks).bare.state_dict()
    model.load_state_dict(to_hugging_face(config.model, weights), strict=False)
    model.tie_weights()
    model.train()
    optim, parameters = config.optim, list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True
    )
    size = config.train.micro_batch_sequences

    def step(ids_BT: Tensor, targets_BT: Tensor) -> float:
        total = torch.zeros(())
        for ids, targets in zip(ids_BT.split(size), targets_BT.split(size), strict=True):
            logits_BTV = model(input_ids=ids, use_cache=False).logits
            logits = logits_BTV.flatten(0, 1).float()
            loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / targets_BT.numel()
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(parameters, optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    return step


if __name__ == "__main__":
    main()
