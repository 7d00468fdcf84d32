"""Translates the `config.json` of GPT-NeoX models (Pythia) to ours and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig, RopeScaling

FORMS = {"gelu": "exact_gelu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}
"""hidden_act → model.ffn. GELU has two forms."""
PART = "partial_rotary_factor"


def neox_values(config: ModelConfig, rope: Mapping[str, Any]) -> dict[str, Any]:
    """What `config.json` has besides the values of every model. rope: rotary positions, but for the
    part of channels that turn."""
    return {
        "attention_bias": config.qkv_bias,
        "attention_dropout": 0.0,
        "hidden_act": "gelu" if config.ffn == "exact_gelu" else "gelu_new",
        "hidden_dropout": 0.0,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_seq_len,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "rope_parameters": {**rope, PART: config.rotary_frac},
        # For readers before Transformers 5.
        "rotary_emb_base": config.rope_theta,
        "rotary_pct": config.rotary_frac,
        "use_parallel_residual": config.parallel_residual,
    }


def neox_config(
    values: Mapping[str, Any], rope: Mapping[str, Any], scaling: RopeScaling | None
) -> ModelConfig:
    """The model of a `config.json`. rope: its rotary settings. Raises ConfigError for what is not
    computed here."""
    form = values.get("hidden_act", "gelu")
    if form not in FORMS:
        raise ConfigError(
            f"hidden_act ({str(form)[:80]}) must be one of {', '.join(FORMS)}; give another model"
        )
    frac = rope.get(PART, values.get("rotary_pct", 0.25))
    heads, biased = values["num_attention_heads"], values.get("attention_bias", True)
    return ModelConfig(
        vocab_size=values["vocab_size"],
        dim=values["hidden_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=heads,
        ffn_dim=values["intermediate_size"],
        max_seq_len=values["max_position_embeddings"],
        rope_theta=float(rope.get("rope_theta") or values.get("rotary_emb_base", 10000.0)),
        norm_eps=values.get("layer_norm_eps", 1e-5),
        tied_embeddings=values.get("tie_word_embeddings", False),
        norm="layer",
        ffn=FORMS[form],  # type: ignore[arg-type]
        qkv_bias=biased,
        out_bias=biased,
        ffn_bias=True,
        rotary_frac=float(frac),
        parallel_residual=values.get("use_parallel_residual", True),
        rope_scaling=scaling,
    )
