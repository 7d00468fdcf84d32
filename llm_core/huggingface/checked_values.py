"""Looks at values of a `config.json` that others wrote before anything is made of them.
Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_core.config import ConfigError

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok")
MOST = {
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions"), 1 << 27),
    **dict.fromkeys(("n_embd", "hidden_size"), 1 << 20),
    **dict.fromkeys(("n_inner", "intermediate_size"), 1 << 22),
    **dict.fromkeys(("n_layer", "num_hidden_layers"), 1 << 12),
    "sliding_window": 1 << 27,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 1 << 22),
    **dict.fromkeys(EXPERT_COUNTS, 1 << 16),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads", "head_dim"), 1 << 16),
}
"""Counts, with limits far above every published model: what a damaged file says is allocated."""
AMOUNTS = (
    *("layer_norm_epsilon", "rms_norm_eps", "rope_theta", "mscale", "mscale_all_dim"),
    *("routed_scaling_factor", "layer_norm_eps", "rotary_emb_base", "rotary_pct"),
    "partial_rotary_factor",
)
SWITCHES = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"),
    *("norm_topk_prob", "qkv_bias", "use_qk_norm", "use_parallel_residual"),
)
GROUPS = ("rope_parameters", "rope_scaling")
WORDS = ("model_type", "hidden_act", "hidden_activation")


def check_values(values: Mapping[str, Any]) -> None:
    """Raises ConfigError where a value that is read here is of another type."""
    for names, rule, holds in (
        (MOST, "a whole number of at least 1", lambda value: type(value) is int and value > 0),
        (
            AMOUNTS,
            "a positive number",
            lambda value: type(value) in (int, float) and 0 < value < math.inf,
        ),
        (SWITCHES, "true or false", lambda value: type(value) is bool),
        (GROUPS, "a mapping", lambda value: isinstance(value, Mapping)),
        (WORDS, "a name", lambda value: isinstance(value, str)),
    ):
        for name in names:
            if name in values and not holds(values[name]):
                shown = repr(values[name])[:80]
                raise ConfigError(
                    f"{name} ({shown}) must be {rule}; give the config.json of a Hugging Face model"
                )
    for name, most in MOST.items():
        if values.get(name, 0) > most:
            raise ConfigError(
                f"{name} ({values[name]:,}) must be at most {most:,}; give the config.json of a"
                " Hugging Face model"
            )


def require(name: str, value: object, fixed: object) -> None:
    """Raises ConfigError where a setting is not the one way computed here."""
    if value != fixed:
        raise ConfigError(
            f"{name} ({value}) must be {fixed}, the one way computed here; give another model"
        )
