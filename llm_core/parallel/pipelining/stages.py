"""Assigns layers to pipeline processes: plans of stages, and models without the other parts.

A pipeline cuts the blocks into stages that cost about the same; the embedding goes with the first,
norm and head with the last, and their cost with them. Single schedules give each process one stage;
looped ones (interleaved) stages r, r + n, …; V-shaped ones (zero bubble V, DualPipeV) stages r and
2n - 1 - r, so that the first process holds both ends. Each stage of a process is a model of its own
over the same modules as the process's model, so optimizers, checkpoints and initial weights see one
model with global names.

A tied embedding whose ends lie in different stages is two copies of one parameter, by one name in
checkpoints and in the stream of initial weights; `llm_core.parallel.pipelining.pipeline` adds their
gradients.
"""

from __future__ import annotations

import torch
from torch import nn

from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.parallel.degrees import StagePlan


def has_copies(config: ModelConfig, plan: StagePlan) -> bool:
    """Whether the tied embedding is two parameters."""
    return config.tied_embeddings and plan.num_stages > 1


def split_model(
    config: ModelConfig, plan: StagePlan, rank: int
) -> tuple[Transformer, dict[int, Transformer]]:
    """(model, stages) of a process on the meta device; stages are models over its modules."""
    with torch.device("meta"):
        whole = Transformer(config)
        if has_copies(config, plan):
            whole.head.weight = nn.Parameter(torch.empty_like(whole.head.weight))
        parts = {stage: Transformer(config) for stage in plan.stages_of(rank)}
    for stage, part in parts.items():
        for layer in range(config.num_layers):
            part.blocks[layer] = whole.blocks[layer] if layer in plan.layers_of(stage) else None  # type: ignore[assignment]
        first, last = stage == 0, stage == plan.num_stages - 1
        part.embedding = whole.embedding if first else None  # type: ignore[assignment]
        if config.positions == "learned":
            part.positions = whole.positions if first else None  # type: ignore[assignment]
        part.norm = whole.norm if last else None  # type: ignore[assignment]
        part.head = whole.head if last else None  # type: ignore[assignment]
    if 0 not in parts:
        whole.embedding = None  # type: ignore[assignment]
        if config.positions == "learned":
            whole.positions = None  # type: ignore[assignment]
    if plan.num_stages - 1 not in parts:
        whole.norm = whole.head = None  # type: ignore[assignment]
    for layer in range(config.num_layers):
        if not any(layer in plan.layers_of(stage) for stage in parts):
            whole.blocks[layer] = None  # type: ignore[assignment]
    return whole, parts
