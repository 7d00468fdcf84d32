"""Pipelines against one process in float64: every rank computes both, the first writes the worst differences as JSON.

`python -m tests.distributed.pipeline_run FOLDER CASES_JSON`; four forked ranks and one process group serve all cases.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from llm_core.loss import IGNORED, summed_loss
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.parallel.pipeline import Pipeline, sum_over
from llm_core.parallel.stages import StagePlan, global_name, split_model
from tests.distributed.forks import fork_ranks

NUM_STEPS, SEED, CLIP, LR = 3, 7, 0.5, 3e-3
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Case:
    """pp x dp = the processes; `rows` sequences of 12 tokens go through each pipeline in `micro` micro batches."""

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

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in dataclasses.astuple(self))

    def model_config(self) -> ModelConfig:
        return ModelConfig(self.vocab, 16, self.layers, 4, 2, 24, 64, tied_embeddings=self.tied)


def batch(case: Case, step: int, dp: int) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, targets, documents) of the whole global batch."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, case.vocab, (dp * case.rows, 13), generator=generator)
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


def build_pipeline(case: Case, pp_group: dist.ProcessGroup) -> Pipeline:
    config, rank = case.model_config(), dist.get_rank(pp_group)
    plan = StagePlan(case.schedule, case.pp, config.num_layers)  # type: ignore[arg-type]
    model, parts = split_model(config, plan, rank)
    model.double().to_empty(device="cpu")
    reference = Transformer(config).double()
    init_weights(reference, SEED)
    weights = dict(reference.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[global_name(config, name)])
    return Pipeline(plan, pp_group, model, parts, summed_loss, CPU)  # type: ignore[arg-type]


def pipelined(case: Case, pp_group: dist.ProcessGroup, dp_group: dist.ProcessGroup) -> dict[str, Tensor]:
    """What `single` gives, of this process alone where it is of a stage."""
    pipeline, config = build_pipeline(case, pp_group), case.model_config()
    dp_rank, dp = dist.get_rank(dp_group), dist.get_world_size(dp_group)
    parameters = list(pipeline.model.parameters())
    optimizer, found = build_optimizer(parameters), {}
    rows = slice(dp_rank * case.rows, (dp_rank + 1) * case.rows)

    def packed(documents: Tensor) -> dict[str, Tensor]:
        return {"documents_BK": documents[rows]} if case.packed else {}

    for step in range(NUM_STEPS):
        ids, targets, documents = batch(case, step, dp)
        count = (targets != IGNORED).sum().clamp(min=1)
        loss = pipeline.accumulate_gradients(ids[rows], targets[rows], count, case.micro, **packed(documents))
        sum_over(parameters, dp_group)
        pipeline.sum_copies()
        dist.all_reduce(loss)
        found[f"loss.{step}"] = loss
        if step == 0:
            found |= {
                f"gradient.{global_name(config, name)}": p.grad.clone()
                for name, p in pipeline.model.named_parameters()
                if p.grad is not None
            }
        norm = pipeline.total_norm(nn.utils.get_total_norm([p.grad for p in pipeline.counted_parameters() if p.grad is not None]))
        nn.utils.clip_grads_with_norm_(parameters, CLIP, norm, foreach=False)
        found[f"norm.{step}"] = norm
        optimizer.step()
        optimizer.zero_grad()
    found |= {f"parameter.{global_name(config, name)}": p.detach() for name, p in pipeline.model.named_parameters()}
    ids, _, documents = batch(case, 50, dp)
    logits = pipeline.forward(ids[rows], config.dim, **packed(documents))
    if logits is not None:
        found["logits"] = torch.zeros(ids.shape[0], *logits.shape[1:], dtype=logits.dtype)
        found["logits"][rows] = logits
        dist.all_reduce(found["logits"], group=dp_group)
    for name, value in pipeline.whole_weights(lambda weight: weight).items():
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
    world = dist.get_world_size()
    meshes: dict[int, Any] = {}
    worst = {}
    for case in cases:
        dp = world // case.pp
        if case.pp not in meshes:
            meshes[case.pp] = init_device_mesh("cpu", (case.pp, dp), mesh_dim_names=("pp", "dp"))
        mesh = meshes[case.pp]
        worst[case.name] = compare(single(case, dp), pipelined(case, mesh.get_group("pp"), mesh.get_group("dp")))
    if dist.get_rank() == 0:
        (folder / "pipelines.json").write_text(json.dumps(worst), "utf-8")


if __name__ == "__main__":
    to = Path(sys.argv[1])
    fork_ranks(4, to, lambda: run(to, [Case(**values) for values in json.loads(sys.argv[2])]))
