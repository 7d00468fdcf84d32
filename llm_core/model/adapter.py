"""Configures an adapter: small trained factors beside the frozen matrices of a model. Standard
library only.

LoRA (Hu et al., 2021): a layer computes W x + s B A x, with A (rank, inputs), B (outputs, rank) and
s = alpha / rank, or alpha / sqrt(rank) (Kalajdzievski, 2023, "rsLoRA"). DoRA (Liu et al., 2024)
also trains the length m of each row: m (W + s B A) x / n, where n are the lengths of the rows of
W + s B A, as constants. A fused matrix has an A for
each part that is a matrix of its own in Hugging Face's model, so that files of PEFT hold the same
numbers: queries, keys and values, or gate and up. GPT-2 fuses queries, keys and values too.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError, nearest
from llm_core.model.config import ModelConfig

FACTOR = re.compile(r"\.lora\.[abm]$")
"""End of the names of trained factors."""
IN_CODES = re.compile(r"blocks\.\d+\.(attention\.(?:qkv|out)|ffn\.(?:gate_up|up|down))\.weight$")
"""Names of the weights that `adapter.base_codes` applies to."""
CODED_BLOCK, CODED_GROUP = 64, 256
"""Numbers that share a scale, and scales that share one (QLoRA)."""


@dataclass(frozen=True)
class AdapterConfig:
    """What is trained beside a frozen model."""

    kind: Literal["none", "lora"] = "none"
    """none: training changes the model itself. lora: products of two factors of low rank."""
    rank: int = 16
    """Rows of each A, columns of each B."""
    alpha: float = 32.0
    """Strength of the factors: their product counts alpha / rank times."""
    scaling: Literal["rank", "root_rank"] = "rank"
    """What alpha is divided by. root_rank (rsLoRA) keeps the strength of high ranks."""
    decomposed: bool = field(default=False, metadata=IN_KEY_IF_SET)
    """Also train the length of each row, apart from its direction (DoRA)."""
    targets: tuple[str, ...] = ()
    """Layers of each block that get factors: qkv, out, gate_up (GPT-2: up), down. Empty: all."""
    base_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype in which the frozen matrices are kept. bf16 takes half the memory and needs
    train.dtype=bf16."""
    base_codes: Literal["none", "nf4"] = field(default="none", metadata=IN_KEY_IF_SET)
    """nf4 (QLoRA): the frozen matrices of blocks are kept in 4 bits and restored for each product;
    embedding and head stay in base_dtype."""
    init_from: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """PEFT folder that training starts from. Its content is in the key, its place is not."""

    def __post_init__(self) -> None:
        if self.kind == "none":
            for each in dataclasses.fields(self):
                if getattr(self, each.name) != each.default:
                    raise ConfigError(
                        f"adapter.{each.name} ({getattr(self, each.name)}) belongs to an adapter,"
                        " and adapter is none; set adapter=lora"
                    )
        if self.rank < 1:
            raise ConfigError(f"adapter.rank ({self.rank}) must be at least 1; 16 is usual")
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"adapter.alpha ({self.alpha}) must be positive; 2 x rank is usual")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(
                f"adapter.targets ({', '.join(self.targets)}) must name each layer once"
            )

    @property
    def strength(self) -> float:
        """s: what the product of both factors is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.scaling == "root_rank" else self.rank)


@dataclass(frozen=True)
class Factored:
    """A layer that gets factors."""

    rows: int
    columns: int
    parts: tuple[int, ...]
    """Rows of each part, which repeat to the end of the matrix; one part is all of it."""

    def shapes(self, adapter: AdapterConfig) -> dict[str, tuple[int, ...]]:
        """Of the factors: the A of each part below each other, and B in the order of the matrix,
        with the lengths of its rows where they are trained."""
        rank, lengths = adapter.rank, {"m": (self.rows,)} if adapter.decomposed else {}
        return {"a": (len(self.parts) * rank, self.columns), "b": (self.rows, rank), **lengths}

    @property
    def coded_groups(self) -> int:
        """Groups of scales of the whole layer in 4 bits; each part begins a new group."""
        runs, blocks = self.rows // sum(self.parts), self.columns // CODED_BLOCK
        return sum(-(-part * runs * blocks // CODED_GROUP) for part in self.parts)

    def coded_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a part of the layer in 4 bits: codes, a byte of scale for each block, four for
        the place of each row, and two float32 for each group of scales of the whole layer."""
        return rows * (columns // 2 + columns // CODED_BLOCK + 4) + 8 * self.coded_groups


@dataclass(frozen=True)
class AdaptedModelConfig(ModelConfig):
    """A model with factors beside its matrices."""

    adapter: AdapterConfig = field(
        default=AdapterConfig(kind="lora"), metadata=IN_KEY_IF_SET, kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {name.split(".")[1]: name for name in layers_of(self)}
        for target in self.adapter.targets:
            if target not in known:
                raise ConfigError(
                    f"adapter.targets ({target}) must name linear layers of the blocks of a"
                    f" {self.family} model; {nearest(target, list(known))}"
                )
        most = max(min(layer.rows, layer.columns) for layer in self.factored.values())
        if self.adapter.rank > most:
            raise ConfigError(
                f"adapter.rank ({self.adapter.rank}) must be at most {most}, the rank of the"
                f" largest matrix with factors; try {min(16, most)}"
            )

    @property
    def factored(self) -> dict[str, Factored]:
        """The layers of a block that get factors, by name."""
        targets = self.adapter.targets
        return {
            name: layer
            for name, layer in layers_of(self).items()
            if not targets or name.split(".")[1] in targets
        }

    def num_factors(self) -> int:
        """All trained numbers."""
        of_block = sum(
            math.prod(shape)
            for layer in self.factored.values()
            for shape in layer.shapes(self.adapter).values()
        )
        return self.num_layers * of_block

    def training_flops_per_token(self, attended_tokens: float, causal: bool = False) -> float:
        """As `ModelConfig`'s, without the gradients of frozen matrices: 4 x their weights, and
        6 x the factors."""
        whole = super().training_flops_per_token(attended_tokens, causal)
        return whole - 2 * self.matmul_parameters() + 6 * self.num_factors()


def layers_of(model: ModelConfig) -> dict[str, Factored]:
    """The linear layers of a block that factors can be put beside, by name."""
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    group = model.num_heads // model.num_kv_heads * model.head_dim
    is_fused = model.family in ("gpt2", "gpt_neox")
    heads = (qkv,) if is_fused else (group, model.head_dim, model.head_dim)
    into, width = "up", model.ffn_dim
    block: tuple[int, ...] = (width,)
    if model.is_gated:
        into, width, block = "gate_up", 2 * model.ffn_dim, 2 * (model.ffn_block,)
    return {
        "attention.qkv": Factored(qkv, model.dim, heads),
        "attention.out": Factored(model.dim, model.attention_dim, (model.dim,)),
        f"ffn.{into}": Factored(width, model.dim, block),
        "ffn.down": Factored(model.dim, model.ffn_dim, (model.dim,)),
    }


def adapted(model: ModelConfig, adapter: AdapterConfig) -> ModelConfig:
    """The model that is trained: with factors, or as it is. Raises ConfigError for targets that it
    does not have."""
    if adapter.kind == "none":
        return model
    values = {each.name: getattr(model, each.name) for each in dataclasses.fields(ModelConfig)}
    return AdaptedModelConfig(**values, adapter=adapter)


def without_factors(model: ModelConfig) -> ModelConfig:
    """The model as it is published, with its factors merged."""
    if not isinstance(model, AdaptedModelConfig):
        return model
    values = {each.name: getattr(model, each.name) for each in dataclasses.fields(ModelConfig)}
    return ModelConfig(**values)


def coded_layer(model: ModelConfig, name: str) -> str | None:
    """The layer of a block whose weight has this name; None where it is not kept in codes."""
    if not isinstance(model, AdaptedModelConfig) or model.adapter.base_codes == "none":
        return None
    found = IN_CODES.search(name)
    return found and found[1]


def is_factor(name: str) -> bool:
    """Whether a weight of this name is a factor of an adapter."""
    return FACTOR.search(name) is not None
