"""Names the Hugging Face class that computes a dense model, from the choices of its config.
Standard library only."""

from __future__ import annotations

from typing import Any, Literal

from llm_core.config import ConfigError

DenseFamily = Literal["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "gpt_neox"]
"""As `model_type` in `config.json`."""


Choices = Any
"""A `ModelConfig`, whose module imports this one."""

NEOX_PARTS = (("layer", "exact_gelu", "rotary"), ("layer", "gelu", "rotary"))
GEMMA_PARTS = (("offset_rms", "geglu", "rotary"),)


def check_choices(model: Choices) -> None:
    """Raises ConfigError for a choice of one family beside parts of another."""
    frac, head_dim = model.rotary_frac, model.head_dim
    if not 0 < frac <= 1 or int(head_dim * frac) < 2 or int(head_dim * frac) % 2:
        raise ConfigError(
            f"rotary_frac ({frac}) must be above 0, at most 1, and turn an even number of the"
            f" {head_dim} channels of a head; 1 turns all"
        )
    parts = (model.norm, model.ffn, model.positions)
    for name, usual, parts_of, family, start in (
        ("rotary_frac", 1, NEOX_PARTS, "GPT-NeoX", "pythia_160m"),
        ("parallel_residual", False, NEOX_PARTS, "GPT-NeoX", "pythia_160m"),
        ("scaled_embeddings", False, GEMMA_PARTS, "Gemma", "gemma_2b"),
    ):
        value = getattr(model, name)
        if value != usual and parts not in parts_of:
            raise ConfigError(
                f"{name} ({str(value).lower()}) is {family}'s, whose norm, ffn, positions are"
                f" {parts_of[0]}, not {parts}; set {name}={str(usual).lower()}, or start from"
                f" model={start}"
            )


def dense_family(model: Choices) -> DenseFamily:
    """Raises ConfigError for a mixture that no family computes."""
    parts = (model.norm, model.ffn, model.positions)
    biases = (model.qkv_bias, model.out_bias, model.ffn_bias)
    if parts in NEOX_PARTS:
        return _neox(model, parts, biases)
    if parts in GEMMA_PARTS:
        return _gemma(model, biases)
    if parts == ("layer", "gelu", "learned"):
        whole_heads = model.num_kv_heads == model.num_heads and model.attention_dim == model.dim
        narrowed = model.qk_norm or model.rope_scaling or model.window
        if all(biases) and whole_heads and not narrowed:
            return "gpt2"
        raise ConfigError(
            f"norm, ffn, positions {parts} are GPT-2's, which has all three biases,"
            " num_kv_heads as num_heads, heads of dim / num_heads and none of qk_norm,"
            " rope_scaling, window; start from model=gpt2"
        )
    if parts != ("rms", "swiglu", "rotary"):
        raise ConfigError(
            f"norm, ffn, positions {parts} must be (rms, swiglu, rotary), (offset_rms, geglu,"
            " rotary), (layer, gelu, learned) or (layer, exact_gelu, rotary); start from"
            " model=tiny, model=gemma_2b, model=gpt2 or model=pythia_160m"
        )
    return _llama_like(model, biases)


def _neox(
    model: Choices, parts: tuple[str, str, str], biases: tuple[bool, bool, bool]
) -> DenseFamily:
    whole_heads = model.num_kv_heads == model.num_heads and model.attention_dim == model.dim
    other = model.qk_norm or model.window
    if model.ffn_bias and model.qkv_bias == model.out_bias and whole_heads and not other:
        return "gpt_neox"
    raise ConfigError(
        f"norm, ffn, positions {parts} are GPT-NeoX's, which has ffn_bias, qkv_bias = out_bias"
        f" (biases are {biases}), num_kv_heads as num_heads, heads of dim / num_heads and none of"
        " qk_norm, window; start from model=pythia_160m"
    )


def _gemma(model: Choices, biases: tuple[bool, bool, bool]) -> DenseFamily:
    same_biases = model.qkv_bias == model.out_bias and not model.ffn_bias
    if model.scaled_embeddings and same_biases and not model.qk_norm and not model.window:
        return "gemma"
    raise ConfigError(
        "norm offset_rms with ffn geglu is Gemma's, which has scaled_embeddings, qkv_bias ="
        f" out_bias and no ffn_bias (biases are {biases}), and none of qk_norm, window; start from"
        " model=gemma_2b"
    )


def _llama_like(model: Choices, biases: tuple[bool, bool, bool]) -> DenseFamily:
    if model.qk_norm and not model.ffn_bias and model.qkv_bias == model.out_bias:
        return "qwen3"
    if biases == (True, False, False) and not model.qk_norm:
        return "qwen2"
    if model.qkv_bias == model.out_bias and not model.qk_norm and not model.window:
        return "llama"
    if not any(biases) and not model.qk_norm and not model.full_layers:
        return "mistral"
    raise ConfigError(
        f"qkv_bias, out_bias, ffn_bias {biases} with qk_norm {model.qk_norm}, window"
        f" {model.window}, full_layers {list(model.full_layers)} is neither Llama (qkv_bias ="
        " out_bias, no qk_norm, no window), Mistral (a window in every layer, no biases, no"
        " qk_norm), Qwen 2 (qkv_bias alone) nor Qwen 3 (qk_norm, qkv_bias = out_bias, no"
        " ffn_bias); choose one of these"
    )
