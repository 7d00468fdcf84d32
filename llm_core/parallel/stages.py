"""Which layers does a pipeline process hold? Plans of stages, and models with the other parts taken out.

A pipeline cuts the blocks into stages of as equal a number as can be; the embedding goes with the first, norm and head with the
last. Single schedules give each process one stage; looped ones (interleaved) stages r, r + n, …; V-shaped ones (zero bubble V,
DualPipeV) stages r and 2n - 1 - r, so that the first process holds both ends. Each stage of a process is a model of its own
over the same modules as the process's model, so optimizers, checkpoints and initial weights see one model with global names.

A tied embedding whose ends lie in different stages is two copies of one parameter, by one name in checkpoints and in the stream
of initial weights; `llm_core.parallel.pipeline` adds their gradients. Left out: stages weighed by what their layers cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer

Schedule = Literal["naive", "gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v", "dualpipe_v"]
LOOPED = ("interleaved", "zero_bubble")
V_SHAPED = ("zero_bubble_v", "dualpipe_v")
EMBEDDING, HEAD = "embedding.weight", "head.weight"


@dataclass(frozen=True)
class StagePlan:
    """`num_ranks` processes that share `num_layers` blocks. Raises ConfigError where a stage would be empty."""

    schedule: Schedule
    num_ranks: int
    num_layers: int
    stages_per_rank: int = 0
    """0: one, or two of the schedules that need more."""

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise ConfigError(f"pipeline schedule ({self.schedule}) must be one of {', '.join(get_args(Schedule))}")
        allowed = {"looped": "2 or more", "v": "2", "single": "1"}
        shape = "looped" if self.schedule in LOOPED else "v" if self.schedule in V_SHAPED else "single"
        if self.per_rank != {"looped": max(2, self.per_rank), "v": 2, "single": 1}[shape]:
            raise ConfigError(
                f"stages per rank ({self.stages_per_rank}) must be {allowed[shape]} for the schedule {self.schedule}; 0 chooses"
            )
        if self.num_layers < self.num_stages:
            most = self.num_layers // self.per_rank
            raise ConfigError(
                f"num_layers ({self.num_layers}) must fill the {self.num_stages} stages of {self.num_ranks} pipeline ranks x "
                f"{self.per_rank} ({self.schedule}); use at most pp={most}, or a schedule of one stage per rank"
            )

    @property
    def per_rank(self) -> int:
        return self.stages_per_rank or (2 if self.schedule in LOOPED + V_SHAPED else 1)

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.per_rank

    def stages_of(self, rank: int) -> list[int]:
        """Stages of a process, in the order of the layers."""
        return [stage for stage in range(self.num_stages) if self.owner_of(stage) == rank]

    def owner_of(self, stage: int) -> int:
        turn, place = divmod(stage, self.num_ranks)
        return self.num_ranks - 1 - place if self.schedule in V_SHAPED and turn % 2 else place

    def layers_of(self, stage: int) -> range:
        return range(stage * self.num_layers // self.num_stages, (stage + 1) * self.num_layers // self.num_stages)

    def has_weight(self, rank: int, name: str) -> bool:
        """Whether a process holds the weight of this name of the whole model (not its copy under another)."""
        stages = self.stages_of(rank)
        if name.startswith("blocks."):
            layer = int(name.split(".")[1])
            return any(layer in self.layers_of(stage) for stage in stages)
        return (0 if name == EMBEDDING else self.num_stages - 1) in stages

    def check_micro_batches(self, count: int) -> None:
        """Raises ConfigError where the schedule cannot run so many micro batches in a step."""
        rule, suggestion = "", 0
        if self.schedule == "1f1b" and count < self.num_stages:
            rule, suggestion = f"at least the {self.num_stages} stages", self.num_stages
        if self.schedule in V_SHAPED and count < self.num_stages:
            rule, suggestion = f"at least the {self.num_stages} stages", self.num_stages
        rounds = max(1, count // self.num_ranks)
        if self.schedule in LOOPED and count % rounds:
            rule, suggestion = f"fewer than 2 x {self.num_ranks}, or a multiple of {rounds}", count // rounds * rounds
        if rule:
            raise ConfigError(
                f"micro batches in a step of one pipeline ({count}) must be {rule} for the schedule {self.schedule}; try "
                f"{suggestion} through global_batch_sequences and micro_batch_sequences, or the schedule gpipe"
            )


def has_copies(config: ModelConfig, plan: StagePlan) -> bool:
    """Whether the tied embedding is two parameters."""
    return config.tied_embeddings and plan.num_stages > 1


def global_name(config: ModelConfig, name: str) -> str:
    """The name by which a weight is drawn and saved: that of the embedding for a head tied to it."""
    return EMBEDDING if config.tied_embeddings and name == HEAD else name


def split_model(config: ModelConfig, plan: StagePlan, rank: int) -> tuple[Transformer, dict[int, Transformer]]:
    """(model, stages) of a process on the meta device: all it holds, and a model for each of its stages over the same modules."""
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
        part.norm = whole.norm if last else None  # type: ignore[assignment]
        part.head = whole.head if last else None  # type: ignore[assignment]
    held = {name for part in parts.values() for name, _ in part.named_parameters()}
    for name in ("embedding", "norm", "head"):
        if f"{name}.weight" not in held:
            setattr(whole, name, None)
    for layer in range(config.num_layers):
        if not any(layer in plan.layers_of(stage) for stage in parts):
            whole.blocks[layer] = None  # type: ignore[assignment]
    return whole, parts
