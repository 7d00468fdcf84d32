"""Predicts what a training step needs of a device: memory by part, and time by part.

Products take their FLOPs over the share of the stated peak that large ones reach; what lies between
them takes the bytes that it moves over a share of the bandwidth. A pipeline of p ranks and m micro
batches idles (p - 1) / (m + p - 1) of a step (GPipe, Huang et al., 2019). What is sent is in
`llm_core.planner.traffic`. Standard library and NumPy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.config import ONE_PASS_KERNELS, ModelConfig
from llm_core.model.sparse.pairs import attended_tokens
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import LOOPED
from llm_core.planner.activations import (
    activation_bytes,
    block_again_bytes,
    block_numbers,
    logits_bytes,
    tokens_on_a_rank,
)
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.traffic import Pass, Traffic, step_traffic
from llm_core.planner.weights import (
    Coordinates,
    Held,
    gathered_of_block,
    gathered_weights,
    held_weights,
    num_replicas,
    state_bytes,
)
from llm_core.training.config import TrainConfig

PASSES = {"eager": 11.7, "triton": 4.0, "compiled": 3.3}
"""How often a step moves what blocks keep: by torch's operations one by one, by our own kernels, by
compiled ones. Measured on one H200."""
WEIGHT_BYTES = 18
"""Moved per weight and micro batch: cast to 16 bits, its gradient cast and added up."""
LAUNCHES = {"none": 1.0, "every": 1.13, "full": 1.27, "selective": 1.37}
"""Times `launch_ms` that Python and autograd take for a block and micro batch, operation by
operation. Where the device is faster, as with narrow models, it waits. Measured on H200."""
FORWARD_SHARE = 0.85
"""Time of a forward pass over half of a backward pass, whose products are less well shaped."""
UPDATE_BYTES = 12
"""Moved per weight by an optimizer: weight and gradient read, the weight written. Its state is read
and written besides."""
COPIED_BYTES = 8
"""Moved per weight to put its gradient into the bucket in which it is summed, or back."""
MAX_RANKS = 16
"""Of a pipeline, that are shown one by one."""


@dataclass(frozen=True)
class Work:
    """All that decides what a step costs."""

    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    parallel: ParallelConfig
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    @property
    def micro_batches(self) -> int:
        """Of one process in a step."""
        return self.train.global_batch_sequences // (
            self.train.micro_batch_sequences * self.parallel.dp
        )


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of the fullest process, by part, at their peak."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    """Of head and loss; or, where that is more, of a block that is computed again after them."""
    copies: int
    """Weights in 16 bits, and what is gathered of others or sent."""
    allowance: int
    """Driver, communicators, and room that the allocator cannot use."""

    @property
    def allocated(self) -> int:
        """What torch counts as allocated: all but the allowance."""
        return self.total - self.allowance

    @property
    def total(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True)
class TimePlan:
    """Seconds of one step of the slowest process, by part."""

    products_s: float
    attention_s: float
    between_s: float
    """Norms, rotations, activations, loss: what memory bounds."""
    recompute_s: float
    host_s: float
    """Waiting for operations to be launched."""
    optimizer_s: float
    """Updating weights, and copying gradients to where they are summed."""
    exposed_s: float
    """Waiting for other processes' data."""
    bubble_s: float
    """Waiting for other stages of the pipeline."""
    bubble_frac: float
    """(p - 1) / (m + p - 1), or that of the schedule, as a share of the step."""
    traffic: tuple[Traffic, ...] = ()

    @property
    def computed_s(self) -> float:
        return self.products_s + self.attention_s + self.between_s

    @property
    def step_s(self) -> float:
        return (
            self.computed_s
            + self.recompute_s
            + self.host_s
            + self.optimizer_s
            + self.exposed_s
            + self.bubble_s
        )


def plan_memory(work: Work, hardware: HardwareConfig) -> MemoryPlan:
    """Of the process that holds most: in a pipeline the first, the last or the first of those with
    most layers."""
    plan, ranks = work.parallel.plan(work.model), {0, work.parallel.pp - 1}
    if plan is not None:
        ranks.add(max(range(work.parallel.pp), key=plan.num_layers_of))
    return max(
        (memory_of(work, hardware, Coordinates(rank)) for rank in sorted(ranks)),
        key=lambda memory: memory.total,
    )


def plan_ranks(work: Work, hardware: HardwareConfig) -> dict[int, MemoryPlan]:
    """{rank of the pipeline: plan}; of many some, from the first to the last."""
    pp = work.parallel.pp
    shown = sorted({*range(0, pp, -(-pp // MAX_RANKS)), pp - 1})
    return {rank: memory_of(work, hardware, Coordinates(rank)) for rank in shown}


def memory_of(work: Work, hardware: HardwareConfig, at: Coordinates) -> MemoryPlan:
    """Of one process. Those of one stage of a pipeline differ by rounding alone."""
    model, train, parallel, memory = work.model, work.train, work.parallel, work.memory
    averaged, bits = train.ema > 0, train.gradient_bits
    states = state_bytes(model, work.optim, parallel, at, bits, averaged)
    weights, gradients, optimizer = states.weights, states.gradients, states.optimizer
    if memory.weights_in != "device":
        weights = gradients = optimizer = 0
    if work.optim.state_in != "device":
        optimizer = 0
    activations = activation_bytes(model, train, parallel, memory, at.stage)
    logits = 0
    if _has_head(work, at):
        logits = logits_bytes(model, train, parallel, memory)
    logits = max(logits, block_again_bytes(model, train, parallel, memory))
    copies = _copies(work, at, gradients)
    allocated = weights + gradients + optimizer + activations + logits + copies
    allowance = int(allocated * hardware.fragmentation + hardware.reserve_gb * 1e9)
    return MemoryPlan(weights, gradients, optimizer, activations, logits, copies, allowance)


def _has_head(work: Work, at: Coordinates) -> bool:
    """The last stage does, which V-shaped schedules put on the first rank."""
    plan = work.parallel.plan(work.model)
    return plan is None or plan.has_weight(at.stage, "head.weight")


def _copies(work: Work, at: Coordinates, shards: int) -> int:
    """shards: bytes of gradients, which take the place of whole ones that are reduced."""
    model, parallel = work.model, work.parallel
    half = 0 if work.train.dtype == "fp32" else 2
    held = held_weights(model, parallel, at)
    gathered = gathered_weights(held, parallel)
    block = gathered_of_block(model, parallel)
    whole = sum(each.numel for each in gathered)
    ends = sum(each.numel for each in held if not each.in_blocks)
    if not parallel.shards_weights:
        # Autocast keeps a copy of each weight of a product from forward to backward; of blocks that
        # are compiled and computed twice it is cast anew.
        again = {"none": 0.0, "every": 1 / work.memory.every_k}.get(work.memory.recompute, 1.0)
        kept = 1 - again if work.train.compile else 1.0
        cast = [w for w in held if len(w.shape) > 1 and w.bytes_each != half and not w.coded_bytes]
        products = int(kept * sum(w.numel for w in cast if w.in_blocks))
        if _has_head(work, at) and any(not w.in_blocks for w in cast):
            products += model.vocab_size * model.dim // parallel.tp
        # One matrix in codes is restored at a time.
        restored = max((math.prod(w.shape) for w in held if w.coded_bytes), default=0)
        # Sums over micro batches lie beside DDP's buckets until the last one.
        accumulates = parallel.kind == "ddp" and parallel.pp == 1 and work.micro_batches > 1
        return half * products + (half or 4) * restored + (4 * whole if accumulates else 0)
    number, gradient = half or 4, work.train.gradient_bits // 8
    # While a unit is reduced: its gradients as they come, and as they are sent.
    reduced = max(block, ends) * (number + gradient)
    if parallel.pp > 1 or (parallel.kind == "zero1" and work.micro_batches > 1):
        # Whole for all of a step, as are the gradients that are reduced at its end.
        return (number + gradient) * whole + reduced - shards + _of_sent_experts(work, held, True)
    kept = whole if parallel.gathers_once else 2 * block + ends
    return number * kept + reduced + _of_sent_experts(work, held, False)


def _of_sent_experts(work: Work, held: Sequence[Held], counts_gradients: bool) -> int:
    """Of experts that tokens travel to: a copy in train.dtype from forward to backward, and their
    gradients where they were taken off before, since FSDP has no whole ones of them."""
    if work.parallel.ep == 1:
        return 0
    own = sum(each.numel for each in held if each.is_expert) // work.parallel.ep
    half = 0 if work.train.dtype == "fp32" else 2
    cast = own if work.memory.recompute == "none" else own // work.model.num_layers
    return half * cast + counts_gradients * work.train.gradient_bits // 8 * own


def plan_time(work: Work, hardware: HardwareConfig) -> TimePlan:
    """Of a step of the whole run, whose processes wait for the one with most to compute."""
    model, train, parallel, m = work.model, work.train, work.parallel, work.micro_batches
    tokens, plan = tokens_on_a_rank(train, parallel), parallel.plan(model)
    layers, vocabulary = model.num_layers, model.vocab_size / parallel.tp
    if plan is not None:
        layers = plan.num_layers_of(plan.costs_most())
        vocabulary *= plan.has_weight(plan.costs_most(), "head.weight")
    share = layers / (model.num_layers * parallel.tp)
    block_weights = (model.matmul_parameters() - model.vocab_size * model.dim) * share
    head_weights = vocabulary * model.dim
    rate = hardware.peak(train.dtype) * hardware.matmul_share
    block_rate = hardware.peak(train.dtype, train.float8) * hardware.matmul_share
    # Frozen matrices have no gradient; factors beside them are a hundredth of their products.
    passed = 4 if isinstance(model, AdaptedModelConfig) else 6
    head_s = passed * head_weights * tokens / rate
    blocks_s = passed * block_weights * tokens / block_rate
    # Half of all pairs of a row, forward and twice backward; kernels of attention reach less.
    attended = attended_tokens(model.patterns, train.seq_len)
    pairs = model.num_layers * model.attention_dim * attended * share
    if parallel.cp_kind != "ulysses" and not parallel.cp_balanced:
        # The last slice attends all others: of c slices (2 c - 1) / c times the mean.
        pairs *= 2 - 1 / parallel.cp
    attention_s = 6 * pairs * tokens / (rate * hardware.attention_share)
    number = 4 if train.dtype == "fp32" else 2
    kept = block_numbers(model, train, tensor_ranks=parallel.tp)
    passes = hardware.passes or _passes(train)
    stream = kept.stream / (parallel.tp if parallel.sequence_parallel else 1)
    moved = passes * (stream + kept.shared / parallel.tp) * number * layers
    loss_passes = hardware.loss_passes or (6 if train.compile else 24)
    loss_moved = loss_passes * vocabulary
    memory_rate = hardware.memory_gb_s * 1e9 * hardware.memory_share
    between_s = (tokens * (moved + loss_moved) + WEIGHT_BYTES * block_weights) / memory_rate
    again_s = {
        "none": 0.0,
        "selective": (narrow_share(model) * blocks_s + between_s) / 3,
    }.get(work.memory.recompute, (blocks_s + attention_s + between_s) / 3)
    if work.memory.recompute == "every":
        again_s /= work.memory.every_k
    recompute_s = FORWARD_SHARE * again_s
    computed_s = blocks_s + head_s + attention_s + between_s
    host_s = 0.0
    if not train.compile and train.kernels not in ONE_PASS_KERNELS:
        host_s = layers * LAUNCHES[work.memory.recompute] * hardware.launch_ms * 1e-3
        if hardware.launches_ahead:
            host_s = max(0.0, host_s - computed_s - recompute_s)
    one = Pass((computed_s + host_s) / 3, (computed_s + host_s) * 2 / 3 + recompute_s, attention_s)
    traffic = tuple(step_traffic(model, train, parallel, hardware, one, work.memory))
    exposed_s = sum(each.exposed_s for each in traffic)
    states = state_bytes(model, work.optim, parallel, averaged=train.ema > 0)
    num_trained = states.gradients / (train.gradient_bits // 8)
    moved = num_trained * UPDATE_BYTES + 2 * states.optimizer
    if not parallel.shards_weights and num_replicas(parallel) > 1:
        # DDP leaves sums in its buckets, a pipeline takes them back.
        moved += (2 if parallel.pp > 1 else 1) * COPIED_BYTES * num_trained
    optimizer_s = moved / memory_rate
    busy_s = m * (one.forward_s + one.backward_s)
    bubble_frac = bubble_share(parallel, m)
    return TimePlan(
        m * (blocks_s + head_s),
        m * attention_s,
        m * between_s,
        m * recompute_s,
        m * host_s + hardware.step_ms * 1e-3,
        optimizer_s,
        exposed_s,
        busy_s * bubble_frac / (1 - bubble_frac),
        bubble_frac,
        traffic,
    )


def _passes(train: TrainConfig) -> float:
    passes = PASSES["compiled" if train.compile else "eager"]
    return min(passes, PASSES["triton"]) if train.kernels in ONE_PASS_KERNELS else passes


def narrow_share(model: ModelConfig) -> float:
    """Of the products of a block, that out of attention: all that selective recomputation does
    again, since the result of `down` is not needed."""
    block = (model.matmul_parameters() - model.vocab_size * model.dim) / model.num_layers
    return model.dim * model.attention_dim / block


def bubble_share(parallel: ParallelConfig, micro_batches: int) -> float:
    """Of a step, in which a rank of the pipeline waits for others (forward half of backward)."""
    p, m = parallel.pp, micro_batches
    if p == 1:
        return 0.0
    schedule = parallel.pp_schedule
    if schedule == "naive":
        return (p - 1) / p
    if schedule in LOOPED:
        per_rank = parallel.pp_stages_per_rank or 2
        stretched = per_rank * m * (3 if schedule == "zero_bubble" else 1)
        return (p - 1) / (stretched + p - 1)
    if schedule == "zero_bubble_v":
        return 0.0 if m >= 2 * p else (p - 1) / (6 * m + p - 1)
    if schedule == "dualpipe_v":
        # (p - 1) (F&B + B - 3 W) of half a rank's layers, as if a pair of passes took as long as
        # one after another.
        return (p - 1) / (3 * m + p - 1)
    return (p - 1) / (m + p - 1)
