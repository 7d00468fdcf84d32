"""Tiny random models of transformers, one of every family that is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

LLAMA3_ROPE = {
    "rope_theta": 5000.0,
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {
    "rope_theta": 5000.0,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
SIZES = {
    "vocab_size": 51,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
NEOX = {n: value for n, value in SIZES.items() if n != "num_key_value_heads"}
GPT2 = {"vocab_size": 51, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
GLM = SIZES | {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
    "partial_rotary_factor": 1.0,
    "head_dim": 8,
    "num_mtp_layers": 0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES | {"tie_word_embeddings": False}),
    "llama 3 rope": (
        "llama",
        SIZES | {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama with yarn": ("llama", SIZES | {"rope_parameters": YARN_ROPE}),
    "llama with two scales": (
        "llama",
        SIZES
        | {
            "rope_parameters": YARN_ROPE
            | {"mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 6.0, "truncate": False}
        },
    ),
    "llama with biases": (
        "llama",
        SIZES | {"attention_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
    "qwen 2": ("qwen2", SIZES | {"tie_word_embeddings": False}),
    "qwen 3": ("qwen3", SIZES | {"tie_word_embeddings": True, "head_dim": 16}),
    "mistral": ("mistral", SIZES | {"tie_word_embeddings": False, "sliding_window": 7}),
    "mistral without a window": ("mistral", SIZES | {"sliding_window": None}),
    "qwen 2 with windows": (
        "qwen2",
        SIZES | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen 3 with windows": (
        "qwen3",
        SIZES
        | {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma": ("gemma", SIZES | {"head_dim": 12}),
    "gemma with yarn, biases and one key head": (
        "gemma",
        SIZES
        | {
            "head_dim": 8,
            "num_key_value_heads": 1,
            "rope_parameters": YARN_ROPE,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gpt neox": ("gpt_neox", NEOX),
    "gpt neox, one after the other": (
        "gpt_neox",
        NEOX
        | {
            "use_parallel_residual": False,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": YARN_ROPE | {"partial_rotary_factor": 0.5},
        },
    ),
    "gpt 2": ("gpt2", GPT2),
    "gpt 2 untied": ("gpt2", GPT2 | {"tie_word_embeddings": False, "n_inner": 40}),
}
EXPERT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", EXPERTS | {"num_local_experts": 4, "head_dim": 12}),
    "mixtral with a window": ("mixtral", EXPERTS | {"num_local_experts": 4, "sliding_window": 7}),
    "qwen 2 moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 24}),
    "qwen 2 moe, normalised": (
        "qwen2_moe",
        EXPERTS
        | {"shared_expert_intermediate_size": 40, "norm_topk_prob": True, "qkv_bias": False},
    ),
    "qwen 3 moe": ("qwen3_moe", EXPERTS | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen 3 moe, normalised": (
        "qwen3_moe",
        EXPERTS | {"norm_topk_prob": True, "attention_bias": True, "num_experts_per_tok": 3},
    ),
    "glm 4.5": ("glm4_moe", GLM | {"routed_scaling_factor": 2.5}),
    "glm 4.5 with normed heads": (
        "glm4_moe",
        GLM | {"n_shared_experts": 1, "use_qk_norm": True, "attention_bias": True},
    ),
}


def reference(case: str, folder: Path, max_shard_size: str = "1GB") -> Any:
    """A random model of transformers, saved to `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family, values = (CASES | EXPERT_CASES)[case]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values)).eval()
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # initial biases are zeros and norms ones, which hides mistakes
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.add_(torch.randn_like(bias) * 0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def random_ids() -> torch.Tensor:
    return torch.randint(0, 51, (2, 40), generator=torch.Generator().manual_seed(1))
