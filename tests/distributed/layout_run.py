"""What each layout computes from one and the same uneven batch: run once per process, results left as safetensors.

`python -m tests.distributed.layout_run FOLDER KIND …` with the ranks in the environment, one layout after another.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.loss import IGNORED
from llm_core.model.config import ModelConfig
from llm_core.optim import build_optimizer
from llm_core.parallel.apply import bare, build_model, whole_weights
from llm_core.parallel.ranks import Ranks, open_ranks
from llm_core.train_config import ParallelConfig, RunConfig
from llm_core.trainer import Batches, Trainer
from llm_core.validate import ValidationSet
from tests.distributed.processes import artifacts
from tests.llm_core.small_runs import MODEL, OPTIM, TRAIN, VOCAB_SIZE, token_stream

NUM_STEPS = 3
UNTIED = dataclasses.replace(MODEL, tied_embeddings=False)


class GradientRecorder(torch.optim.SGD):
    """Leaves the weights alone and remembers the whole gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.0)
        self.model = model
        self.gradients: dict[str, Tensor] = {}

    def step(self, closure: object = None) -> None:
        for name, parameter in bare(self.model).named_parameters():
            grad = parameter.grad
            assert grad is not None, name
            self.gradients[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()


def uneven_batch(ranks: Ranks, size: int = 8) -> Batches:
    """Batches of which one micro batch counts for nothing and one rank has most targets."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        tokens_BS = torch.from_numpy(token_stream(size * (TRAIN.seq_len + 1), step).astype("int64")).view(size, -1)
        ids_BT, targets_BT = tokens_BS[:, :-1].contiguous(), tokens_BS[:, 1:].clone()
        targets_BT[2:4] = IGNORED
        targets_BT[4:, 3:] = IGNORED
        share = size // ranks.world
        rows = slice(ranks.rank * share, (ranks.rank + 1) * share)
        return ids_BT[rows], targets_BT[rows]

    return batch


def make_trainer(
    ranks: Ranks, kind: str, folder: Path, dtype: str = "fp32", model_config: ModelConfig = MODEL, micro: int = 2
) -> Trainer:
    train = dataclasses.replace(TRAIN, dtype=dtype, micro_batch_sequences=micro)
    parallel = ParallelConfig(kind, ranks.world, device="cpu", num_threads=1)  # type: ignore[arg-type]
    config = RunConfig(model_config, OPTIM, train, parallel, folder, folder)
    model = build_model(model_config, parallel, dtype, train.seed, ranks)
    ids_BT, targets_BT = uneven_batch(Ranks(0, 1, ranks.device), 6)(99)
    validation = ValidationSet(ids_BT, targets_BT, torch.arange(VOCAB_SIZE) % 4)
    optimizer = build_optimizer(model, OPTIM)
    return Trainer(
        model, optimizer, uneven_batch(ranks), validation, config, ranks, Checkpoints(folder / "checkpoints", ranks), None, None
    )


def compute(ranks: Ranks, kind: str, folder: Path, start_from: Path) -> dict[str, Tensor]:
    """Everything worth comparing. `start_from` holds a checkpoint that another layout wrote."""
    found: dict[str, Tensor] = {}
    for name, config in (("tied", MODEL), ("untied", UNTIED)):
        trainer = make_trainer(ranks, kind, folder, model_config=config)
        found |= {f"{name}.init.{k}": v.clone() for k, v in whole_weights(trainer.model, ranks).items()}
        adamw, trainer.optimizer = trainer.optimizer, GradientRecorder(trainer.model)  # type: ignore[assignment]
        trainer.config = dataclasses.replace(trainer.config, optim=dataclasses.replace(OPTIM, clip_norm=1e9))
        found[f"{name}.loss_and_norm"] = trainer.train_step(0, 0.0)
        found |= {f"{name}.gradient.{k}": v for k, v in trainer.optimizer.gradients.items()}
        trainer.optimizer, trainer.config = adamw, dataclasses.replace(trainer.config, optim=OPTIM)
        found[f"{name}.steps"] = torch.stack([trainer.train_step(i, OPTIM.lr) for i in range(NUM_STEPS)])
        validation = trainer.validation_sums()
        assert validation is not None
        found[f"{name}.validation"] = validation
        found |= {f"{name}.final.{k}": v for k, v in whole_weights(trainer.model, ranks).items()}
        Checkpoints(folder / name, ranks).save(NUM_STEPS, trainer.model, trainer.optimizer)
        if (start_from / name).exists():
            other = make_trainer(ranks, kind, folder, model_config=config)
            assert Checkpoints(start_from / name, ranks).load(other.model, other.optimizer) == NUM_STEPS
            found |= {f"{name}.loaded.{k}": v.clone() for k, v in whole_weights(other.model, ranks).items()}
            found[f"{name}.next"] = other.train_step(NUM_STEPS, OPTIM.lr)
    bf16 = make_trainer(ranks, kind, folder, dtype="bf16")
    found["bf16.steps"] = torch.stack([bf16.train_step(i, OPTIM.lr) for i in range(NUM_STEPS)])
    return found


def main(folder: Path, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    for number, kind in enumerate(kinds):
        world = 1 if kind == "none" else 2
        if world > 1:
            os.environ["MASTER_PORT"] = os.environ["MASTER_PORTS"].split()[number]
        with open_ranks(ParallelConfig(kind, world, device="cpu")) as ranks:  # type: ignore[arg-type]
            found = compute(ranks, kind, artifacts(folder, kind), start_from=folder / "none")
            if ranks.is_first:
                save_file({k: v.detach().contiguous().clone() for k, v in found.items()}, folder / f"{kind}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
