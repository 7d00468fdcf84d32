"""Counts what a process sends in one step, and for how long that holds it up.

| axis | sent by each process | hidden behind |
|---|---|---|
| server | all of a gradient and of the weights, but for what the process serves | nothing |
| ddp, compressed | of a gradient or momentum what `parallel.compress` leaves, after its warm-up | nothing |
| ddp | gradients, all-reduced, once a step | the backward pass of the last micro batch, but for the last bucket, which has the embedding; in a pipeline nothing |
| zero1 | once a step: weights in `train.dtype` gathered, gradients reduce-scattered | the block before or after, but for the first and the last; in a pipeline the reduction behind nothing |
| zero2 | as zero1, but gradients per micro batch; in a pipeline as zero1 | as zero1 |
| fsdp | per micro batch: weights gathered twice, gradients reduce-scattered; in a pipeline as zero1 | as zero1 |
| hsdp | fsdp within dp_shard; shards of gradients all-reduced between the groups, once a step | as fsdp; the rest behind nothing |
| tp | per block: four gatherings and four sums of the residual stream | nothing, unless tp_overlap |
| ep | per block: inputs of pairs to their experts and outputs back, and the gradients of both; as if load were balanced | nothing |
| tp, tp_kind 2d to 3d | blocks of activations and weights (`llm_core.parallel.grid`) | nothing |
| cp | per block: keys and values of other slices, and their gradients | nothing; with ring, attention |
| pp | the residual stream between stages, and its gradient | nothing, or other runs of layers of the same rank |

A ring of n sends (n - 1) / n of a tensor to gather or reduce-scatter it, and twice that to
all-reduce it (Thakur et al., 2005). Bytes are those on the wire of one process. Standard library
only.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.parallel.compression.sizes import sent_bytes
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.cuts import cut_dim
from llm_core.parallel.degrees import Schedule, key_copies
from llm_core.parallel.grid.shape import GridShape, Layer
from llm_core.planner.activations import PRODUCT_BYTES, STREAM_BYTES, tokens_on_a_rank
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.weights import (
    block_shapes,
    gathered_of_block,
    gathered_weights,
    held_weights,
    num_replicas,
    shard_ranks,
)
from llm_core.training.config import TrainConfig

DDP_BUCKET = 25 << 18
"""Float32 numbers of the buckets in which DDP sums gradients (bucket_cap_mb, 25 by default)."""


@dataclass(frozen=True)
class Traffic:
    """Of one process and one step, over one kind of link."""

    axis: str
    num_bytes: float
    elapsed_s: float
    """As long as the link is busy."""
    exposed_s: float
    """As long as the device waits for it."""
    across_nodes: bool


@dataclass(frozen=True)
class Pass:
    """How long a process computes on one micro batch."""

    forward_s: float
    backward_s: float
    attention_s: float
    """Of both, in attention."""


def step_traffic(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    hardware: HardwareConfig,
    compute: Pass,
    memory: MemoryConfig = NO_SAVINGS,
) -> list[Traffic]:
    """Of the fullest process."""
    m = train.global_batch_sequences // (train.micro_batch_sequences * parallel.dp)
    found = _of_weights(model, train, parallel, hardware, compute, m)
    plan = parallel.plan(model)
    layers = model.num_layers if plan is None else plan.num_layers_of(plan.costs_most())
    stream = tokens_on_a_rank(train, parallel) * model.dim * STREAM_BYTES[train.dtype]
    if (grid := parallel.grid) is not None:
        found.append(_of_grid(model, train, parallel, hardware, grid, m))
    elif parallel.tp > 1:
        link = _Link(hardware, parallel.tp, parallel.tp)
        # Four gatherings and four sums, forward and backward; head and embedding have a pair each.
        pairs = (4 * layers + 2) * m
        one = (parallel.tp - 1) / parallel.tp * stream
        kinds = ("all_gather", "reduce_scatter")
        sent = 2 * pairs * one
        elapsed_s = pairs * sum(link.time_s(kind, one) for kind in kinds)
        if (copies := key_copies(model, parallel.tp)) > 1:
            # Of a key/value head, the rows that others of its ranks hold.
            rows = (model.num_heads / model.num_kv_heads + 2) * model.head_dim
            one = (copies - 1) / copies * rows * model.dim * PRODUCT_BYTES[train.dtype]
            near = _Link(hardware, copies, copies)
            sent += 2 * layers * m * one
            elapsed_s += layers * m * sum(near.time_s(kind, one) for kind in kinds)
        hidden = 0.0 if parallel.tp_overlap == "none" else 0.7 * hardware.overlap * elapsed_s
        found.append(Traffic("tp", sent, elapsed_s, elapsed_s - hidden, link.across_nodes))
    if parallel.ep > 1:
        found.append(_of_experts(model, train, parallel, hardware, memory, layers * m))
    if parallel.cp > 1:
        found.append(_of_context(model, train, parallel, hardware, compute, layers * m))
    if plan is not None:
        # Stages lie furthest apart: pp is the outermost axis.
        link = _Link(hardware, 2, 2 * num_replicas(parallel) * parallel.tp)
        per_rank = plan.per_rank
        piece = stream / (parallel.tp if parallel.sequence_parallel else 1)
        sent = 2 * m * per_rank * piece
        one_s = link.time_s("send", piece)
        found.append(
            Traffic(
                "pp",
                sent,
                2 * m * per_rank * one_s,
                pipeline_waits_s(
                    parallel.pp_schedule,
                    parallel.pp,
                    m,
                    per_rank,
                    one_s,
                    compute.forward_s + compute.backward_s,
                ),
                link.across_nodes,
            )
        )
    return found


def pipeline_waits_s(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    per_rank: int,
    message_s: float,
    computed_s: float,
) -> float:
    """How long a step of a pipeline waits for messages, each of message_s; computed_s: of a rank
    and micro batch.

    Of torch's schedules, gpipe and 1f1b wait for a message before they compute on. The others let
    it come while another run of layers computes, so beyond the first p micro batches they wait for
    what is longer than that. 1f1b is exact and interleaved within 15 %, as tests show by running
    their orders; zero_bubble may wait half as long again.
    """
    p, m, v = stages, micro_batches, per_rank
    if schedule == "naive":
        return 2 * m * (p - 1) * message_s
    if schedule == "gpipe":
        return 2 * (m + p - 2) * message_s
    if schedule == "1f1b":
        # Of two stages one sends while the other does.
        return (m + 1 if p == 2 else 2 * (m + p) - 5) * message_s
    longer_s = max(0.0, message_s - computed_s / (2 * v))
    return 2 * (p * v - 1) * message_s + v * max(0, m - p) * longer_s


@dataclass(frozen=True)
class _Link:
    """Between `size` processes that lie within `span` neighbours."""

    hardware: HardwareConfig
    size: int
    span: int

    @property
    def across_nodes(self) -> bool:
        return self.span > self.hardware.devices_per_node

    def time_s(self, kind: str, sent: float, count: int = 1) -> float:
        """Of `count` collectives of a kind in which each process of a ring would send `sent` bytes
        in all: a message to each neighbour in turn or along a tree, and the content."""
        hops = collective_hops(self.size)
        measured = None if self.across_nodes else self.hardware.links.get(kind)
        if measured is not None:
            return count * hops * measured.start_us * 1e-6 + sent / (measured.gb_s * 1e9)
        bandwidth = self.hardware.group_bandwidth(self.size, self.span)
        return count * hops * self.hardware.hop_us * 1e-6 + sent / bandwidth


def collective_hops(size: int) -> int:
    """Messages in turn of a collective of `size` processes."""
    return min(size - 1, 2 * math.ceil(math.log2(size)))


def _of_weights(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    hardware: HardwareConfig,
    compute: Pass,
    m: int,
) -> list[Traffic]:
    replicas = num_replicas(parallel)
    if replicas == 1:
        return []
    weights = held_weights(model, parallel)
    gathered = gathered_weights(weights, parallel)
    held = sum(each.numel for each in gathered)
    trained = sum(each.numel for each in gathered if not each.is_frozen)
    layers = -(-model.num_layers // parallel.pp)
    block = gathered_of_block(model, parallel)
    size = shard_ranks(parallel) if parallel.shards_weights else replicas
    link = _Link(hardware, size, size * parallel.tp)
    part = (size - 1) / size
    half = 2 if train.dtype != "fp32" else 4
    gradient = train.gradient_bits // 8
    if parallel.compress != "none":
        shapes = [each.shape for each in weights if not each.is_frozen for _ in range(each.count)]
        sent = 2 * part * sent_bytes(shapes, parallel)
        elapsed_s = link.time_s("all_reduce", sent, 2)
        return [Traffic(parallel.compress, sent, elapsed_s, elapsed_s, link.across_nodes)]
    if parallel.kind == "server":
        # Of a server, which pushes what it does not serve and answers all others.
        share = 1 / (parallel.servers or size)
        sent = 4 * trained * (1 - share + (size - 1) * share)
        elapsed_s = link.time_s("send", sent, 2 * (size - 1))
        return [Traffic("server", sent, elapsed_s, elapsed_s, link.across_nodes)]
    if not parallel.shards_weights:
        sent = 2 * part * 4 * trained
        elapsed_s = link.time_s("all_reduce", sent, math.ceil(trained / DDP_BUCKET))
        # The embedding's gradient is ready when backward ends, and not before it its bucket.
        embedding = model.vocab_size * model.dim / parallel.tp
        last_s = elapsed_s * min(1.0, max(DDP_BUCKET, embedding) / trained)
        hidden_s = hardware.overlap * compute.backward_s if parallel.pp == 1 else 0.0
        exposed_s = max(last_s, elapsed_s - hidden_s)
        return [Traffic(parallel.kind, sent, elapsed_s, exposed_s, link.across_nodes)]
    # How often in a step: gathered before forward, once more before each backward, and reduced.
    gathers, again = (1, 0) if parallel.gathers_once else (m, 1)
    reductions = 1 if parallel.kind == "zero1" or parallel.pp > 1 else m
    gather_s = link.time_s("all_gather", part * half * held, layers + 1)
    reduce_s = link.time_s("reduce_scatter", part * gradient * trained, layers + 1)
    sent = part * ((1 + again) * gathers * half * held + reductions * gradient * trained)
    share = block / held
    forward_s = max(gather_s * share, gather_s - hardware.overlap * compute.forward_s * (1 - share))
    busy_s = again * gather_s + reduce_s
    hidden_s = hardware.overlap * compute.backward_s if parallel.pp == 1 else 0.0
    backward_s = max(busy_s * share, busy_s - hidden_s * (1 - share))
    rows = [
        Traffic(
            parallel.kind,
            sent,
            (1 + again) * gathers * gather_s + reductions * reduce_s,
            gathers * forward_s + reductions * backward_s,
            link.across_nodes,
        )
    ]
    if parallel.kind == "hsdp" and (groups := replicas // size) > 1:
        outer = _Link(hardware, groups, replicas * parallel.tp)
        # Experts that are not gathered are summed there too.
        own = sum(each.numel for each in weights if not each.is_frozen) / size
        sent = 2 * (groups - 1) / groups * gradient * own
        elapsed_s = outer.time_s("all_reduce", sent, layers)
        rows.append(Traffic("hsdp groups", sent, elapsed_s, elapsed_s, outer.across_nodes))
    return rows


def _of_experts(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    hardware: HardwareConfig,
    memory: MemoryConfig,
    passes: float,
) -> Traffic:
    assert model.experts is not None, "ep is refused without"
    link = _Link(hardware, parallel.ep, parallel.ep * parallel.tp)
    pairs = tokens_on_a_rank(train, parallel) * model.experts.top_k / parallel.tp
    # There and back, and again for gradients and for what is computed once more.
    again = {"none": 0.0, "every": 1 / memory.every_k}.get(memory.recompute, 1.0)
    trips = passes * (4 + 2 * again)
    one = (parallel.ep - 1) / parallel.ep * pairs * model.dim * PRODUCT_BYTES[train.dtype]
    elapsed_s = trips * link.time_s("all_to_all", one)
    return Traffic("ep", trips * one, elapsed_s, elapsed_s, link.across_nodes)


def _of_grid(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    hardware: HardwareConfig,
    grid: GridShape,
    m: int,
) -> Traffic:
    """Blocks of activations and weights in `train.dtype`, those of the embedding in float32; sums
    over the depths of 2.5d."""
    tokens, number = tokens_on_a_rank(train, parallel), PRODUCT_BYTES[train.dtype]
    layers = m * model.num_layers
    sent = 4 * m * grid.received("embed", tokens, model.vocab_size, model.dim)
    sent += m * number * grid.received("into", tokens, model.vocab_size, model.dim)
    for name, shape in block_shapes(model).items():
        if (inner := cut_dim(name)) is not None and len(shape) > 1:
            layer: Layer = "into" if inner == 0 else "out"
            each = grid.received(layer, tokens, shape[inner], model.dim)
            sent += layers * number * each
    # Of a layer three each way in a cube; in a square two in each turn forward, three or four back.
    count = layers * (24 if grid.kind == "3d" else 22 * grid.side)
    if grid.kind == "2.5d":
        held = sum(each.numel for each in held_weights(model, parallel) if not each.is_frozen)
        sent += 4 * 2 * (grid.depth - 1) / grid.depth * held
    link = _Link(hardware, grid.side, parallel.tp)
    elapsed_s = link.time_s("all_gather", sent, count)
    return Traffic("tp", sent, elapsed_s, elapsed_s, link.across_nodes)


def _of_context(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    hardware: HardwareConfig,
    compute: Pass,
    passes: int,
) -> Traffic:
    link = _Link(hardware, parallel.cp, parallel.cp * parallel.tp)
    tokens, part = tokens_on_a_rank(train, parallel), (parallel.cp - 1) / parallel.cp
    number = PRODUCT_BYTES[train.dtype]
    keys = 2 * max(1, model.num_kv_heads / parallel.tp) * model.head_dim
    if parallel.cp_kind == "ulysses":
        # All-to-all of queries, keys, values and outputs, forward and backward.
        sent = 2 * part * tokens * number * (2 * model.attention_dim / parallel.tp + keys)
        kind = "all_to_all"
    else:
        # Keys and values of all others, and their gradients back; a ring sends them again for that.
        rounds = 3 if parallel.cp_kind == "ring" else 2
        sent = rounds * (parallel.cp - 1) * tokens * number * keys
        kind = "send" if parallel.cp_kind == "ring" else "all_gather"
    elapsed_s = link.time_s(kind, passes * sent, 3 * passes)
    hidden_s = (
        min(elapsed_s, hardware.overlap * compute.attention_s)
        if parallel.cp_kind == "ring"
        else 0.0
    )
    return Traffic("cp", passes * sent, elapsed_s, elapsed_s - hidden_s, link.across_nodes)
