"""Configures experts in place of feed-forwards: how tokens are routed, and how load is balanced.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError

ExpertFamily = Literal["mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe"]


@dataclass(frozen=True)
class ExpertsConfig:
    """Feed-forwards of which a token passes through a few.

    A router scores them. The top_k with the highest scores are computed, and their outputs are
    summed, each multiplied by its gate. No token is dropped.
    """

    number: int
    """Experts of a layer."""
    top_k: int
    """Experts that a token is sent to."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """What turns logits of the router into scores. sigmoid: each by itself (DeepSeek-V3)."""
    normalised: bool = True
    """Divide the gates of a token by their sum (Mixtral)."""
    scale: float = 1.0
    """Factor by which gates are multiplied."""
    shared_dim: int = 0
    """Inner width of an expert that every token passes through. 0: there is none."""
    shared_gate: bool = False
    """Multiply the output of the shared expert by a learnt sigmoid gate (Qwen 2)."""
    bias_rate: float = 0.0
    """Balance without a loss (Wang et al., 2024): after each step the bias of an expert falls by
    this if its load is above the mean, and rises by it if below. For score=sigmoid; 0.001 is
    usual."""
    balance_loss: float = 0.0
    """Weight of a loss that is 1 for each layer whose experts are balanced within each sequence,
    and more otherwise (DeepSeek-V3). Losses are reported without it."""
    z_loss: float = 0.0
    """Weight of log² Z of the router, which keeps its logits small (Zoph et al., 2022: 0.001)."""

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.number:
            raise ConfigError(
                f"top_k ({self.top_k}) must be from 1 to number ({self.number}), the experts of a"
                " layer; 2 of 8 are usual"
            )
        if self.top_k == 1 and self.normalised:
            raise ConfigError(
                "normalised (true) makes the only gate of top_k=1 always 1, so that the router"
                " cannot learn; set normalised=false, or top_k=2"
            )
        if self.shared_dim < 0 or (self.shared_gate and not self.shared_dim):
            raise ConfigError(
                f"shared_dim ({self.shared_dim}) must be positive where shared_gate"
                f" ({str(self.shared_gate).lower()}) is true, and at least 0 elsewhere; 0 means no"
                " shared expert"
            )
        if not 0 < self.scale < math.inf:
            raise ConfigError(f"scale ({self.scale}) must be positive; 1 leaves gates as they are")
        for name in ("bias_rate", "balance_loss", "z_loss"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) must be a number of at least 0; 0 turns it off"
                )

    @property
    def has_bias(self) -> bool:
        """Whether experts are chosen by scores plus a bias, which no gradient trains."""
        return self.score == "sigmoid"

    def num_parameters(self, dim: int, inner: int, all_experts: bool) -> int:
        """Numbers in the matrices of one layer: those a token is multiplied with, or all."""
        computed = self.number if all_experts else self.top_k
        shared = 3 * dim * self.shared_dim + (dim if self.shared_gate else 0)
        return self.number * dim + computed * 3 * dim * inner + shared


def expert_family(
    experts: ExpertsConfig,
    parts: tuple[str, str, str],
    biases: tuple[bool, bool, bool],
    qk_norm: bool,
    window: bool,
    full_layers: bool,
    inner: int,
) -> ExpertFamily:
    """The Hugging Face class that computes these choices. Raises ConfigError where none does.

    parts: norm, ffn, positions. biases: of qkv, out, ffn. inner: width of an expert.
    """
    if parts != ("rms", "swiglu", "rotary") or biases[2] or full_layers:
        raise ConfigError(
            f"experts need norm=rms, ffn=swiglu, positions=rotary, ffn_bias=false and no"
            f" full_layers, not {parts}, ffn_bias {biases[2]}; start from model=moe_tiny"
        )
    qkv_bias, out_bias, _ = biases
    shares = bool(experts.shared_dim)
    if experts.score == "sigmoid":
        whole = experts.shared_dim % inner == 0
        if not out_bias and not window and not experts.shared_gate and whole:
            return "glm4_moe"
    elif experts.bias_rate or experts.scale != 1:
        raise ConfigError(
            f"experts.bias_rate ({experts.bias_rate}) and scale ({experts.scale}) are for"
            " score=sigmoid: no Hugging Face model has them beside a softmax; set"
            " experts.score=sigmoid, or balance by experts.balance_loss"
        )
    elif qk_norm and qkv_bias == out_bias and not shares and not window:
        return "qwen3_moe"
    elif experts.shared_gate and not qk_norm and not out_bias and not window:
        return "qwen2_moe"
    elif experts.normalised and not qk_norm and not shares and not qkv_bias and not out_bias:
        return "mixtral"
    raise ConfigError(
        f"experts with score {experts.score}, normalised {experts.normalised}, shared_dim"
        f" {experts.shared_dim}, shared_gate {experts.shared_gate}, qkv_bias {qkv_bias}, out_bias"
        f" {out_bias}, qk_norm {qk_norm}, window {window} are neither Mixtral (softmax, normalised,"
        " no shared expert, no biases, no qk_norm), Qwen 2 (softmax, a gated shared expert, no"
        " out_bias, no qk_norm), Qwen 3 (softmax, qk_norm, no shared expert, qkv_bias = out_bias)"
        " nor GLM 4.5 (sigmoid, no out_bias, a shared expert of shared_dim = n x ffn_dim without"
        " gate, or none); only Mixtral has a window; choose one of these"
    )
