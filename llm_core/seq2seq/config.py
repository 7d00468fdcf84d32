"""The shape of an encoder–decoder model, with its exact parameter and FLOP counts. Standard library
only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Everything that decides the architecture; its defaults are those of T5 1.0.

    t5 (Raffel et al., 2020, section 2.1; version 1.1: Shazeer, 2020): RMSNorm before each sublayer
    and after each stack, a bias by relative position on attention scores, which are not scaled, and
    no other biases. transformer (Vaswani et al., 2017): layer norm after each sublayer, sinusoidal
    positions, a feed-forward with biases, scores over sqrt(head_dim), one matrix as both embeddings
    and head.
    """

    vocab_size: int
    """Number of token ids, sentinels included."""
    dim: int
    """Width of both residual streams."""
    num_encoder_layers: int
    num_decoder_layers: int
    num_heads: int
    head_dim: int
    """Channels of one head; num_heads x head_dim need not be dim."""
    ffn_dim: int
    """Inner width of the feed-forward."""
    kind: Literal["t5", "transformer"] = "t5"
    ffn: Literal["relu", "geglu"] = "relu"
    """Form of the feed-forward. geglu: gate and up, GELU in its tanh form (T5 1.1)."""
    tied_head: bool = True
    """The embedding is the head too."""
    scaled_head: bool = True
    """t5: scale what enters the head by dim^-0.5 (1.0, not 1.1)."""
    num_buckets: int = 32
    """t5: classes of relative positions. In encoders half of them are for later keys."""
    max_distance: int = 128
    """t5: distance from which on all positions share a bucket."""
    norm_eps: float = 1e-6
    dropout: float = 0.1
    """Share of activations that training drops: of embeddings and outputs of sublayers; in t5 also
    of attention weights, inside feed-forwards and after each stack."""
    pad_id: int = 0
    """Fills rows, and is the first input of the decoder."""
    eos_id: int = 1
    """Ends sources and targets."""

    def __post_init__(self) -> None:
        for name, known in (("kind", ("t5", "transformer")), ("ffn", ("relu", "geglu"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be {' or '.join(known)}")
        for name in (
            "vocab_size",
            "dim",
            "num_encoder_layers",
            "num_decoder_layers",
            "num_heads",
            "head_dim",
            "ffn_dim",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout ({self.dropout}) must be at least 0 and below 1; try 0.1")
        if not self.norm_eps > 0:
            raise ConfigError(f"norm_eps ({self.norm_eps}) must be positive; T5 has 1e-6")
        for name in ("pad_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must be an id below vocab_size"
                    f" ({self.vocab_size})"
                )
        if self.kind == "t5":
            self._check_buckets()
        elif not (self.ffn == "relu" and self.tied_head and not self.scaled_head):
            raise ConfigError(
                f"kind (transformer) has ffn=relu, a tied head and no scale before it, but ffn,"
                f" tied_head, scaled_head are {(self.ffn, self.tied_head, self.scaled_head)}; set"
                " these, or kind=t5"
            )
        elif self.dim % 2:
            raise ConfigError(
                f"dim ({self.dim}) must be even, because sinusoidal positions are sines and"
                f" cosines; try {self.dim + 1}"
            )

    def _check_buckets(self) -> None:
        if self.num_buckets < 4 or self.num_buckets % 2:
            raise ConfigError(
                f"num_buckets ({self.num_buckets}) must be even and at least 4; T5 has 32"
            )
        if self.max_distance <= self.num_buckets // 2:
            raise ConfigError(
                f"max_distance ({self.max_distance}) must be above half of num_buckets"
                f" ({self.num_buckets}), since near positions have a bucket each; T5 has 128"
            )

    @property
    def attention_dim(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Of one layer of attention: queries, keys, values and the projection back."""
        return 4 * self.dim * self.attention_dim

    @property
    def ffn_matrices(self) -> int:
        """Weights of the products of one feed-forward."""
        return (3 if self.ffn == "geglu" else 2) * self.dim * self.ffn_dim

    def num_parameters(self) -> int:
        """All trained numbers, each counted once (a tied head is the embedding)."""
        encoder, decoder = self.num_encoder_layers, self.num_decoder_layers
        attention = (encoder + 2 * decoder) * self.attention_parameters
        ffn = (encoder + decoder) * self.ffn_matrices
        norms = (2 * encoder + 3 * decoder) * self.dim
        embeddings = (1 if self.tied_head else 2) * self.vocab_size * self.dim
        if self.kind == "t5":
            return attention + ffn + norms + 2 * self.dim + embeddings + self._bias_tables
        biases = (encoder + decoder) * (self.dim + self.ffn_dim)
        return attention + ffn + 2 * norms + biases + embeddings

    @property
    def _bias_tables(self) -> int:
        return 2 * self.num_buckets * self.num_heads

    def training_flops(self, source_tokens: int, target_tokens: int) -> int:
        """FLOPs of forward and backward of one pair, 2 per multiply-add.

        Three times the forward; attention as if it were not causal, as
        `ModelConfig.training_flops_per_token`. Keys and values of cross-attention are products over
        the source.
        """
        encoder, decoder = self.num_encoder_layers, self.num_decoder_layers
        half = self.attention_parameters // 2
        of_source = encoder * (2 * half + self.ffn_matrices) + decoder * half
        of_target = decoder * (3 * half + self.ffn_matrices) + self.vocab_size * self.dim
        areas = encoder * source_tokens**2 + decoder * target_tokens * (
            target_tokens + source_tokens
        )
        products = of_source * source_tokens + of_target * target_tokens
        return 6 * products + 12 * self.attention_dim * areas
