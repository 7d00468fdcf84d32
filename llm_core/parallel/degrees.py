"""Decides which pipelines and slices of rows can run: schedules, their stages, and what must
divide. Standard library only."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Literal, get_args

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig, block_of

Schedule = Literal[
    "naive", "gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v", "dualpipe_v"
]
LOOPED = ("interleaved", "zero_bubble")
V_SHAPED = ("zero_bubble_v", "dualpipe_v")
ContextKind = Literal["all_gather", "ulysses", "ring"]
TensorOverlap = Literal["none", "ring", "symmetric"]
FIRST = ("embedding.weight", "positions.weight")
"""Weights before the first block; all others outside blocks come after the last."""
EMBEDDING_SHARE = 0.05
"""Time of the embedding over that of a head: no product, but a gradient as large. Measured on a CPU
at 256 and 512 tokens of 32,000 ids: 0.09 and 0.04."""


def end_layers(model: ModelConfig) -> tuple[float, float]:
    """What embedding and head cost, in blocks; of a head its products count."""
    head = model.vocab_size * model.dim
    block = (model.matmul_parameters() - head) / model.num_layers
    return EMBEDDING_SHARE * head / block, head / block


@functools.cache
def _cut(num_layers: int, num_stages: int, ends: tuple[float, float]) -> list[int]:
    """First layer of each stage, and the end of the last: each layer to the cheapest stage."""
    counts, costs = [1] * num_stages, [1.0] * num_stages
    costs[0] += ends[0]
    costs[-1] += ends[1]
    for _ in range(num_layers - num_stages):
        # Of equals the last, which keeps the fewest activations.
        least = min(range(num_stages - 1, -1, -1), key=costs.__getitem__)
        counts[least] += 1
        costs[least] += 1
    return [0, *itertools.accumulate(counts)]


@dataclass(frozen=True)
class StagePlan:
    """`num_ranks` processes share `num_layers` blocks, so that the stage that costs most costs as
    little as can be. Raises ConfigError for an empty stage."""

    schedule: Schedule
    num_ranks: int
    num_layers: int
    stages_per_rank: int = 0
    """0: one, or two of the schedules that need more."""
    ends: tuple[float, float] = (0.0, 0.0)
    """What the first and the last stage do besides, in layers (`end_layers`)."""

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise ConfigError(
                f"pipeline schedule ({self.schedule}) must be one of"
                f" {', '.join(get_args(Schedule))}"
            )
        least = 2 if self.schedule in LOOPED + V_SHAPED else 1
        if self.per_rank < least or (self.per_rank > least and self.schedule not in LOOPED):
            raise ConfigError(
                f"pp_stages_per_rank ({self.stages_per_rank}) must be {least}"
                f"{' or more' if self.schedule in LOOPED else ''} for schedule {self.schedule}; 0"
                " chooses it"
            )
        if self.num_layers < self.num_stages:
            raise ConfigError(
                f"num_layers ({self.num_layers}) must fill the {self.num_stages} stages of"
                f" {self.num_ranks} pipeline ranks x {self.per_rank} ({self.schedule});"
                f" {self._way_out()}"
            )

    def _way_out(self) -> str:
        """Of too few layers: fewer ranks or fewer stages per rank, where they are enough."""
        most, each = self.num_layers // self.per_rank, self.num_layers // self.num_ranks
        ways = [f"at most pp={most}"] if most > 1 else []
        ways += [f"pp_stages_per_rank={each}"] if self.schedule in LOOPED and each > 1 else []
        chosen = " and pp_stages_per_rank=0" if self.stages_per_rank else ""
        if self.per_rank > 1 and each:
            ways.append(f"a schedule of one stage per rank as 1f1b{chosen}")
        return "use " + (", or ".join(ways) or "pp=1 and more data-parallel processes")

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
        # In a V every second run of stages goes back, so both ends lie on one process.
        turn, place = divmod(stage, self.num_ranks)
        return self.num_ranks - 1 - place if self.schedule in V_SHAPED and turn % 2 else place

    def layers_of(self, stage: int) -> range:
        bounds = _cut(self.num_layers, self.num_stages, self.ends)
        return range(bounds[stage], bounds[stage + 1])

    def num_layers_of(self, rank: int) -> int:
        """Layers of a process, in all its stages."""
        return sum(len(self.layers_of(stage)) for stage in self.stages_of(rank))

    def costs_most(self) -> int:
        """The process with most to compute."""

        def cost(rank: int) -> float:
            stages = self.stages_of(rank)
            ends = self.ends[0] * (0 in stages) + self.ends[1] * (self.num_stages - 1 in stages)
            return self.num_layers_of(rank) + ends

        return max(range(self.num_ranks), key=cost)

    def has_weight(self, rank: int, name: str) -> bool:
        """Whether a process holds this weight of the whole model (not a copy by another name)."""
        stages = self.stages_of(rank)
        if name.startswith("blocks."):
            layer = int(name.split(".")[1])
            return any(layer in self.layers_of(stage) for stage in stages)
        return (0 if name in FIRST else self.num_stages - 1) in stages

    def check_micro_batches(self, count: int, way_out: str = "") -> None:
        """Raises ConfigError for a count the schedule cannot run; `way_out` goes before ours."""
        if found := self.micro_batch_rule(count):
            rule, suggestion = found
            raise ConfigError(
                f"micro batches in a step of one pipeline ({count}) must be {rule} for the schedule"
                f" {self.schedule}; {way_out}try {suggestion} through global_batch_sequences and"
                " micro_batch_sequences, or the schedule gpipe"
            )

    def micro_batch_rule(self, count: int) -> tuple[str, int] | None:
        """What a number of micro batches must be and a number that is; None where it is right."""
        if self.schedule in ("1f1b", *V_SHAPED) and count < self.num_stages:
            return f"at least the {self.num_stages} stages", self.num_stages
        # torch's rule: rounds of about one micro batch per rank, all of one length.
        rounds = max(1, count // self.num_ranks)
        if self.schedule in LOOPED and count % rounds:
            rule = f"fewer than 2 x {self.num_ranks}, or a multiple of {rounds}"
            return rule, count // rounds * rounds
        return None


def check_context(
    model: ModelConfig, seq_len: int, num_ranks: int, kind: ContextKind, balanced: bool, tp: int = 1
) -> None:
    """Raises ConfigError where rows or heads do not divide."""
    chunks = num_ranks * (2 if balanced else 1)
    if seq_len % chunks:
        nearest = max(1, seq_len // chunks) * chunks
        why = f"{num_ranks} context ranks" + (" x 2 balanced chunks" if balanced else "")
        raise ConfigError(
            f"train.seq_len ({seq_len}) must be a multiple of {chunks} ({why}); try"
            f" train.seq_len={nearest}"
        )
    if kind == "ulysses" and (balanced or model.num_kv_heads % (num_ranks * tp)):
        if balanced:
            raise ConfigError(
                "cp_balanced (true) serves all_gather and ring only, ulysses attends whole rows on"
                " every process; set it false"
            )
        raise ConfigError(
            f"num_kv_heads ({model.num_kv_heads}) must be a multiple of the {num_ranks} context"
            f" ranks x {tp} tensor ranks for ulysses; use all_gather or ring"
        )


def key_copies(model: ModelConfig, num_ranks: int) -> int:
    """How many of the tensor ranks compute each key/value head: several where there are more ranks
    than such heads."""
    return max(1, num_ranks // model.num_kv_heads)


def _shares_heads(model: ModelConfig, num_ranks: int) -> bool:
    """Whether each tensor rank gets as many whole query heads, and the key/value heads of these
    from equal parts of the fused weight."""
    if model.num_kv_heads % num_ranks == 0:
        return True
    rows = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    return not (num_ranks % model.num_kv_heads or model.num_heads % num_ranks or rows % num_ranks)


def check_tensor(model: ModelConfig, num_tokens: int, num_ranks: int, sequence: bool) -> None:
    """Raises ConfigError where heads, channels, ids or a process's tokens do not divide."""
    channels = model.ffn_blocks if model.is_gated else model.ffn_dim
    blocks = f", of which there are at most {channels} (blocks of gate and up)"
    shared = [
        ("model.ffn_dim", model.ffn_dim, channels, blocks if channels != model.ffn_dim else ""),
    ]
    if model.experts is not None:
        number, wide = model.experts.number, model.experts.shared_dim
        shared = [("model.experts.number", number, number, "")]
        if wide:
            shared.append(("model.experts.shared_dim", wide, wide // block_of(wide), ""))
    if sequence:
        shared.append(("tokens of a sequence on one process", num_tokens, num_tokens, ""))
    # Fewer by a whole factor, so that the other degrees and the number of processes may stay, and
    # by all rules at once.
    fewer = [
        n
        for n in range(1, num_ranks)
        if num_ranks % n == 0
        and _shares_heads(model, n)
        and all(parts % n == 0 for _, _, parts, _ in shared)
    ]
    if not _shares_heads(model, num_ranks):
        raise ConfigError(
            f"model.num_kv_heads ({model.num_kv_heads}) must be shared by {num_ranks} tensor ranks"
            f" in equal parts, or by as many as divide the {model.num_heads} query heads and are a"
            f" multiple of it; try tp={fewer[-1]}"
        )
    for name, value, parts, of_what in shared:
        if parts % num_ranks:
            way_out = " or sequence_parallel=false" if name.startswith("tokens") else ""
            raise ConfigError(
                f"{name} ({value}) must be shared by {num_ranks} tensor ranks in equal"
                f" parts{of_what}; try tp={fewer[-1]}{way_out}"
            )
    if model.vocab_size and (num_ranks - 1) * -(-model.vocab_size // num_ranks) >= model.vocab_size:
        raise ConfigError(
            f"model.vocab_size ({model.vocab_size}) must leave each of {num_ranks} tensor ranks"
            " some ids; use fewer tensor ranks"
        )


def check_expert_ranks(model: ModelConfig, num_ranks: int, shares: int, tensor_ranks: int) -> None:
    """Raises ConfigError where experts do not divide, or others share them than weights.

    shares: processes that share one set of weights.
    """
    if model.experts is None:
        raise ConfigError(
            f"parallel.ep ({num_ranks}) shares out experts, and model.experts is null; set"
            " parallel.ep=1, or model=moe_tiny"
        )
    if num_ranks != shares:
        raise ConfigError(
            f"parallel.ep ({num_ranks}) must be 1, or the {shares} processes that share one set of"
            f" weights; set parallel.ep={shares}, or parallel=hsdp with"
            f" parallel.dp_shard={num_ranks}"
        )
    if model.experts.number % (num_ranks * tensor_ranks):
        raise ConfigError(
            f"model.experts.number ({model.experts.number}) must be a multiple of the {num_ranks}"
            f" expert ranks x {tensor_ranks} tensor ranks; set parallel.ep=1, or parallel=hsdp with"
            " a smaller parallel.dp_shard and ep"
        )


def divisors(number: int) -> list[int]:
    """From 1 to the number itself."""
    return [n for n in range(1, number + 1) if number % n == 0]
