"""Windows of published configurations mean here what they mean in transformers."""

import pytest

from llm_core.config import ConfigError
from llm_core.huggingface.config import model_config

SIZES = {
    "vocab_size": 51,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def test_windows_are_read_as_transformers_reads_them() -> None:
    from transformers import AutoConfig

    values = SIZES | {"num_hidden_layers": 4}
    for family, more in (
        ("mistral", {}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 7}),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True}),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 3}),
    ):
        ours = model_config(values | {"model_type": family} | more)
        theirs = AutoConfig.for_model(family, **(values | more))
        kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 4
        assert [one.window or None for one in ours.patterns] == [
            theirs.sliding_window if kind == "sliding_attention" else None for kind in kinds
        ]
    with pytest.raises(ConfigError, match=r"layer_types .* must name"):
        switched = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7}
        model_config(values | switched | {"layer_types": ["full_attention"]})
