"""Counts the weights that each process of a layout holds, from the shape of the model alone.

Shapes, and the rules by which layouts cut them, are those of `llm_core.model.transformer` and
`llm_core.parallel`: tensor ranks cut rows or columns, FSDP rows of dim 0, the last parts short
where rows do not divide; a pipeline cuts layers. Standard library only, so a plan for a
thousand processes needs none of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from llm_core.model.adapter import AdaptedModelConfig, coded_layer, is_factor, layers_of
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.optim.config import OptimConfig
from llm_core.optim.groups import is_hidden, is_trained
from llm_core.parallel.compression.sizes import carried_bytes
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.cuts import cut_dim, part_of

Shape = tuple[int, ...]

_OUTSIDE = re.compile(r"(embedding|positions|norm|head)\.")
MASTER_BYTES = 4
"""Weights are float32 in every format, unless an adapter lets frozen ones rest in 16 bits, and
gradient sums unless `train.gradient_bits` says else."""


@dataclass(frozen=True)
class Coordinates:
    """One process. replica: among those that hold the same layers and parts of them."""

    stage: int = 0
    tensor: int = 0
    replica: int = 0


@dataclass(frozen=True)
class StateBytes:
    """What a process holds when it updates the weights."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class Held:
    """Weights of one name in `count` blocks, or one outside them."""

    name: str
    shape: Shape
    count: int = 1
    is_frozen: bool = False
    """Without gradient and optimizer state."""
    bytes_each: int = MASTER_BYTES
    """Of one number of it."""
    coded_bytes: int = 0
    """Of one weight kept in codes; 0: it is kept as numbers."""

    @property
    def num_bytes(self) -> int:
        return self.count * self.coded_bytes or self.numel * self.bytes_each

    @property
    def numel(self) -> int:
        return self.count * math.prod(self.shape)

    @property
    def is_expert(self) -> bool:
        return self.name.startswith("ffn.experts.")

    @property
    def in_blocks(self) -> bool:
        return not _OUTSIDE.match(self.name)


def weights_outside(model: ModelConfig) -> dict[str, Shape]:
    """Of all weights that are in no block, by name; a tied head is not listed."""
    shapes: dict[str, Shape] = {"embedding.weight": (model.vocab_size, model.dim)}
    if model.positions == "learned":
        shapes["positions.weight"] = (model.max_seq_len, model.dim)
    shapes |= _norm("norm", model)
    if not model.tied_embeddings:
        shapes["head.weight"] = (model.vocab_size, model.dim)
    return shapes


def block_shapes(model: ModelConfig) -> dict[str, Shape]:
    """Of the weights of one block."""
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    into, width = ("gate_up", 2 * model.ffn_dim) if model.is_gated else ("up", model.ffn_dim)
    shapes = _norm("attention_norm", model)
    shapes |= _linear("attention.qkv", qkv, model.dim, model.qkv_bias)
    shapes |= _linear("attention.out", model.dim, model.attention_dim, model.out_bias)
    if model.qk_norm:
        shapes |= {f"attention.{each}_norm.weight": (model.head_dim,) for each in "qk"}
    shapes |= _norm("ffn_norm", model)
    if model.experts is not None:
        return shapes | _expert_shapes(model, model.experts)
    shapes |= _linear(f"ffn.{into}", width, model.dim, model.ffn_bias)
    shapes |= _linear("ffn.down", model.dim, model.ffn_dim, model.ffn_bias)
    if isinstance(model, AdaptedModelConfig):
        for name, layer in model.factored.items():
            factors = layer.shapes(model.adapter)
            shapes |= {f"{name}.lora.{each}": shape for each, shape in factors.items()}
    return shapes


def _expert_shapes(model: ModelConfig, experts: ExpertsConfig) -> dict[str, Shape]:
    """Shapes of what is trained in a layer of experts; biases of routers are not."""
    number, inner, dim, shared = experts.number, model.ffn_dim, model.dim, experts.shared_dim
    shapes: dict[str, Shape] = {
        "ffn.router.weight": (number, dim),
        "ffn.experts.gate_up.weight": (number * 2 * inner, dim),
        "ffn.experts.down.weight": (number * dim, inner),
    }
    if shared:
        shapes["ffn.shared.gate_up.weight"] = (2 * shared, dim)
        shapes["ffn.shared.down.weight"] = (dim, shared)
    if experts.shared_gate:
        shapes["ffn.shared_gate.weight"] = (1, dim)
    return shapes


def _norm(name: str, model: ModelConfig) -> dict[str, Shape]:
    parts = ("weight", "bias") if model.norm == "layer" else ("weight",)
    return {f"{name}.{part}": (model.dim,) for part in parts}


def _linear(name: str, rows: int, columns: int, bias: bool) -> dict[str, Shape]:
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def held_weights(
    model: ModelConfig,
    parallel: ParallelConfig,
    at: Coordinates = Coordinates(),
    trains: Callable[[str], bool] | None = None,
) -> list[Held]:
    """What this process computes with: its layers, and its part of each of their weights.

    The last stage of a pipeline has a tied head of its own. trains: whether the weight of a name is
    trained; None: all are, or all factors of an adapter.
    """
    adapted = isinstance(model, AdaptedModelConfig)

    def is_frozen(name: str) -> bool:
        return (adapted and not is_factor(name)) or (trains is not None and not trains(name))

    def rests_in(name: str, shape: Shape) -> int:
        if not isinstance(model, AdaptedModelConfig) or len(shape) == 1 or is_factor(name):
            return MASTER_BYTES
        return 2 if model.adapter.base_dtype == "bf16" else MASTER_BYTES

    def in_codes(name: str, part: Shape) -> int:
        layer = coded_layer(model, f"blocks.0.{name}")
        return 0 if layer is None else layers_of(model)[layer].coded_bytes(*part)

    outside = weights_outside(model)
    if parallel.pp > 1 and model.tied_embeddings:
        outside["head.weight"] = outside["embedding.weight"]
    plan, layers = parallel.plan(model), list(range(model.num_layers))
    if plan is not None:
        outside = {n: shape for n, shape in outside.items() if plan.has_weight(at.stage, n)}
        layers = [n for stage in plan.stages_of(at.stage) for n in plan.layers_of(stage)]
    found = []
    for name, shape in outside.items():
        source = "embedding.weight" if model.tied_embeddings and name == "head.weight" else name
        part = _tensor_part(name, shape, at.tensor, parallel)
        found.append(Held(name, part, 1, is_frozen(source), rests_in(name, shape)))
    for name, shape in block_shapes(model).items():
        part = _tensor_part(name, shape, at.tensor, parallel)
        num_frozen = sum(is_frozen(f"blocks.{n}.{name}") for n in layers)
        for count, frozen in ((len(layers) - num_frozen, False), (num_frozen, True)):
            if count:
                bytes_each = rests_in(name, shape)
                found.append(Held(name, part, count, frozen, bytes_each, in_codes(name, part)))
    return found


def _tensor_part(name: str, shape: Shape, rank: int, parallel: ParallelConfig) -> Shape:
    cut, grid = cut_dim(name), parallel.grid
    size, others = parallel.columns, 1
    if grid is not None:
        # Vectors are whole on a grid, and the width of matrices is cut too.
        cut = cut if len(shape) > 1 else None
        rank, others = rank // grid.token_parts, 1 if cut is None else grid.width_parts
    return tuple(
        len(part_of(length, rank, size)) if dim == cut else length // others
        for dim, length in enumerate(shape)
    )


def gathered_weights(held: Iterable[Held], parallel: ParallelConfig) -> list[Held]:
    """Of those held, what FSDP gathers: not experts that tokens travel to."""
    return [each for each in held if parallel.ep == 1 or not each.is_expert]


def gathered_of_block(model: ModelConfig, parallel: ParallelConfig) -> int:
    """Numbers of one block in one tensor rank, of the weights that FSDP gathers."""
    shapes = [Held(*each) for each in block_shapes(model).items()]
    return sum(each.numel for each in gathered_weights(shapes, parallel)) // parallel.tp


def num_replicas(parallel: ParallelConfig) -> int:
    """Processes that hold the same layers and parts of them."""
    return parallel.num_processes // (parallel.pp * parallel.tp)


def shard_ranks(parallel: ParallelConfig) -> int:
    """Processes that share one set of weights, or of optimizer state."""
    if parallel.kind in ("none", "ddp", "server"):
        return 1
    return parallel.dp_shard or num_replicas(parallel)


def state_bytes(
    model: ModelConfig,
    optim: OptimConfig,
    parallel: ParallelConfig,
    at: Coordinates = Coordinates(),
    gradient_bits: int = 32,
    averaged: bool = False,
) -> StateBytes:
    """Of one process, exact to the byte. averaged: with an average of the weights (`train.ema`)."""
    trains = partial(is_trained, config=optim) if optim.groups else None
    held, size = held_weights(model, parallel, at, trains), shard_ranks(parallel)
    mine = [
        replace(each, shape=(len(part_of(each.shape[0], at.replica % size, size)), *each.shape[1:]))
        for each in held
    ]
    kept = mine if parallel.shards_weights else held
    # Workers that do not wait for each other have copies.
    weights = (1 + parallel.is_stale) * sum(each.num_bytes for each in kept)
    num_trained = sum(each.numel for each in kept if not each.is_frozen)
    optimizer = sum(e.count * _optimizer_bytes(e, optim) for e in mine if not e.is_frozen)
    optimizer += averaged * MASTER_BYTES * sum(e.numel for e in mine if not e.is_frozen)
    if parallel.compress != "none":
        shapes = [each.shape for each in mine if not each.is_frozen for _ in range(each.count)]
        optimizer += carried_bytes(shapes, parallel)
    return StateBytes(weights, gradient_bits // 8 * num_trained, optimizer)


def _optimizer_bytes(mine: Held, optim: OptimConfig) -> int:
    """For the weights of one block."""
    shape, is_matrix = mine.shape, len(mine.shape) > 1
    if optim.kind == "adafactor":
        # A mean square per row and per column of a matrix (Shazeer and Stern, 2018, section 3).
        return MASTER_BYTES * (sum(shape) if is_matrix else math.prod(shape))
    if optim.kind == "sgd":
        return 0
    has_muon = mine.in_blocks and is_hidden(f"blocks.0.{mine.name}", len(mine.shape))
    moments = 1 if optim.kind == "lion" or (optim.kind == "muon" and has_muon) else 2
    return (2 if optim.state_dtype == "bf16" else MASTER_BYTES) * moments * math.prod(shape)


def every_process(parallel: ParallelConfig) -> Iterator[Coordinates]:
    """Pipeline ranks outermost, tensor ranks innermost, as processes are numbered."""
    for stage in range(parallel.pp):
        for replica in range(num_replicas(parallel)):
            for tensor in range(parallel.tp):
                yield Coordinates(stage, tensor, replica)
