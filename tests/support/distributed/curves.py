"""The loss curves of layouts over the GPUs of this machine: `python -m
tests.support.distributed.curves FOLDER [steps [device [world]]]`.

The same model, weights and batches of the embedded corpus under each layout, in bf16, and on GPUs
each with every way to compute it: eager, compiled, and compiled with kernels of our own and cuDNN's
attention. Two ranks may share one GPU. Leaves `curves.json` in the folder: by layout, the loss of
each step. `single` is one process; `noise` is one process with half the micro batch, which changes
the order of sums and nothing else.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llm_core.data.batch import Batch
from llm_core.model.config import ModelConfig
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import OptimConfig
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import open_ranks
from llm_core.training.config import TrainConfig
from llm_core.training.run_config import RunConfig
from llm_core.training.step import train_step
from tests.support.distributed.cases import layout_name
from tests.support.distributed.forks import all_succeed
from tests.support.distributed.processes import free_port

CORPUS = Path(__file__).parents[3] / "data" / "sample" / "sample.jsonl"
STEPS, WARMUP_STEPS, LR = 50, 20, 1e-4
"""Few and small enough that training is stable: where losses jump, any two runs part."""
MODEL = ModelConfig(256, 512, 4, 8, 4, 1408, 512)
SMALL = replace(MODEL, dim=64, ffn_dim=176)
TRAIN = TrainConfig(
    num_steps=STEPS, global_batch_sequences=32, seq_len=512, micro_batch_sequences=8, dtype="bf16"
)


WAYS = {
    "": {},
    "compiled": {"compile": True},
    "compiled, triton, cudnn": {"compile": True, "kernels": "triton", "attention": "cudnn"},
}
"""To compute a layout on GPUs."""


def layouts(world: int, device: str, num_devices: int) -> list[ParallelConfig]:
    """What `world` processes can be, in pairs along each axis: on four, the products that people
    train with."""
    one = ParallelConfig(kind="fsdp", num_processes=world, device=device)  # type: ignore[arg-type]
    if world == 1:
        return [replace(one, kind=kind) for kind in ("none", "ddp", "fsdp")]
    if device == "cuda" and num_devices < world:  # on one device, where exchanges are slow
        return [
            replace(one, kind="ddp", tp=2),
            replace(one, tp=2, sequence_parallel=False),
            replace(one, cp=2),
        ]
    if world == 2:
        data = [replace(one, kind=kind) for kind in ("ddp", "zero1", "zero2", "fsdp")]
        overlaps = ("none", "ring", "symmetric")[: 3 if device == "cuda" else 2]
        tensor = [replace(one, tp=2, tp_overlap=overlap) for overlap in overlaps]
        slices = [
            replace(one, cp=2, cp_kind=kind, cp_balanced=kind != "ulysses")
            for kind in ("all_gather", "ulysses", "ring")
        ]
        stages = [
            replace(one, kind="ddp", pp=2, pp_schedule=schedule)
            for schedule in ("1f1b", "interleaved", "zero_bubble")
        ]
        return [*data, *tensor, *slices, *stages]
    pairs = [{"tp": 2}, {"pp": 2}, {"cp": 2}, {"pp": 2, "tp": 2}, {"cp": 2, "tp": 2}]
    return [one, *(replace(one, **pair) for pair in pairs), replace(one, kind="hsdp", dp_shard=2)]


def batches(
    steps: int, sequences: int = TRAIN.global_batch_sequences, tokens: int = TRAIN.seq_len
) -> torch.Tensor:
    """Real text as bytes, in random pieces: ids [steps, sequences, tokens + 1]."""
    texts = (json.loads(line)["text"] for line in CORPUS.read_text("utf-8").splitlines())
    data = np.frombuffer("\n\n".join(texts).encode(), np.uint8)
    begins = np.random.default_rng(0).integers(0, len(data) - tokens, (steps, sequences, 1))
    return torch.from_numpy(data[begins + np.arange(tokens + 1)].astype(np.int64))


def curve(config: RunConfig, file: Path) -> None:
    """Train here, as one rank; the first writes the losses."""
    ids = batches(config.train.num_steps)
    with open_ranks(config.parallel) as ranks:
        layout = build_layout(config.model, config.parallel, config.train, ranks)
        optimizer = build_optimizer(layout, config.optim, config.train.dtype)
        reports = []
        for step, step_ids in enumerate(ids):
            own, lr = (
                step_ids[ranks.data_rank :: ranks.data_world],
                LR * min(1, (step + 1) / WARMUP_STEPS),
            )
            reports.append(
                train_step(layout, optimizer, Batch(own[:, :-1], own[:, 1:]), lr, config, ranks)[0]
            )
        if ranks.is_first:
            file.write_text(json.dumps(torch.stack(reports).tolist()), "utf-8")


def in_processes(config: RunConfig, file: Path) -> list[float]:
    """The losses under one layout, in forks of this process, which must not have touched a GPU."""
    port, fork = str(free_port()), multiprocessing.get_context("fork")
    world = config.parallel.num_processes

    def rank(number: int) -> None:
        os.environ |= {
            "RANK": str(number),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(number),
            "LOCAL_WORLD_SIZE": str(world),
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if config.parallel.device == "cuda" and torch.cuda.device_count() < world:
            # NCCL refuses ranks of one host on one GPU; those of two hosts meet over sockets.
            os.environ |= {
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "NCCL_HOSTID": f"host{number}",
                "NCCL_NET": "Socket",
            }
            os.environ |= {"NCCL_SOCKET_IFNAME": "lo"} | dict.fromkeys(
                ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), "1"
            )
        curve(config, file)

    if not all_succeed([fork.Process(target=rank, args=(number,)) for number in range(world)]):
        raise RuntimeError(f"a process of {layout_name(config.parallel)} failed")
    losses: list[float] = json.loads(file.read_text("utf-8"))
    return losses


def main(folder: Path, steps: int, device: str, world: int) -> None:
    model = MODEL if device == "cuda" else SMALL
    num_devices = torch.cuda.device_count() if device == "cuda" else world
    ways: dict[str, dict[str, Any]] = WAYS if device == "cuda" else {"": {}}
    train, optim, nowhere = replace(TRAIN, num_steps=steps), OptimConfig(lr=LR), Path(os.devnull)
    single = RunConfig(model, optim, train, ParallelConfig(device=device), nowhere, nowhere)  # type: ignore[arg-type]
    runs = {
        "single": single,
        "noise": replace(
            single, train=replace(train, micro_batch_sequences=train.micro_batch_sequences // 2)
        ),
    }
    for parallel, (way, values) in itertools.product(
        layouts(world, device, num_devices), ways.items()
    ):
        compiled = values.get("compile", False) and not (parallel.splits_backward)
        if values and not compiled:
            continue
        if parallel.cp > 1:  # cuDNN attends whole rows
            values = {name: value for name, value in values.items() if name != "attention"}
        named = ", ".join(
            part for part in (parallel.kind * (world == 1), layout_name(parallel), way) if part
        )
        runs[named] = replace(single, parallel=parallel, train=replace(train, **values))
    found, numbers = {}, itertools.count()
    for name, config in runs.items():
        found[name] = in_processes(config, folder / f"losses-{next(numbers)}.json")
        apart = [abs(a - b) for a, b in zip(found[name], found["single"], strict=True)]
        print(
            f"{name}: last {found[name][-1]:.4f}, from single {max(apart):.4f} at most,"
            f" {sum(apart) / steps:.4f}",
            flush=True,
        )
        (folder / "curves.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    folder, *given = sys.argv[1:]
    num_steps, device, world = [*given, *(str(STEPS), "cuda", "2")[len(given) :]]
    main(Path(folder), int(num_steps), device, int(world))
