"""Which Hugging Face model is ours, and which of its tensors is which of ours? Llama, Qwen 2 and 3, GPT-2.

Pure translation of `config.json` and of names, both ways; files are the business of `llm_core.export`. Fused weights are split
on the way out and joined on the way in, GPT-2's transposed; values are copies, so both sides compute the same logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig, RopeScaling
from llm_core.model.fused import join_gate_up, join_qkv, split_gate_up, split_qkv
from llm_core.model.transformer import Transformer

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gpt2": "GPT2LMHeadModel"}

GPT2_FIXED = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
}
"""Settings of GPT-2 that we compute in this one way."""


def hugging_face_config(config: ModelConfig, dtype: str = "float32", eos_id: int | None = None) -> dict[str, Any]:
    """The `config.json` of a model of ours."""
    common = {
        "architectures": [CLASSES[config.family]],
        "bos_token_id": None,
        "dtype": dtype,
        "eos_token_id": eos_id,
        "model_type": config.family,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
    }
    if config.family == "gpt2":
        dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        sizes = {"n_embd": config.dim, "n_layer": config.num_layers, "n_head": config.num_heads, "n_inner": config.ffn_dim}
        return common | dropouts | sizes | GPT2_FIXED | {"n_positions": config.max_seq_len, "layer_norm_epsilon": config.norm_eps}
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_max_seq_len,
        }
    values = common | {
        "attention_bias": config.qkv_bias,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "max_position_embeddings": config.max_seq_len,
        "mlp_bias": config.ffn_bias,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.norm_eps,
        # Transformers 5 reads rope_parameters, earlier versions and other readers rope_theta and rope_scaling.
        "rope_parameters": {"rope_theta": config.rope_theta} | rope,
        "rope_theta": config.rope_theta,
    }
    return values | ({"rope_scaling": rope} if config.rope_scaling else {})


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig that computes what a `config.json` describes. Raises ConfigError where there is none."""
    family = values.get("model_type")
    if family not in CLASSES:
        raise ConfigError(f"model_type ({family}) is not a model computed here; give one of {', '.join(CLASSES)}")
    return _gpt2_config(values) if family == "gpt2" else _llama_config(family, values)


def _gpt2_config(values: Mapping[str, Any]) -> ModelConfig:
    for name, fixed in GPT2_FIXED.items():
        _require(name, values.get(name, fixed), fixed)
    return ModelConfig(
        vocab_size=values["vocab_size"],
        dim=values["n_embd"],
        num_layers=values["n_layer"],
        num_heads=values["n_head"],
        num_kv_heads=values["n_head"],
        ffn_dim=values.get("n_inner") or 4 * values["n_embd"],
        max_seq_len=values["n_positions"],
        norm_eps=values.get("layer_norm_epsilon", 1e-5),
        tied_embeddings=values.get("tie_word_embeddings", True),
        norm="layer",
        ffn="gelu",
        positions="learned",
        qkv_bias=True,
        out_bias=True,
        ffn_bias=True,
    )


def _llama_config(family: str, values: Mapping[str, Any]) -> ModelConfig:
    _require("hidden_act", values.get("hidden_act", "silu"), "silu")
    if family != "llama":
        _require("use_sliding_window", values.get("use_sliding_window", False), False)
    rope = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    heads, dim = values["num_attention_heads"], values["hidden_size"]
    head_dim = values.get("head_dim") or (128 if family == "qwen3" else dim // heads)
    attention_bias = values.get("attention_bias", False)
    return ModelConfig(
        vocab_size=values["vocab_size"],
        dim=dim,
        num_layers=values["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=values.get("num_key_value_heads") or heads,
        ffn_dim=values["intermediate_size"],
        max_seq_len=values["max_position_embeddings"],
        rope_theta=float(rope.get("rope_theta") or values.get("rope_theta", 10000.0)),
        norm_eps=values.get("rms_norm_eps", 1e-6),
        tied_embeddings=values.get("tie_word_embeddings", False),
        own_head_dim=0 if head_dim * heads == dim else head_dim,
        qkv_bias=family == "qwen2" or attention_bias,
        out_bias=family != "qwen2" and attention_bias,
        ffn_bias=family == "llama" and values.get("mlp_bias", False),
        qk_norm=family == "qwen3",
        rope_scaling=_rope_scaling(rope),
    )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(
            f"rope_type ({kind}) must be default or llama3; other ways to scale rotary positions are not computed here"
        )
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_seq_len=int(rope["original_max_position_embeddings"]),
    )


def _require(name: str, value: object, fixed: object) -> None:
    if value != fixed:
        raise ConfigError(f"{name} ({value}) must be {fixed}, the one way computed here; give another model")


def to_hugging_face(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names and fused weights → Hugging Face names and separate weights."""
    if config.family == "gpt2":
        weights = {theirs: _turn(theirs, _straight(config, ours, state[ours])) for ours, theirs in _gpt2_names(config).items()}
    else:
        weights = {theirs: state[ours] for ours, theirs in _llama_names(config).items()}
        for ours, parts in _fused(config).items():
            weights |= zip(parts, _parts(config, ours, state[ours]), strict=True)
    return weights | ({} if config.tied_embeddings else {"lm_head.weight": state["head.weight"]})


def from_hugging_face(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_hugging_face`, with both names of a tied embedding.

    Raises ConfigError for tensors that are missing, left over or of another shape.
    """
    if config.family == "gpt2":
        # The published files leave out the first name, and hold causal masks.
        bare = {
            n.removeprefix("transformer."): w for n, w in weights.items() if not n.endswith((".attn.bias", ".attn.masked_bias"))
        }
        weights = {n if n.startswith("lm_head") else f"transformer.{n}": w for n, w in bare.items()}
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in to_hugging_face(config, Transformer(config).state_dict()).items()}
    odd = sorted(wanted.keys() ^ (weights.keys() - ({"lm_head.weight"} if config.tied_embeddings else set())))
    if odd:
        verb = "is missing" if odd[0] in wanted else "is not part of such a model"
        rule = f"{len(odd)} tensors differ from a {config.family} of {config.num_layers} layers"
        raise ConfigError(f"{odd[0]} {verb} ({rule}); give the folder of one whole model")
    for name, shape in wanted.items():
        if weights[name].shape != shape:
            raise ConfigError(f"{name} is {tuple(weights[name].shape)}, its config.json says {tuple(shape)}; fetch it again")
    plain = _gpt2_names(config) if config.family == "gpt2" else _llama_names(config)
    fused = {} if config.family == "gpt2" else _fused(config)
    if config.family == "gpt2":
        state = {ours: _grouped(config, ours, _turn(theirs, weights[theirs])) for ours, theirs in plain.items()}
    else:
        state = {ours: weights[theirs] for ours, theirs in plain.items()}
    state |= {ours: _join(config, ours, [weights[name] for name in parts]) for ours, parts in fused.items()}
    return state | {"head.weight": state["embedding.weight"] if config.tied_embeddings else weights["lm_head.weight"]}


def _turn(theirs: str, weight: Tensor) -> Tensor:
    """GPT-2 keeps the matrices of its blocks as (in, out), we and its embeddings as (out, in)."""
    return weight.t() if weight.ndim == 2 and ".h." in theirs else weight


def _parts(config: ModelConfig, ours: str, fused: Tensor) -> tuple[Tensor, ...]:
    return split_qkv(config, fused) if ".qkv." in ours else split_gate_up(config, fused)


def _join(config: ModelConfig, ours: str, parts: Sequence[Tensor]) -> Tensor:
    return join_qkv(config, *parts) if ".qkv." in ours else join_gate_up(config, *parts)


def _straight(config: ModelConfig, ours: str, weight: Tensor) -> Tensor:
    """GPT-2 fuses queries, keys and values as we do, but all heads of one kind after another."""
    return torch.cat(split_qkv(config, weight)) if ".qkv." in ours else weight


def _grouped(config: ModelConfig, ours: str, weight: Tensor) -> Tensor:
    return join_qkv(config, *weight.chunk(3)) if ".qkv." in ours else weight


def _gpt2_names(config: ModelConfig) -> dict[str, str]:
    names = {"embedding": "wte", "positions": "wpe"}
    found = {f"{ours}.weight": f"transformer.{theirs}.weight" for ours, theirs in names.items()}
    parts = {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj"}
    parts |= {"ffn_norm": "ln_2", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    for end in ("weight", "bias"):
        found[f"norm.{end}"] = f"transformer.ln_f.{end}"
        for layer in range(config.num_layers):
            found |= {f"blocks.{layer}.{ours}.{end}": f"transformer.h.{layer}.{theirs}.{end}" for ours, theirs in parts.items()}
    return found


def _llama_names(config: ModelConfig) -> dict[str, str]:
    parts = {"attention_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight"}
    parts |= {"attention.out.weight": "self_attn.o_proj.weight", "ffn.down.weight": "mlp.down_proj.weight"}
    parts |= {"attention.out.bias": "self_attn.o_proj.bias"} if config.out_bias else {}
    parts |= {"ffn.down.bias": "mlp.down_proj.bias"} if config.ffn_bias else {}
    parts |= {f"attention.{n}_norm.weight": f"self_attn.{n}_norm.weight" for n in "qk"} if config.qk_norm else {}
    found = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    for layer in range(config.num_layers):
        found |= {f"blocks.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in parts.items()}
    return found


def _fused(config: ModelConfig) -> dict[str, list[str]]:
    """Our fused tensor → the Hugging Face tensors in it."""
    found = {}
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        for end in ("weight", *(["bias"] if config.qkv_bias else [])):
            found[f"{ours}.attention.qkv.{end}"] = [f"{theirs}.self_attn.{n}_proj.{end}" for n in "qkv"]
        for end in ("weight", *(["bias"] if config.ffn_bias else [])):
            found[f"{ours}.ffn.gate_up.{end}"] = [f"{theirs}.mlp.{n}_proj.{end}" for n in ("gate", "up")]
    return found
