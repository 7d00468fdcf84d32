"""Says what inference with a model needs: memory for weights and cache, and how fast it can be.

| number | how |
|---|---|
| weights | as stored: 16 bits, or rounded as `llm_core.quantize` rounds them |
| cache of a token | keys and values of every layer and key/value head; int8: 1 byte each and a float32 scale per head |
| static | rows that are allocated at their full length |
| paged | sequences in blocks, of which a window frees those that every layer has left |
| decode | a pass reads every weight but the embedding once, and the keys and values that its tokens attend |
| prefill | operations of a prompt, the head for its last token alone, at the share of the peak that products reach |

Decoding is a ceiling: stated bandwidth and peak, and nothing else takes time (Pope et al., 2022,
section 2). Tensor ranks divide all of it, without what they send. Standard library and NumPy only.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from llm_core.infer.config import EngineConfig
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.pairs import attended_tokens, num_keys
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.weights import Shape, block_shapes, weights_outside

Format = Literal["bf16", "int8", "int4"]
Cache = Literal["model", "int8"]
NUMBER_BYTES = 2
"""Of one number of the stream, of weights that are not rounded, and of a cache like the model."""
INT4_GROUP = 64
"""Inputs of a row that share a scale (`llm_core.quantize.formats`)."""
CONTEXTS = (2048, 8192, 32768, 131072)
ENGINE = EngineConfig()


@dataclass(frozen=True)
class AtContext:
    """What fits, and how fast it is, with sequences of so many tokens each."""

    context_tokens: int
    static_sequences: int
    paged_sequences: int
    alone_tokens_per_s: float
    """Ceiling of decoding one sequence."""
    most_tokens_per_s: float
    """Of as many sequences as fit in blocks, together; 0 where none fits."""
    bound_by: Literal["memory", "products"]
    """What that ceiling comes from."""
    prefill_s: float
    """To read one prompt of so many tokens."""


@dataclass(frozen=True)
class ServingPlan:
    """One format of weights and of the cache. Bytes are those of all devices together."""

    weights: Format
    cache: Cache
    weights_bytes: int
    cache_bytes_per_token: int
    room_bytes: int
    """For the cache, beside weights and a pass; negative where these do not fit."""
    cache_tokens: int
    """Of all sequences together, in blocks."""
    contexts: tuple[AtContext, ...]


@dataclass(frozen=True)
class Served:
    """A model on `num_devices` tensor ranks. Bytes and rates are those of all of them together."""

    model: ModelConfig
    hardware: HardwareConfig
    num_devices: int = 1
    weights: Format = "bf16"
    cache: Cache = "model"

    def plan(self) -> ServingPlan:
        token, room = cache_bytes_per_token(self.model, self.cache), self.room_bytes
        tokens = max(0, room) // (ENGINE.block_tokens * token) * ENGINE.block_tokens
        held = weights_bytes(self.model, self.weights)
        contexts = tuple(map(self.at, context_lengths(self.model)))
        return ServingPlan(self.weights, self.cache, held, token, room, tokens, contexts)

    @property
    def room_bytes(self) -> int:
        whole = self.num_devices * (self.hardware.memory_gb - self.hardware.reserve_gb) * 1e9
        return int(whole - weights_bytes(self.model, self.weights) - pass_bytes(self.model))

    def at(self, context: int) -> AtContext:
        token, block = cache_bytes_per_token(self.model, self.cache), ENGINE.block_tokens
        logits = logits_bytes_per_sequence(self.model)
        window, held = self.model.common_window, context
        if window:  # as EngineConfig.holding: what a pass attends may begin within a block
            held = min(context, window + ENGINE.budget_tokens + block)
        paged = max(0, self.room_bytes // (-(-held // block) * block * token + logits))
        most, bound = self.decode(max(1, paged), context)
        return AtContext(
            context,
            max(0, self.room_bytes // (context * token + logits)),
            paged,
            self.decode(1, context)[0],
            most if paged else 0.0,
            bound,
            self.prefill_s(context),
        )

    def decode(
        self, num_sequences: int, context: int
    ) -> tuple[float, Literal["memory", "products"]]:
        """(tokens per second of all sequences, what bounds them), `context` tokens behind each."""
        model = self.model
        attended = sum(int(num_keys(pattern, context)[-1]) for pattern in model.patterns)
        keys = cache_bytes_per_token(model, self.cache) / model.num_layers * attended
        flops = 2 * model.matmul_parameters() + 4 * model.attention_dim * attended
        moved = read_bytes(model, self.weights) + num_sequences * keys
        memory_s = moved / (self.num_devices * self.hardware.memory_gb_s * 1e9)
        products_s = num_sequences * flops / self._peak
        bound: Literal["memory", "products"] = "memory" if memory_s >= products_s else "products"
        return num_sequences / max(memory_s, products_s), bound

    def prefill_s(self, context: int) -> float:
        """Seconds to read a prompt, by operations alone."""
        model, head = self.model, self.model.vocab_size * self.model.dim
        attention = (
            2 * model.num_layers * model.attention_dim * attended_tokens(model.patterns, context)
        )
        flops = context * (2 * (model.matmul_parameters() - head) + attention) + 2 * head
        return flops / (self._peak * self.hardware.matmul_share)

    @property
    def _peak(self) -> float:
        return self.num_devices * self.hardware.peak("bf16")


def serving_plans(
    model: ModelConfig, hardware: HardwareConfig, num_devices: int = 1
) -> list[ServingPlan]:
    """Every format of weights with every cache."""
    return [
        Served(model, hardware, num_devices, weights, cache).plan()
        for weights in get_args(Format)
        for cache in get_args(Cache)
    ]


def context_lengths(model: ModelConfig) -> list[int]:
    """The longest that the model is meant for, and round ones below it."""
    return [*(each for each in CONTEXTS if each < model.max_seq_len), model.max_seq_len]


def weights_bytes(model: ModelConfig, weights: Format) -> int:
    """Of all weights as they are stored; a tied head is the embedding's table."""
    return sum(num_bytes for _, num_bytes in _stored(model, weights))


def read_bytes(model: ModelConfig, weights: Format) -> int:
    """Of weights, in one pass of decoding: of an embedding that is not the head too, and of learned
    positions, a row for each token is next to nothing."""
    rows = {"positions.weight", *(() if model.tied_embeddings else ("embedding.weight",))}
    return sum(num_bytes for name, num_bytes in _stored(model, weights) if name not in rows)


def _stored(model: ModelConfig, weights: Format) -> Iterator[tuple[str, int]]:
    """(name, bytes), those of blocks together for all of them."""
    for name, shape in weights_outside(model).items():
        # In 4 bits a head costs more quality than all blocks together.
        is_table = name in ("embedding.weight", "head.weight")
        yield name, _bytes_of(shape, "int8" if is_table and weights != "bf16" else "bf16")
    for name, shape in block_shapes(model).items():
        yield f"blocks.{name}", model.num_layers * _bytes_of(shape, weights)


def _bytes_of(shape: Shape, weights: Format) -> int:
    if len(shape) < 2 or weights == "bf16":
        return NUMBER_BYTES * math.prod(shape)
    rows, columns = shape
    if weights == "int8":
        return rows * columns + 4 * rows
    groups = -(-columns // INT4_GROUP)
    return rows * groups * (INT4_GROUP // 2 + 2 * NUMBER_BYTES)


def cache_bytes_per_token(model: ModelConfig, cache: Cache) -> int:
    """Of keys and values, in every layer and key/value head."""
    head = model.head_dim + 4 if cache == "int8" else NUMBER_BYTES * model.head_dim
    return 2 * model.num_layers * model.num_kv_heads * head


def pass_bytes(model: ModelConfig) -> int:
    """Most that one pass of the engine's budget of tokens holds besides: the stream, what it adds,
    and the widest product."""
    qkv = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    into = (3 if model.is_gated else 2) * model.ffn_dim
    if model.experts is not None:
        into = model.experts.top_k * (into + 3 * model.dim)
    widest = max(qkv, into)
    return ENGINE.budget_tokens * NUMBER_BYTES * (3 * model.dim + widest)


def logits_bytes_per_sequence(model: ModelConfig) -> int:
    """As the head gives them, and in float32 for sampling."""
    return model.vocab_size * (NUMBER_BYTES + 4)
