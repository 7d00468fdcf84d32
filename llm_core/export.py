"""A trained model as a Hugging Face Llama folder, and back: `config.json` and `model.safetensors`.

Fused weights are split on the way out and joined on the way in; the values are copies, so both sides compute the same
logits. The bytes depend on the weights and the config alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def export_model(config: ModelConfig, state: Mapping[str, Tensor], folder: Path, eos_id: int | None = None) -> None:
    """Write whole (unsharded) weights, named as in `Transformer.state_dict()`, as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_hugging_face(config, state)
    save_file({name: weights[name].contiguous().cpu() for name in sorted(weights)}, folder / WEIGHTS_FILE, {"format": "pt"})
    dtype = str(weights["model.norm.weight"].dtype).removeprefix("torch.")
    text = json.dumps(hugging_face_config(config, dtype, eos_id), indent=2, sort_keys=True)
    (folder / CONFIG_FILE).write_text(text + "\n", "utf-8")


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """The model in a folder written by `export_model`, on the CPU, in evaluation mode."""
    config = model_config(json.loads((folder / CONFIG_FILE).read_text("utf-8")))
    with torch.device("meta"):
        model = Transformer(config)
    state = {name: tensor.to(dtype) for name, tensor in from_hugging_face(config, load_file(folder / WEIGHTS_FILE)).items()}
    model.load_state_dict(state, strict=True, assign=True)
    if config.tied_embeddings:  # assigning replaced both names; tie them again
        model.head.weight = model.embedding.weight
    return model.eval().requires_grad_(False)


def hugging_face_config(config: ModelConfig, dtype: str = "float32", eos_id: int | None = None) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": None,
        "dtype": dtype,
        "eos_token_id": eos_id,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "max_position_embeddings": config.max_seq_len,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.norm_eps,
        # Transformers 5 reads rope_parameters, earlier versions and other readers rope_theta.
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
    }


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig behind a `config.json` of ours."""
    return ModelConfig(
        vocab_size=values["vocab_size"],
        dim=values["hidden_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=values["num_attention_heads"],
        num_kv_heads=values["num_key_value_heads"],
        ffn_dim=values["intermediate_size"],
        max_seq_len=values["max_position_embeddings"],
        rope_theta=values["rope_theta"],
        norm_eps=values["rms_norm_eps"],
        tied_embeddings=values["tie_word_embeddings"],
    )


def to_hugging_face(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names and fused weights → Hugging Face names and separate weights."""
    weights = {"model.embed_tokens.weight": state["embedding.weight"], "model.norm.weight": state["norm.weight"]}
    if not config.tied_embeddings:
        weights["lm_head.weight"] = state["head.weight"]
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        q, k, v = state[f"{ours}.attention.qkv.weight"].split(_qkv_rows(config))
        gate, up = state[f"{ours}.ffn.gate_up.weight"].chunk(2)
        weights |= {
            f"{theirs}.input_layernorm.weight": state[f"{ours}.attention_norm.weight"],
            f"{theirs}.self_attn.q_proj.weight": q,
            f"{theirs}.self_attn.k_proj.weight": k,
            f"{theirs}.self_attn.v_proj.weight": v,
            f"{theirs}.self_attn.o_proj.weight": state[f"{ours}.attention.out.weight"],
            f"{theirs}.post_attention_layernorm.weight": state[f"{ours}.ffn_norm.weight"],
            f"{theirs}.mlp.gate_proj.weight": gate,
            f"{theirs}.mlp.up_proj.weight": up,
            f"{theirs}.mlp.down_proj.weight": state[f"{ours}.ffn.down.weight"],
        }
    return weights


def from_hugging_face(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_hugging_face`, with both names of a tied embedding."""
    embedding = weights["model.embed_tokens.weight"]
    state = {"embedding.weight": embedding, "norm.weight": weights["model.norm.weight"]}
    state["head.weight"] = embedding if config.tied_embeddings else weights["lm_head.weight"]
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        attention, ffn = f"{theirs}.self_attn", f"{theirs}.mlp"
        state |= {
            f"{ours}.attention_norm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{ours}.attention.qkv.weight": torch.cat([weights[f"{attention}.{p}_proj.weight"] for p in "qkv"]),
            f"{ours}.attention.out.weight": weights[f"{attention}.o_proj.weight"],
            f"{ours}.ffn_norm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
            f"{ours}.ffn.gate_up.weight": torch.cat([weights[f"{ffn}.{p}_proj.weight"] for p in ("gate", "up")]),
            f"{ours}.ffn.down.weight": weights[f"{ffn}.down_proj.weight"],
        }
    return state


def _qkv_rows(config: ModelConfig) -> list[int]:
    return [n * config.head_dim for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
