"""Translates the `config.json` of Hugging Face models to ours and back: Llama, Mistral, Qwen 2, 3,
Gemma and GPT-2. `expert_config` translates what is said of experts, `neox_config` GPT-NeoX's.

Pure translation of `config.json`, both ways. Settings that change the logits in a way not computed
here are refused, never passed over; values of a file that others wrote are looked at before
anything is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_core.config import ConfigError, build
from llm_core.huggingface.checked_values import AMOUNTS, GROUPS, check_values, require
from llm_core.huggingface.expert_config import EXPERT_CLASSES, expert_values, with_experts
from llm_core.huggingface.neox_config import neox_config, neox_values
from llm_core.huggingface.sparse import sparse_values, without_patterns
from llm_core.model.config import ModelConfig, RopeScaling

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    **EXPERT_CLASSES,
}

GPT2_FIXED = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
}
"""Settings of GPT-2 that we compute in this one way."""
ACTIVATIONS = {"gemma": ("gelu_pytorch_tanh", "gelu_new", "gelu")}
"""Names of the activation that stands in the gate, the first of which is written; of others silu.
Early files of Gemma say gelu and mean its tanh form, as transformers does."""
MISTRAL_WINDOW = 4096
"""Where the file has no word of it, as in transformers; null means none."""
WINDOWED, FULL = "sliding_attention", "full_attention"


def hugging_face_config(
    config: ModelConfig,
    dtype: str = "float32",
    eos_id: int | None = None,
    turn_end_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """The `config.json` of a model of ours. turn_end_ids: end an answer as `eos_id` does."""
    common = {
        "architectures": [CLASSES[config.family]],
        "bos_token_id": eos_id,  # a document starts from the end of the one before it
        "dtype": dtype,
        "eos_token_id": [eos_id, *turn_end_ids] if turn_end_ids else eos_id,
        "model_type": config.family,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
    } | sparse_values(config)
    if config.family == "gpt2":
        dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        sizes = {
            "n_embd": config.dim,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "n_inner": config.ffn_dim,
            "n_positions": config.max_seq_len,
            "layer_norm_epsilon": config.norm_eps,
        }
        return common | dropouts | sizes | GPT2_FIXED
    rope = {"rope_theta": config.rope_theta} | _rope_values(config.rope_scaling)
    if config.family == "gpt_neox":
        return common | neox_values(config, rope)
    values = common | {
        "attention_bias": config.qkv_bias,
        "head_dim": config.head_dim,
        "hidden_act": ACTIVATIONS.get(config.family, ("silu",))[0],
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "max_position_embeddings": config.max_seq_len,
        "mlp_bias": config.ffn_bias,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.norm_eps,
        # Transformers 5 reads rope_parameters, earlier versions and other readers rope_theta and
        # rope_scaling.
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
    }
    if config.experts is not None:
        values |= expert_values(config, config.experts)
    if config.rope_scaling:
        values["rope_scaling"] = _rope_values(config.rope_scaling)
    return values | _window_values(config)


def _rope_values(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    found: dict[str, Any] = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_seq_len,
    }
    names = ["low_freq_factor", "high_freq_factor"]
    if scaling.kind == "yarn":
        names = ["beta_fast", "beta_slow"] + ["attention_factor"] * (scaling.attention_factor > 0)
        found["truncate"] = scaling.whole_channels
    return found | {name: getattr(scaling, name) for name in names}


def _window_values(config: ModelConfig) -> dict[str, Any]:
    if config.family == "mixtral":
        return {"sliding_window": config.window or None}
    if config.family == "mistral":
        return {"sliding_window": config.window}
    if not config.window:
        return {}
    return {
        "use_sliding_window": True,
        "sliding_window": config.window,
        # For readers that know no list; they have full layers before all others.
        "max_window_layers": len(config.full_layers),
        "layer_types": [WINDOWED if one.window else FULL for one in config.patterns],
    }


def model_config(found: Any) -> ModelConfig:
    """The ModelConfig of a `config.json`. Raises ConfigError where there is none."""
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"a {type(found).__name__} is not a mapping of names to values; give the config.json of"
            " a Hugging Face model"
        )
    found, attention = without_patterns(found)
    values = {name: value for name, value in found.items() if value is not None}
    if str(values.get("model_type")) in EXPERT_CLASSES and values.get("sliding_window") == 0:
        del values["sliding_window"]  # Qwen 2 writes 0 for no window
    check_values(values)
    if "quantization_config" in values:
        raise ConfigError(
            "quantization_config says that the weights are quantized; give the original model"
        )
    family = values.get("model_type")
    if family not in CLASSES:
        raise ConfigError(
            f"model_type ({family}) is not a model computed here; give one of {', '.join(CLASSES)}"
        )
    if family == "mistral" and "sliding_window" not in found:
        values["sliding_window"] = MISTRAL_WINDOW
    if family == "gpt_neox":
        rope = _rope(values, is_partial=True)
        scaling = _rope_scaling(rope, values["max_position_embeddings"])
        dense = neox_config(values, rope, scaling)
    else:
        dense = _gpt2_config(values) if family == "gpt2" else _llama_config(family, values)
    return replace(dense, attention=attention)


def _gpt2_config(values: Mapping[str, Any]) -> ModelConfig:
    for name, fixed in GPT2_FIXED.items():
        require(name, values.get(name, fixed), fixed)
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
    is_gemma, known = family == "gemma", ACTIVATIONS.get(family, ("silu",))
    found = values.get("hidden_activation", values.get("hidden_act", known[0]))
    require("hidden_act", known[0] if found in known else found, known[0])
    require("use_bidirectional_attention", values.get("use_bidirectional_attention", False), False)
    rope = _rope(values)
    window, full_layers = _windows(family, values)
    heads, dim = values["num_attention_heads"], values["hidden_size"]
    # Transformers' defaults for Qwen 3 and Gemma do not follow from the width.
    head_dim = values.get("head_dim") or {"qwen3": 128, "gemma": 256}.get(family, dim // heads)
    attention_bias = values.get("attention_bias", False)
    model = ModelConfig(
        vocab_size=values["vocab_size"],
        dim=dim,
        num_layers=values["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=values.get("num_key_value_heads") or heads,
        ffn_dim=values["intermediate_size"],
        max_seq_len=values["max_position_embeddings"],
        rope_theta=float(rope.get("rope_theta") or values.get("rope_theta", 10000.0)),
        norm_eps=values.get("rms_norm_eps", 1e-6),
        tied_embeddings=values.get("tie_word_embeddings", is_gemma),
        norm="offset_rms" if is_gemma else "rms",
        ffn="geglu" if is_gemma else "swiglu",
        scaled_embeddings=is_gemma,
        own_head_dim=0 if head_dim * heads == dim else head_dim,
        qkv_bias=family == "qwen2" or attention_bias,
        out_bias=family != "qwen2" and attention_bias,
        ffn_bias=family == "llama" and values.get("mlp_bias", False),
        qk_norm=family == "qwen3",
        rope_scaling=_rope_scaling(rope, values["max_position_embeddings"]),
        window=window,
        full_layers=full_layers,
    )
    return with_experts(family, values, model) if family in EXPERT_CLASSES else model


def _windows(family: str, values: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """(window, layers without one). Raises ConfigError."""
    window, num_layers = values.get("sliding_window", 0), values["num_hidden_layers"]
    if family in ("mistral", "mixtral"):
        return window, ()
    if family in ("llama", "gemma") or not values.get("use_sliding_window", False) or not window:
        return 0, ()
    types = values.get("layer_types")
    if types is None:
        # Transformers' default is that of the published Qwen 2.
        types = [FULL] * min(values.get("max_window_layers", 28), num_layers)
        types += [WINDOWED] * (num_layers - len(types))
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or not all(kind in (WINDOWED, FULL) for kind in types)
    ):
        raise ConfigError(
            f"layer_types ({str(types)[:80]}) must name {WINDOWED} or {FULL} for each of"
            f" {num_layers} layers; give another model"
        )
    full = tuple(layer for layer, kind in enumerate(types) if kind == FULL)
    return (0, ()) if len(full) == num_layers else (window, full)


def _rope(values: Mapping[str, Any], is_partial: bool = False) -> dict[str, Any]:
    """Rotary settings of a `config.json`, by the new name, the old one, or both if they agree.

    is_partial: for a family of which some channels may stay.
    """
    new, old = ({n: v for n, v in values.get(name, {}).items() if v is not None} for name in GROUPS)
    kinds = [rope.get("rope_type", rope.get("type", "default")) for rope in (new, old)]
    if new and old and kinds[0] != kinds[1]:
        raise ConfigError(
            f"rope_parameters ({kinds[0]}) and rope_scaling ({kinds[1]}) must not differ; drop the"
            " wrong one"
        )
    rope = old | new
    check_values({name: rope[name] for name in AMOUNTS if name in rope})
    name = "partial_rotary_factor"
    if not is_partial:
        require(name, values.get(name, rope.get(name, 1.0)), 1.0)
    return rope


def _rope_scaling(rope: Mapping[str, Any], max_seq_len: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("llama3", "yarn"):
        raise ConfigError(
            f"rope_type ({kind}) must be default, llama3 or yarn; other ways to scale rotary"
            " positions are not computed here"
        )
    # Transformers' default where the file does not say it.
    original = rope.get("original_max_position_embeddings", max_seq_len)
    found = {"kind": kind, "original_max_seq_len": original}
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        return build(RopeScaling, found | {name: rope[name] for name in names}, "rope_parameters")
    names = ("beta_fast", "beta_slow", "attention_factor")
    found |= {name: rope[name] for name in names if name in rope}
    found["whole_channels"] = rope.get("truncate", True)
    scaling = build(RopeScaling, found | {"factor": rope["factor"]}, "rope_parameters")
    if "attention_factor" in rope or not rope.get("mscale") or not rope.get("mscale_all_dim"):
        return scaling
    # DeepSeek's two scales of what YaRN has one of.
    one, other = (
        1 + (scaling.head_scale - 1) * rope[name] for name in ("mscale", "mscale_all_dim")
    )
    return replace(scaling, attention_factor=one / other)
