"""Counts what a process sends in one step, and for how long that holds it up.

| axis | sent by each process | hidden behind |
|---|---|---|
| ddp | gradients, all-reduced, once a step | the backward pass of the last micro batch, but for the last block; in a pipeline nothing |
| zero1 | these, and updated weights gathered | gradients as ddp; the weights behind nothing |
| zero2 | per micro batch: weights in 16 bits gathered, gradients reduce-scattered | the block before or after, but for the first and the last |
| fsdp | per micro batch: weights gathered twice, gradients reduce-scattered; in a pipeline both once a step | as zero2; in a pipeline the reduction behind nothing |
| hsdp | fsdp within dp_shard; shards of gradients all-reduced between the groups, once a step | as fsdp; the rest behind nothing |
| tp | per block: four gatherings and four sums of the residual stream | nothing, unless tp_overlap |
| cp | per block: keys and values of other slices, and their gradients | nothing; with ring, attention |
| pp | the residual stream between stages, and its gradient | other micro batches, but for the first and the last |

A ring of n sends (n - 1) / n of a tensor to gather or reduce-scatter it, and twice that to
all-reduce it (Thakur et al., 2005). Bytes are those on the wire of one process. Standard library
only.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_core.model.config import ModelConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import key_copies
from llm_core.planner.activations import PRODUCT_BYTES, STREAM_BYTES, tokens_on_a_rank
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.weights import block_shapes, held_weights, num_replicas, shard_ranks
from llm_core.training.config import TrainConfig


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
) -> list[Traffic]:
    """Of the fullest process."""
    m = train.global_batch_sequences // (train.micro_batch_sequences * parallel.dp)
    found = _of_weights(model, train, parallel, hardware, compute, m)
    plan = parallel.plan(model)
    layers = model.num_layers if plan is None else plan.num_layers_of(plan.costs_most())
    stream = tokens_on_a_rank(train, parallel) * model.dim * STREAM_BYTES[train.dtype]
    if parallel.tp > 1:
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
                2 * (parallel.pp - 1) * one_s,
                link.across_nodes,
            )
        )
    return found


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
    held = sum(each.numel for each in held_weights(model, parallel))
    layers = -(-model.num_layers // parallel.pp)
    block = sum(map(math.prod, block_shapes(model).values())) / parallel.tp
    size = shard_ranks(parallel) if parallel.shards_weights else replicas
    link = _Link(hardware, size, size * parallel.tp)
    part = (size - 1) / size
    half = 2 if train.dtype != "fp32" else 4
    if not parallel.shards_weights:
        sent = 2 * part * 4 * held
        elapsed_s = link.time_s("all_reduce", sent, 2 * layers)
        # The last block's gradients are ready when backward ends.
        last_s = elapsed_s * min(1.0, block / held)
        hidden_s = hardware.overlap * compute.backward_s if parallel.pp == 1 else 0.0
        exposed_s = max(last_s, elapsed_s - hidden_s)
        rows = [Traffic(parallel.kind, sent, elapsed_s, exposed_s, link.across_nodes)]
        if parallel.kind == "zero1":
            sent = part * 4 * held
            elapsed_s = link.time_s("all_gather", sent)
            rows.append(Traffic("zero1 weights", sent, elapsed_s, elapsed_s, link.across_nodes))
        return rows
    # A pipeline gathers and reduces once for all micro batches of a step.
    times = 1 if parallel.pp > 1 else m
    again = 0 if parallel.kind == "zero2" or parallel.pp > 1 else 1
    gather_s = link.time_s("all_gather", part * half * held, layers + 1)
    reduce_s = link.time_s("reduce_scatter", part * 4 * held, layers + 1)
    sent = part * held * times * ((1 + again) * half + 4)
    share = block / held
    forward_s = max(gather_s * share, gather_s - hardware.overlap * compute.forward_s * (1 - share))
    busy_s = again * gather_s + reduce_s
    hidden_s = hardware.overlap * compute.backward_s if parallel.pp == 1 else 0.0
    backward_s = max(busy_s * share, busy_s - hidden_s * (1 - share))
    rows = [
        Traffic(
            parallel.kind,
            sent,
            times * ((1 + again) * gather_s + reduce_s),
            times * (forward_s + backward_s),
            link.across_nodes,
        )
    ]
    if parallel.kind == "hsdp" and (groups := replicas // size) > 1:
        outer = _Link(hardware, groups, replicas * parallel.tp)
        sent = 2 * (groups - 1) / groups * 4 * held / size
        elapsed_s = outer.time_s("all_reduce", sent, layers)
        rows.append(Traffic("hsdp groups", sent, elapsed_s, elapsed_s, outer.across_nodes))
    return rows


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
