"""Counts the bytes of activations and logits that one process keeps for the backward pass.

Of a block, numbers per token that are kept, with A = heads x head_dim, K = kv_heads x head_dim,
D = dim and F = ffn_dim:

| recompute | kernels | kept |
|---|---|---|
| none | torch | 4 D + 3 A + 3 K + 4 F |
| none | torch, compiled | 4 D + 3 A + 3 K + 3 F |
| none | triton | 4 D + 2 A + 2 K + 3 F |
| none | quack | 4 D + 2 A + 2 K + 2 F |
| selective | any | D + 2 A + 2 K + 2 F |
| full | any | D |

4 D: the stream before and after attention, and both of them normed. torch keeps queries and keys
before and after they are rotated; values are a view of the product that the former come from.
Besides, attention keeps the logarithm of its sum for each head, and a norm one number per token,
both in float32. No attention here
keeps scores: with flash attention the term 5 a s² b of Korthikanti et al. (2022) is gone before
anything is recomputed. GPT-2's form has 4 D + A + (A + 2 K) + 2 F, which is their 34 bytes per
token and channel without dropout masks. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.config import ONE_PASS_KERNELS, ComputeConfig, ModelConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import LOOPED, V_SHAPED
from llm_core.training.config import TrainConfig

STREAM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 4}
"""Of one number of the residual stream (llm_core.model.precision)."""
PRODUCT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Of one number that a matrix product takes or gives."""


@dataclass(frozen=True)
class BlockNumbers:
    """Numbers per token that one block keeps. stream: of the residual stream, which tensor ranks
    cut along tokens. shared: of heads and inner channels, which they divide. statistics: those in
    float32."""

    stream: float
    shared: float
    statistics: float

    def bytes(self, dtype: str, tensor_ranks: int, sequence: bool) -> float:
        stream = self.stream / (tensor_ranks if sequence else 1)
        kept = stream * STREAM_BYTES[dtype] + self.shared / tensor_ranks * PRODUCT_BYTES[dtype]
        return kept + 4 * self.statistics


def block_numbers(
    model: ModelConfig,
    compute: ComputeConfig,
    recompute: str = "none",
    on_cpu: bool = False,
    tensor_ranks: int = 1,
) -> BlockNumbers:
    """Of one block."""
    heads = model.attention_dim
    # Of all tensor ranks, that may compute a head several times.
    keys = max(model.num_kv_heads, tensor_ranks) * model.head_dim
    if recompute == "full":
        return BlockNumbers(model.dim, 0, 0)
    if recompute == "selective":
        inner = 2 if model.is_gated else 1
        return BlockNumbers(
            model.dim, 2 * heads + 2 * keys + inner * model.ffn_dim, model.num_heads
        )
    fused = compute.kernels in ONE_PASS_KERNELS
    rotated = model.positions == "rotary"
    # Unrotated queries and keys, and those before their norm, are dropped by fused kernels only.
    copies = 0 if not rotated else (0 if fused else 1) + (1 if model.qk_norm else 0)
    attention = 2 * heads + 2 * keys + copies * (heads + keys)
    if not model.is_gated:
        inner = 2
    else:
        # What auto chooses is known only after measuring; torch's kernels need the most.
        inner = {"triton": 3, "quack": 2}.get(compute.kernels, 3 if compute.compile else 4)
        # CPUs copy the gate to have its channels in one run.
        inner += 1 if on_cpu and not fused else 0
    channels = inner * model.ffn_dim
    if model.experts is not None:
        # Each pair with an expert keeps its input, and its output in two orders. Logits and scores
        # of the router are float32.
        experts = model.experts
        channels = experts.top_k * (channels + 3 * model.dim) + inner * experts.shared_dim
        return BlockNumbers(
            4 * model.dim, attention + channels, model.num_heads + 2 + 3 * experts.number
        )
    return BlockNumbers(4 * model.dim, attention + channels, model.num_heads + 2)


def tokens_on_a_rank(train: TrainConfig, parallel: ParallelConfig) -> int:
    """Of one micro batch."""
    return train.micro_batch_sequences * train.seq_len // parallel.cp


def layers_in_flight(
    model: ModelConfig, parallel: ParallelConfig, micro_batches: int, rank: int = 0
) -> float:
    """Most blocks of which a rank of the pipeline keeps activations at once, counted once for each
    micro batch.

    In units of a rank's layers: gpipe keeps all m micro batches, 1F1B as many as there are stages
    from here on, interleaved stages a share more (Narayanan et al., 2021, section 2.2). Schedules
    that split backward keep as many on every rank, V-shaped ones p, and half a unit more where two
    directions run (Qi et al., 2024; DeepSeek-V3).
    """
    p, m, plan = parallel.pp, micro_batches, parallel.plan(model)
    if plan is None:
        return model.num_layers
    own, schedule = plan.num_layers_of(rank), parallel.pp_schedule
    if schedule == "naive":
        return own
    if schedule == "gpipe":
        return own * m
    if schedule in LOOPED:
        per_rank = parallel.pp_stages_per_rank or 2
        later = p - 1 if schedule == "zero_bubble" else p - 1 - rank
        return own * min(m, ((per_rank - 1) * p + 2 * later + 1) / per_rank)
    if schedule in V_SHAPED:
        return own * min(m, p + (0.5 if schedule == "dualpipe_v" else 0))
    return own * min(m, p - rank)


def _block_bytes(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    recompute: str = "none",
    on_cpu: bool = False,
) -> float:
    """What one block keeps of one micro batch."""
    numbers = block_numbers(model, train, recompute, on_cpu, parallel.tp)
    kept = numbers.bytes(train.dtype, parallel.tp, parallel.sequence_parallel)
    if recompute == "none" and parallel.cp_kind == "all_gather":
        # Attention keeps the keys and values of the other slices too.
        keys = 2 * max(1, model.num_kv_heads / parallel.tp) * model.head_dim
        kept += (parallel.cp - 1) * keys * PRODUCT_BYTES[train.dtype]
    return tokens_on_a_rank(train, parallel) * kept


def activation_bytes(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig,
    rank: int = 0,
    on_cpu: bool = False,
) -> int:
    """Most that a rank of the pipeline keeps for backward, without logits and what is computed
    twice."""
    tokens = tokens_on_a_rank(train, parallel)
    micro_batches = train.global_batch_sequences // (train.micro_batch_sequences * parallel.dp)
    layers = layers_in_flight(model, parallel, micro_batches, rank)

    def of_a_block(recompute: str) -> float:
        return _block_bytes(model, train, parallel, recompute, on_cpu)

    whole = of_a_block("none")
    if memory.ffn_tiles > 1:
        whole -= tokens * model.ffn_dim * 2 * PRODUCT_BYTES[train.dtype] / parallel.tp
    if memory.recompute == "every":
        again = layers / memory.every_k
        return int(again * of_a_block("full") + (layers - again) * whole)
    return int(layers * (whole if memory.recompute == "none" else of_a_block(memory.recompute)))


def block_again_bytes(
    model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig
) -> int:
    """All that one block keeps: it exists once in backward where blocks are computed again."""
    if memory.recompute == "none":
        return 0
    return int(_block_bytes(model, train, parallel))


def logits_bytes(
    model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig
) -> int:
    """Most that head and loss hold at once: logits as products give them, in float32 where that is
    another type, and their exponentials; compiled, none of the copies leaves the kernel."""
    tokens = tokens_on_a_rank(train, parallel)
    ids = -(-model.vocab_size // parallel.tp)
    number = PRODUCT_BYTES[train.dtype]
    fused = train.compile and parallel.tp == 1
    each = 2 * number if fused else number + (4 if number == 4 else 8)
    chunk = memory.loss_chunk_tokens
    held = min(chunk or tokens, tokens) * ids * each
    if chunk:
        # The gradient of the stream, and of the head in float32.
        held += tokens * model.dim * STREAM_BYTES[train.dtype]
        if not isinstance(model, AdaptedModelConfig):  # whose head is frozen
            held += 4 * ids * model.dim
    return held
