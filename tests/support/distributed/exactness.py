"""Every layout against one process: initial weights, loss, gradients, norm, parameters, validation,
and each other's checkpoints.

Every process of a layout takes part; the first compares with what it computes alone. Differences
are relative to the largest value of a tensor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.data.batch import IGNORED, Batch
from llm_core.data.config import DataConfig
from llm_core.data.sources import NO_SOURCE
from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.optim import offload
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import GroupRule, MuonConfig, OptimConfig
from llm_core.optim.guard import StepReport
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks, make_meshes
from llm_core.parallel.weights import whole_weights, write_weights
from llm_core.training.adapted import trains
from llm_core.training.config import TrainConfig
from llm_core.training.preference.config import PreferenceConfig
from llm_core.training.run_config import RunConfig
from llm_core.training.throughput import StepClock
from llm_core.training.trainer import Trainer
from llm_core.training.validate import ValidationSet
from tests.support.distributed.cases import Case, micro_sizes
from tests.support.distributed.gradients import gradients_into
from tests.support.distributed.problem import TOKENS, Problem

offload.PAGE = offload.GRAIN  # so that models as small as these have several
NUM_STEPS = 3
CPU = torch.device("cpu")
SINGLE = ParallelConfig(device="cpu", num_threads=1)
LR = 3e-3

SOURCES = ("books", "code", "web")
PAIRED = DataConfig(packing="pairs", mask_documents=True, loss_on="assistant")

Found = dict[str, Tensor]


def tokens_of(problem: Problem, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(ids, targets, documents, sources) of a whole global batch."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, problem.vocab, (problem.rows, TOKENS + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < 0.4] = IGNORED
    targets[-2] = IGNORED
    if problem.masks == "idle":
        targets[: problem.rows // 2] = IGNORED
    if problem.masks == "empty" and step == 1:
        targets[:] = IGNORED
    documents = (torch.rand(targets.shape, generator=generator) < 0.3).cumsum(1).int()
    sources = (documents % len(SOURCES)).masked_fill(targets == IGNORED, NO_SOURCE).to(torch.uint8)
    return tokens[:, :-1].contiguous(), targets, documents, sources


def branches_of(ids_BT: Tensor) -> Tensor:
    """Documents of rows of which each half is an answer."""
    return (torch.arange(TOKENS) >= TOKENS // 2).int().expand(len(ids_BT), -1)


def references_of(ids_BT: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(int(ids_BT.sum()))
    return -20 - torch.rand(len(ids_BT), 2, generator=draw, dtype=torch.float64)


def optim_of(problem: Problem) -> OptimConfig:
    """Clipping is active at the norms of these problems, so an error in the norm is one of
    parameters too."""
    return OptimConfig(
        lr=LR,
        clip_norm=0.5,
        kind=problem.optim,
        muon=MuonConfig(dtype="fp32"),
        state_in=problem.state_in,
        groups=(GroupRule(problem.frozen, lr_factor=0),) if problem.frozen else (),
    )


def make_trainer(
    problem: Problem,
    parallel: ParallelConfig,
    micro: int,
    ranks: Ranks,
    folder: Path,
    memory: MemoryConfig = NO_SAVINGS,
    model: ModelConfig | None = None,
) -> Trainer:
    """model: another one than the problem's."""
    train = TrainConfig(
        num_steps=NUM_STEPS + 1,
        global_batch_sequences=problem.rows,
        seq_len=TOKENS,
        micro_batch_sequences=micro,
        dtype="fp32" if problem.dtype == "fp64" else problem.dtype,
        gradient_bits=problem.gradient_bits,
        kernels=problem.kernels,
        z_loss=problem.z_loss,
        ema=problem.ema,
        seed=7,
        data=PAIRED if problem.pairs else DataConfig(mask_documents=problem.packed),
        preference=PreferenceConfig("dpo", 0.5, 0.1) if problem.pairs else PreferenceConfig(),
        init_from=folder if problem.pairs else None,
        neftune_alpha=problem.neftune,
    )
    config = RunConfig(
        model or problem.model(),
        optim_of(problem),
        train,
        parallel,
        folder,
        folder,
        memory,
        problem.adapter_config,
    )

    def batches(step: int) -> Batch:
        share = problem.rows // ranks.data_world
        rows = slice(ranks.data_rank * share, (ranks.data_rank + 1) * share)
        whole = tokens_of(problem, step)
        ids, targets, documents, sources = (tensor[rows] for tensor in whole)
        if problem.pairs:
            return Batch(ids, targets, branches_of(ids), None, references_of(whole[0])[rows])
        numbers = torch.arange(problem.rows)[rows] + step * problem.rows
        kept = documents if problem.packed else None
        return Batch(ids, targets, kept, sources, None, numbers)

    # Five rows, of which the last has targets whatever the masks.
    some = slice(problem.rows // 2 - 4, problem.rows // 2 + 1)
    ids, targets, documents, _ = (tensor[some] for tensor in tokens_of(problem, 99))
    validation = ValidationSet(
        ids, targets, torch.arange(problem.vocab) % 4, documents if problem.packed else None
    )
    if problem.pairs:
        validation = dataclasses.replace(
            validation, documents_BT=branches_of(ids), references_B2=references_of(ids)
        )
    layout = build_layout(
        config.trained_model,
        parallel,
        train,
        ranks,
        memory,
        trains=functools.partial(trains, config),
        sums_losses=not problem.pairs,
        noise_scale=train.noise_scale(config.model.dim),
        scratch=folder,
    )
    optimizer = build_optimizer(layout, config.optim, train.dtype, folder, train.ema)
    checkpoints = Checkpoints(folder, ranks)
    return Trainer(
        layout,
        optimizer,
        batches,
        validation,
        config,
        ranks,
        checkpoints,
        None,
        None,
        StepClock(config, ranks),
        sources=SOURCES,
    )


def compute(trainer: Trainer, begun: list[Found] | None = None) -> Found:
    """Everything worth comparing, on the first rank; the weights after three steps are left in the
    trainer. begun: gets the weights that each step begins with."""
    ranks, layout = trainer.ranks, trainer.layout
    found = {f"initial.{k}": v.clone() for k, v in whole_weights(layout, ranks).items()}
    for step in range(NUM_STEPS):
        if begun is not None:
            begun.append({k: v.clone() for k, v in whole_weights(layout, ranks).items()})
        with gradients_into(found, trainer) if step == 0 else nullcontext():
            report = trainer.train_step(step, LR)
        found[f"loss.{step}"], found[f"norm.{step}"] = report[:2].unbind()
        found[f"sources.{step}"] = report[len(StepReport._fields) :]
    with trainer.published():
        sums = trainer.validation_sums()
        averages = {f"average.{k}": v.clone() for k, v in whole_weights(layout, ranks).items()}
    assert sums is not None
    found |= averages | {"validation.sums": sums}
    return found | {f"parameter.{k}": v.clone() for k, v in whole_weights(layout, ranks).items()}


def differences(expected: Found, found: Found) -> dict[str, float]:
    """The worst of each kind, by the largest element; of gradients also by the norm. Initial
    weights count in bits: 0 or 1."""
    worst: dict[str, float] = {}
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        kind, value, other = name.split(".")[0], value.double(), found[name].double()
        if kind == "initial":
            errors = {kind: float(not torch.equal(value, other))}
        else:
            # Of a step without targets all is zero.
            errors = {kind: float((other - value).abs().max() / (value.abs().max() or 1))}
        if kind == "gradient":
            errors["gradient_norm"] = float((other - value).norm() / (value.norm() or 1))
        for kind, error in errors.items():
            # A NaN is not a small difference, and max() may drop it.
            worst[kind] = max(worst.get(kind, 0.0), error if error == error else float("inf"))
    return worst


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    torch.set_default_dtype(torch.float64 if dtype == "fp64" else torch.float32)
    yield
    torch.set_default_dtype(torch.float32)


def ranks_of(parallel: ParallelConfig) -> Ranks:
    """This process in a layout."""
    if parallel.kind == "none":
        return Ranks(0, 1, CPU)
    axes = {
        name: getattr(parallel, name)
        for name in ("num_processes", "pp", "cp", "tp", "tp_kind", "tp_depth", "dp_shard")
    }
    alike = ParallelConfig(kind="hsdp" if parallel.dp_shard else "ddp", **axes)
    return Ranks(dist.get_rank(), dist.get_world_size(), CPU, *_meshes(alike))


@functools.cache
def _meshes(alike: ParallelConfig) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    # Once for all layouts with these groups: a thread of each gloo group looks for messages a
    # hundred times a second, and those of all layouts together took half of the processor.
    return make_meshes(alike, CPU)


@functools.cache
def reference(problem: Problem, folder: Path) -> Found:
    """What one process gives with the whole batch at once."""
    return compute(alone(problem, folder))


def alone(problem: Problem, folder: Path) -> Trainer:
    """One process with the whole batch at once; in float32 for rougher arithmetic."""
    plain = dataclasses.replace(
        problem, dtype="fp32", gradient_bits=32, state_in="device", kernels="torch"
    )
    return make_trainer(plain, SINGLE, problem.rows, ranks_of(SINGLE), folder)


def norms_at(begun: list[Found], problem: Problem, folder: Path) -> Found:
    """The norm of each step by one process with the weights that a layout began it with."""
    trainer, found = alone(problem, folder), {}
    for step, weights in enumerate(begun):
        write_weights(trainer.layout, WholeWeights(weights))
        found[f"norm.{step}"] = trainer.train_step(step, LR)[1].clone()
    return found


class WholeWeights(dict[str, Tensor]):
    def rows(self, name: str, rows: slice) -> Tensor:
        return self[name][rows]


def compare(case: Case, folder: Path) -> dict[str, float]:
    """Differences of a layout from one process, on the first rank.

    Norms in float32 are compared at equal weights. An update of AdamW divides an element of the
    gradient by its own size, so one near zero, which is its rounding, moves a weight by a whole
    rate: the norms of later steps would be those of other weights. In float64 that does not show.
    """
    # Of all weights before each step, which float64 has no use for.
    begun: list[Found] | None = [] if case.problem.dtype == "fp32" else None
    with precision(case.problem.dtype):
        ranks = ranks_of(case.parallel)
        trainer = make_trainer(case.problem, case.parallel, case.micro, ranks, folder, case.memory)
        found = compute(trainer, begun)
        if dist.get_rank():
            return {}
        expected = reference(case.problem, folder)
        if begun is not None:
            expected = expected | norms_at(begun, case.problem, folder)
        return differences(expected, found)


def whole_state(trainer: Trainer, whole: Trainer, checkpoints: Checkpoints) -> Found:
    """All that there is to save of a layout, moments among it, as one process has it; that process
    is `whole`."""
    checkpoints.save(NUM_STEPS, trainer.layout, trainer.optimizer)
    checkpoints.load(whole.layout, whole.optimizer)
    return {
        name: tensor.clone()
        for name, tensor in collect_state(whole.layout, whole.optimizer).items()
    }


def exchange(
    problem: Problem, saver: ParallelConfig, loader: ParallelConfig, folder: Path
) -> dict[str, float]:
    """Train under one layout and save; load under another: all state in bits, then the step that
    follows."""
    with precision(problem.dtype):
        one, other = (
            make_trainer(problem, p, micro_sizes(p, problem.rows)[0], ranks_of(p), folder)
            for p in (saver, loader)
        )
        for step in range(NUM_STEPS):
            one.train_step(step, LR)
        # All processes take part in saving, also what each of them has alone.
        everyone = Ranks(dist.get_rank(), dist.get_world_size(), CPU)
        with Checkpoints(folder, everyone, in_background=True) as checkpoints:
            checkpoints.save(NUM_STEPS, one.layout, one.optimizer)
            assert checkpoints.load(other.layout, other.optimizer) == NUM_STEPS
        plain = dataclasses.replace(problem, state_in="device", kernels="torch")
        whole = make_trainer(plain, SINGLE, problem.rows, ranks_of(SINGLE), folder)
        with Checkpoints(folder / "compared", everyone) as compared:
            states = [whole_state(trainer, whole, compared) for trainer in (one, other)]
        ended = [t.train_step(NUM_STEPS, LR)[:2] for t in (one, other)]
        after = [whole_weights(t.layout, t.ranks) for t in (one, other)]
        if dist.get_rank():
            return {}
        same = states[0].keys() == states[1].keys() and all(
            torch.equal(states[0][name], states[1][name]) for name in states[0]
        )
        worst = {"loaded": float(not same)}
        parameters = differences(*({f"parameter.{k}": v for k, v in w.items()} for w in after))
        worst["continued"] = max(
            float(((ended[0] - ended[1]).abs() / ended[0].abs()).max()), parameters["parameter"]
        )
        return worst
