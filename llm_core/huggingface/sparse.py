"""Says in a `config.json` of ours which patterns of attention a model has: no Hugging Face class
computes them.

Such a folder has a `model_type` of its own, so that other readers refuse it instead of attending
all tokens. Names of weights and the other settings are those of `dense_model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_core.config import ConfigError, build, to_plain
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.patterns import Pattern, named_patterns

MODEL_TYPE = "textmill_sparse"


def sparse_values(config: ModelConfig) -> dict[str, Any]:
    """Replaces the name of the class; nothing where all tokens or a window are attended."""
    attention = config.attention
    if not attention:
        return {}
    patterns = named_patterns(attention) if isinstance(attention, str) else attention
    return {
        "architectures": ["TextmillSparseForCausalLM"],
        "model_type": MODEL_TYPE,
        "dense_model_type": config.family,
        "attention_patterns": to_plain(patterns),
    }


def without_patterns(
    values: Mapping[str, Any],
) -> tuple[Mapping[str, Any], tuple[Pattern, ...]]:
    """The values as those of the dense class, and the patterns. Raises ConfigError."""
    if values.get("model_type") != MODEL_TYPE:
        return values, ()
    found = values.get("attention_patterns")
    if not isinstance(found, list) or not found:
        raise ConfigError(
            f"attention_patterns ({str(found)[:80]}) must be a list of patterns, which"
            f" model_type={MODEL_TYPE} promises; give a folder as it was written"
        )
    patterns = tuple(build(Pattern, one, f"attention_patterns.{n}") for n, one in enumerate(found))
    return {**values, "model_type": values.get("dense_model_type")}, patterns
