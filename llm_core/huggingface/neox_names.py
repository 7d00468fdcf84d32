"""Names the tensors of GPT-NeoX models in Hugging Face files.

Its queries, keys and values are fused head by head, which is the order of our fused weight where
every query head has its own key and value.
"""

from __future__ import annotations

import functools

from llm_core.model.config import ModelConfig

HEAD = "embed_out.weight"
LAYER_PARTS = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.out": "attention.dense",
    "ffn.up": "mlp.dense_h_to_4h",
    "ffn.down": "mlp.dense_4h_to_h",
}


@functools.cache
def neox_names(config: ModelConfig) -> dict[str, str]:
    """Our name → theirs, of all tensors but the head."""
    found = {"embedding.weight": "gpt_neox.embed_in.weight"}
    for end in ("weight", "bias"):
        found[f"norm.{end}"] = f"gpt_neox.final_layer_norm.{end}"
        for ours, theirs in LAYER_PARTS.items():
            if end == "bias" and ours.startswith("attention.") and not config.qkv_bias:
                continue
            found |= {
                f"blocks.{layer}.{ours}.{end}": f"gpt_neox.layers.{layer}.{theirs}.{end}"
                for layer in range(config.num_layers)
            }
    return found
