"""The trainer under products of layouts against the trainer in one process, in float64: every rank computes both.

`python -m tests.distributed.trainer_run FOLDER LAYOUTS_JSON`; four forked ranks and one process group serve all layouts.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.data_config import DataConfig
from llm_core.loss import IGNORED
from llm_core.optim import MOMENTS, build_optimizer
from llm_core.parallel.apply import build_layout, whole_weights
from llm_core.parallel.ranks import Ranks, make_mesh
from llm_core.train_config import ParallelConfig, RunConfig
from llm_core.trainer import Batches, Trainer
from llm_core.validate import ValidationSet
from tests.distributed.forks import fork_ranks
from tests.llm_core.small_runs import MODEL, OPTIM, TRAIN, VOCAB_SIZE

NUM_STEPS, ROWS = 3, 8
SINGLE = ParallelConfig(device="cpu", num_threads=1)


def tokens_of(step: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, targets, documents) of a batch of which some rows count for nothing, and the first half for little."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB_SIZE, (rows, TRAIN.seq_len + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[: rows // 2, 3:] = IGNORED
    targets[-1] = IGNORED
    return tokens[:, :-1].contiguous(), targets, (torch.rand(targets.shape, generator=generator) < 0.2).cumsum(1).int()


def make_trainer(
    parallel: ParallelConfig, ranks: Ranks, folder: Path, model: dict[str, Any], packed: bool, micro: int = 1
) -> Trainer:
    config = RunConfig(
        dataclasses.replace(MODEL, num_layers=4, num_kv_heads=4, **model),
        OPTIM,
        dataclasses.replace(TRAIN, micro_batch_sequences=micro, data=DataConfig(mask_documents=packed)),
        parallel,
        folder,
        folder,
    )

    def batches(step: int) -> tuple[Tensor, ...]:
        share = ROWS // ranks.data_world
        rows = slice(ranks.data_rank * share, (ranks.data_rank + 1) * share)
        return tuple(tensor[rows] for tensor in tokens_of(step, ROWS)[: 3 if packed else 2])

    read: Batches = batches
    ids, targets, documents = tokens_of(99, 5)
    validation = ValidationSet(ids, targets, torch.arange(VOCAB_SIZE) % 4, documents if packed else None)
    layout = build_layout(config.model, parallel, config.train, ranks)
    optimizer = build_optimizer(layout.model, OPTIM, layout.optimizer_mesh)
    trainer = Trainer(layout.model, optimizer, read, validation, config, ranks, Checkpoints(folder, ranks), None, None)
    trainer.pipeline, trainer.context = layout.pipeline, layout.context
    return trainer


def compute(trainer: Trainer, ranks: Ranks) -> dict[str, Tensor]:
    """Everything worth comparing; weights on the first rank only."""
    found = {f"initial.{k}": v for k, v in weights_of(trainer, ranks).items()}
    for step in range(NUM_STEPS):
        found[f"loss.{step}"], found[f"norm.{step}"] = trainer.train_step(step, OPTIM.lr).unbind()
    validation = trainer.validation_sums()
    assert validation is not None
    found["validation"] = validation
    return found | {f"parameter.{k}": v for k, v in weights_of(trainer, ranks).items()}


def worst(expected: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the largest value; initial weights must be equal to the bit."""
    out: dict[str, float] = {}
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items() if name.startswith("initial"))
    for name, value in expected.items():
        error = float((found[name] - value).abs().max() / value.abs().max())
        out[name.split(".")[0]] = max(out.get(name.split(".")[0], 0.0), error)
    return out


def compare(values: dict[str, Any], folder: Path) -> dict[str, float]:
    """Worst differences of a layout, and of runs that go on from each other's checkpoints; {} but on the first rank."""
    model = {"tied_embeddings": values.pop("tied"), "vocab_size": values.pop("vocab", VOCAB_SIZE)}
    packed, micro = values.pop("packed"), values.pop("micro", 1)
    parallel = ParallelConfig(num_processes=4, device="cpu", num_threads=1, **values)
    cpu = torch.device("cpu")
    alone, ranks = Ranks(0, 1, cpu), Ranks(dist.get_rank(), 4, cpu, make_mesh(parallel, cpu))
    one = make_trainer(SINGLE, alone, folder, model, packed)
    expected = compute(one, alone)
    trainer = make_trainer(parallel, ranks, folder, model, packed, micro)
    found = compute(trainer, ranks)

    # Each saves, the other loads: bit for bit, and the next step is that of the run that was not interrupted.
    for name, saver in (("layout", trainer), ("single", one)):
        with Checkpoints(folder / name, ranks, in_background=True) as checkpoints:
            checkpoints.save(NUM_STEPS, saver.model, saver.optimizer)
            checkpoints.finish()
    by_one, by_layout = (
        make_trainer(SINGLE, alone, folder, model, packed),
        make_trainer(parallel, ranks, folder, model, packed, micro),
    )
    for name, reader in (("layout", by_one), ("single", by_layout)):
        assert Checkpoints(folder / name, ranks).load(reader.model, reader.optimizer) == NUM_STEPS
    weights = {name: weights_of(t, ranks) for name, t in (("layout", trainer), ("by_one", by_one), ("by_layout", by_layout))}
    weights["single"] = weights_of(one, ranks)
    goes_on = [t.train_step(NUM_STEPS, OPTIM.lr) for t in (trainer, by_one, one, by_layout)]
    if not ranks.is_first:
        return {}
    for saved, read in (("layout", "by_one"), ("single", "by_layout")):
        assert all(torch.equal(value, weights[read][name]) for name, value in weights[saved].items()), (saved, read)
    out = worst(expected, found)
    # Each AdamW moment is a sum over the gradients of all steps, so it shows what their norm would hide.
    out["moment"] = worst_moments(one, by_one)
    out["goes_on"] = float(max((goes_on[0] - goes_on[1]).abs().max(), (goes_on[2] - goes_on[3]).abs().max()))
    return out


def worst_moments(expected: Trainer, found: Trainer) -> float:
    """Of two trainers in one process: the largest difference, relative to the largest value of the moment of a weight."""
    error = 0.0
    for one, other in zip(expected.optimizer.state.values(), found.optimizer.state.values(), strict=True):
        for name in MOMENTS:
            error = max(error, float((one[name] - other[name]).abs().max() / one[name].abs().max()))
    return error


def weights_of(trainer: Trainer, ranks: Ranks) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in whole_weights(trainer.model, ranks, trainer.pipeline).items()}


def run(folder: Path, layouts: list[dict[str, Any]]) -> None:
    torch.set_default_dtype(torch.float64)
    found = [compare(layout, folder / str(number)) for number, layout in enumerate(layouts)]
    if dist.get_rank() == 0:
        (folder / "layouts.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    to = Path(sys.argv[1])
    fork_ranks(4, to, lambda: run(to, json.loads(sys.argv[2])))
