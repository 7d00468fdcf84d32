"""Pipelines and context slices against one process in float64: every rank computes both, the first writes the worst differences.

`python -m tests.distributed.pipeline_run FOLDER CASES_JSON`; four forked ranks and one process group serve all cases.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from llm_core.loss import IGNORED, summed_loss
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.masks import restarting_positions
from llm_core.model.transformer import Transformer, global_name
from llm_core.parallel.context import Context
from llm_core.parallel.degrees import StagePlan
from llm_core.parallel.pipeline import Pipeline
from llm_core.parallel.stages import split_model
from tests.distributed.forks import fork_ranks

NUM_STEPS, SEED, CLIP, LR = 3, 7, 0.5, 3e-3
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Case:
    """pp x cp x dp = the processes; `rows` sequences of 16 tokens go through each pipeline in `micro` micro batches."""

    schedule: str
    pp: int
    micro: int = 8
    vocab: int = 64
    tied: bool = True
    packed: bool = False
    masks: str = "uneven"
    """even; uneven; idle: the first data-parallel rank has no target."""
    rows: int = 8
    layers: int = 8
    cp: int = 1
    context: str = "all_gather"
    balanced: bool = False

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in dataclasses.astuple(self))

    def model_config(self) -> ModelConfig:
        return ModelConfig(
            self.vocab, 16, self.layers, 4, 4 if self.context == "ulysses" else 2, 24, 64, tied_embeddings=self.tied
        )


def batch(case: Case, step: int, dp: int) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, targets, documents) of the whole global batch."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, case.vocab, (dp * case.rows, 17), generator=generator)
    targets = tokens[:, 1:].clone()
    if case.masks != "even":
        targets[torch.rand(targets.shape, generator=generator) < 0.4] = IGNORED
        targets[1] = IGNORED
    if case.masks == "idle":
        targets[: case.rows] = IGNORED
        if dp == 1:
            targets[-1, -3:] = 5
    documents = (torch.rand(targets.shape, generator=generator) < 0.3).cumsum(1).int()
    return tokens[:, :-1].contiguous(), targets, documents


def build_optimizer(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)


def single(case: Case, dp: int) -> dict[str, Tensor]:
    model = Transformer(case.model_config()).double()
    init_weights(model, SEED)
    optimizer, found = build_optimizer(list(model.parameters())), {}
    for step in range(NUM_STEPS):
        ids, targets, documents = batch(case, step, dp)
        loss = summed_loss(model(ids, documents_BK=documents if case.packed else None), targets)
        loss = loss / (targets != IGNORED).sum().clamp(min=1)
        loss.backward()
        found[f"loss.{step}"] = loss.detach()
        if step == 0:
            found |= {f"gradient.{name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found[f"norm.{step}"] = nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
    found |= {f"parameter.{name}": p.detach() for name, p in model.named_parameters()}
    ids, _, documents = batch(case, 50, dp)
    with torch.no_grad():
        found["logits"] = model(ids, documents_BK=documents if case.packed else None)
    return found


def build_pipeline(case: Case, mesh: DeviceMesh) -> Pipeline:
    config = case.model_config()
    plan = StagePlan(case.schedule, case.pp, config.num_layers)  # type: ignore[arg-type]
    model, parts = split_model(config, plan, mesh.get_local_rank("pp"))
    model.double().to_empty(device="cpu")
    if case.pp == 1 and case.tied:
        model.head.weight = model.embedding.weight
    init_weights(model, SEED)
    replicas = [mesh.get_group(axis) for axis in ("dp", "cp")]
    return Pipeline(plan, mesh.get_group("pp"), model, parts, summed_loss, CPU, torch.float64, replicas)  # type: ignore[arg-type]


def laid_out(case: Case, mesh: DeviceMesh) -> dict[str, Tensor]:
    """What `single` gives, of this process alone where it is of a stage."""
    pipeline, config = build_pipeline(case, mesh), case.model_config()
    context = Context(mesh.get_group("cp"), case.context, case.balanced)  # type: ignore[arg-type]
    if case.cp > 1:
        context.apply(pipeline.model)
    dp_rank, dp = mesh.get_local_rank("dp"), mesh.size(1)
    parameters = list(pipeline.model.parameters())
    optimizer, found = build_optimizer(parameters), {}
    own = slice(dp_rank * case.rows, (dp_rank + 1) * case.rows)

    def inputs(step: int) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """ids, targets, count and keywords of this process."""
        ids, targets, documents = batch(case, step, dp)
        count = (targets != IGNORED).sum().clamp(min=1)
        rows = {"documents_BK": documents[own]} if case.packed else {}
        if case.cp == 1:
            return ids[own], targets[own], count, rows
        positions = restarting_positions(documents[own]) if case.packed else None
        own_ids, own_targets, own_positions = context.slice(ids[own], targets[own], positions)
        return own_ids, own_targets, count, rows | {"positions_BT": own_positions}

    for step in range(NUM_STEPS):
        ids, targets, count, rows = inputs(step)
        if case.pp > 1:
            loss = pipeline.accumulate_gradients(ids, targets, count, case.micro, **rows)
        else:
            loss = summed_loss(pipeline.model(ids, **rows), targets) / count
            loss.backward()
            loss = loss.detach()
            for parameter in parameters:
                dist.all_reduce(parameter.grad)
        dist.all_reduce(loss)
        found[f"loss.{step}"] = loss
        if step == 0:
            found |= {
                f"gradient.{global_name(config, name)}": p.grad.clone()
                for name, p in pipeline.model.named_parameters()
                if p.grad is not None
            }
        norm = pipeline.clip_gradients(CLIP)
        found[f"norm.{step}"] = norm
        optimizer.step()
        optimizer.zero_grad()
    found |= {f"parameter.{global_name(config, name)}": p.detach() for name, p in pipeline.model.named_parameters()}
    ids, _, _, rows = inputs(50)
    logits = pipeline.forward(ids, **rows)
    if logits is not None:
        found["logits"] = torch.zeros(dp * case.rows, 16, case.vocab, dtype=logits.dtype)
        columns = context.columns(16, CPU) if case.cp > 1 else torch.arange(16)
        found["logits"][own.start + torch.arange(case.rows)[:, None], columns] = logits
        for axis in ("dp", "cp"):
            dist.all_reduce(found["logits"], group=mesh.get_group(axis))
    for name, value in pipeline.whole_weights().items():
        if global_name(config, name) == name:
            found[f"parameter.{name}"] = value
    return found


def compare(expected: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, float]:
    """Worst difference of each kind, relative to the largest value, over all processes; together they hold every name."""
    worst: dict[str, float] = {}
    for name, value in expected.items():
        kind = name.split(".")[0]
        held = torch.tensor(float(name in found))
        dist.all_reduce(held)
        assert held > 0, f"no process has {name}"
        error = (found[name] - value).abs().max() / value.abs().max().clamp(min=1e-30) if name in found else torch.zeros(())
        error = error.double()
        dist.all_reduce(error, op=dist.ReduceOp.MAX)
        worst[kind] = max(worst.get(kind, 0.0), float(error))
    assert set(found) <= set(expected)
    return worst


def run(folder: Path, cases: list[Case]) -> None:
    meshes: dict[tuple[int, int, int], DeviceMesh] = {}
    worst = {}
    for case in cases:
        dp = dist.get_world_size() // case.pp // case.cp
        shape = (case.pp, dp, case.cp)
        if shape not in meshes:
            meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "cp"))
        worst[case.name] = compare(single(case, dp), laid_out(case, meshes[shape]))
    if dist.get_rank() == 0:
        (folder / "pipelines.json").write_text(json.dumps(worst), "utf-8")


if __name__ == "__main__":
    to = Path(sys.argv[1])
    fork_ranks(4, to, lambda: run(to, [Case(**values) for values in json.loads(sys.argv[2])]))
