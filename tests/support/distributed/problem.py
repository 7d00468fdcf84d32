"""What a case of the exactness matrix trains, whatever its layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llm_core.model.adapter import AdapterConfig
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.sparse.patterns import Pattern
from llm_core.optim.config import OptimizerKind

ROWS, TOKENS = 8, 16
"""Sequences of a global batch where a layout needs no more, and tokens of each."""


BALANCED: dict[str, Any] = {"shared_dim": 24, "balance_loss": 0.3, "z_loss": 0.1}
"""Weights so large that what they add to gradients counts."""
SPARSE = (
    Pattern(block=4, num_global=1, summary=1, random_blocks=1, seed=2),
    Pattern(window=2, dilation=3, stride=5),
)
"""Of layers in turn: together every kind."""


@dataclass(frozen=True)
class Problem:
    """What is trained, whatever the layout."""

    vocab: int = 51
    rows: int = ROWS
    """Sequences of a global batch."""
    tied: bool = True
    masks: str = "uneven"
    """uneven: two in five targets and a whole row do not count. idle: the first half of the rows
    has none that does. empty: as uneven, but for a second step in which none does."""
    packed: bool = False
    neftune: float = 0.0
    """Strength of noise on embeddings."""
    pairs: bool = False
    """Rows are pairs of answers, with random references."""
    family: str = "llama"
    kv_heads: int = 4
    layers: int = 2
    dtype: Literal["fp64", "fp32", "bf16", "fp16"] = "fp64"
    gradient_bits: Literal[16, 32] = 32
    optim: OptimizerKind = "adamw"
    state_in: Literal["device", "host", "disk"] = "device"
    z_loss: float = 0.0
    ema: float = 0.0
    frozen: str = ""
    """Pattern of the names of weights that are not trained; empty: all are."""
    adapter: Literal["none", "lora", "dora"] = "none"
    """lora: factors of rank 3 are trained beside frozen weights. dora: and lengths of rows."""
    base_dtype: Literal["fp32", "bf16"] = "fp32"
    """Of the frozen matrices beside them."""
    base_codes: Literal["none", "nf4"] = "none"
    """nf4: in 4 bits; the model is wide enough for their blocks."""
    kernels: Literal["torch", "triton"] = "torch"
    """triton: by Triton's interpreter, in float32 or less; one process has torch's."""

    def model(self) -> ModelConfig:
        family: dict[str, Any] = {
            "llama": {},
            "qwen3": {"qk_norm": True, "own_head_dim": 6},
            "qwen2": {"qkv_bias": True},
            "glm4_moe": {
                "experts": ExpertsConfig(8, 3, **BALANCED, score="sigmoid", bias_rate=0.02)
            },
            "qwen2_moe": {
                "qkv_bias": True,
                "experts": ExpertsConfig(
                    8, 2, normalised=False, shared_dim=32, shared_gate=True, balance_loss=0.5
                ),
            },
            "sparse": {"attention": SPARSE},
            "gpt2": {"norm": "layer", "ffn": "gelu", "positions": "learned"}
            | dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True),
            "gemma": {
                "norm": "offset_rms",
                "ffn": "geglu",
                "scaled_embeddings": True,
                "own_head_dim": 6,
            },
            "gpt_neox": {
                "norm": "layer",
                "ffn": "exact_gelu",
                "rotary_frac": 0.5,
                "parallel_residual": True,
            }
            | dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True),
        }
        heads = 4 if self.family in ("gpt2", "gpt_neox") else 8
        is_coded = self.base_codes != "none"
        return ModelConfig(
            self.vocab,
            128 if is_coded else 16,
            self.layers,
            heads,
            self.kv_heads,
            384 if is_coded else 24,
            64,
            tied_embeddings=self.tied,
            **family[self.family],
        )

    @property
    def adapter_config(self) -> AdapterConfig:
        if self.adapter == "none":
            return AdapterConfig()
        return AdapterConfig(
            "lora",
            3,
            24.0,
            decomposed=self.adapter == "dora",
            base_dtype=self.base_dtype,
            base_codes=self.base_codes,
        )
