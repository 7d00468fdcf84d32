"""The shape of a Llama-type decoder, with its exact parameter and FLOP counts. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.config import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the architecture: RMSNorm, SwiGLU, rotary positions, grouped-query attention, no biases."""

    vocab_size: int
    """Ids the model knows; 0 takes the size of the tokenizer."""
    dim: int
    """Width of the residual stream."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key/value heads; each serves num_heads / num_kv_heads query heads."""
    ffn_dim: int
    """Inner width of the SwiGLU feed-forward."""
    max_seq_len: int
    """Longest sequence the model is meant for, in tokens."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = True
    """One matrix serves as input embedding and output head."""

    def __post_init__(self) -> None:
        for name in ("dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim", "max_seq_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.vocab_size < 0:
            raise ConfigError(f"vocab_size ({self.vocab_size}) must not be negative; 0 takes the size of the tokenizer")
        if self.dim % self.num_heads or (self.dim // self.num_heads) % 2:
            rule = f"must be an even multiple of num_heads ({self.num_heads}), because rotary positions turn pairs of channels"
            raise ConfigError(f"dim ({self.dim}) {rule}; try dim={_next_multiple(self.dim, 2 * self.num_heads)}")
        if self.num_heads % self.num_kv_heads:
            divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            rule = f"must divide num_heads ({self.num_heads})"
            raise ConfigError(f"num_kv_heads ({self.num_kv_heads}) {rule}; choose from {divisors}")
        if not self.rope_theta > 0 or not self.norm_eps > 0:
            raise ConfigError(f"rope_theta ({self.rope_theta}) and norm_eps ({self.norm_eps}) must be positive")

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    def matmul_parameters(self) -> int:
        """Weights that every token is multiplied with: all but norms and the input embedding; a tied head counts here."""
        qkv = self.dim * (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        attention_out = self.dim * self.dim
        ffn = 3 * self.dim * self.ffn_dim
        return self.num_layers * (qkv + attention_out + ffn) + self.vocab_size * self.dim

    def num_parameters(self) -> int:
        """All trained numbers, each counted once (a tied embedding is one matrix)."""
        norms = (2 * self.num_layers + 1) * self.dim
        embedding = 0 if self.tied_embeddings else self.vocab_size * self.dim
        return self.matmul_parameters() + norms + embedding

    def training_flops_per_token(self, seq_len: int, causal: bool = False) -> int:
        """FLOPs of forward and backward per token, 2 per multiply-add.

        6 x matmul weights + 12 x layers x heads x head_dim x seq_len (PaLM, appendix B): attention counted as if it were
        not causal, the convention of most published MFU figures. `causal=True` counts the half that is needed, as Megatron does.
        """
        attention = 12 * self.num_layers * self.dim * seq_len
        return 6 * self.matmul_parameters() + (attention // 2 if causal else attention)


def _next_multiple(value: int, of: int) -> int:
    return -(-value // of) * of
