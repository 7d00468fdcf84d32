"""Translates what `config.json` says of experts: Mixtral, Qwen 2 and 3 MoE, GLM 4.5.

Every layer must have experts: dense layers among them are refused, as are groups of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig

EXPERT_CLASSES = {
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}
FIXED: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen2_moe": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3_moe": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "glm4_moe": {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1},
}
"""Settings that are computed in this one way."""
DEFAULTS: dict[str, Any] = {"first_k_dense_replace": 1}
"""Defaults of transformers that differ from these."""
WAY_OUT = "give another model"


def expert_values(config: ModelConfig, experts: ExpertsConfig) -> dict[str, Any]:
    """What `config.json` has besides the values of dense models."""
    family = config.family
    found = FIXED[family] | {"num_experts_per_tok": experts.top_k}
    if family == "mixtral":
        return found | {"num_local_experts": experts.number, **_losses(experts)}
    found |= {"moe_intermediate_size": config.ffn_dim, "norm_topk_prob": experts.normalised}
    if family == "glm4_moe":
        return found | {
            "n_routed_experts": experts.number,
            "n_shared_experts": experts.shared_dim // config.ffn_dim,
            "routed_scaling_factor": experts.scale,
            "use_qk_norm": config.qk_norm,
            "partial_rotary_factor": 1.0,
            "num_nextn_predict_layers": 0,
        }
    found |= {"num_experts": experts.number, "use_sliding_window": False, **_losses(experts)}
    if family == "qwen2_moe":
        found["shared_expert_intermediate_size"] = experts.shared_dim
        found["qkv_bias"] = config.qkv_bias
    return found


def _losses(experts: ExpertsConfig) -> dict[str, Any]:
    """For readers that train further. Their loss is of a whole batch, and top_k times as large."""
    return {"router_aux_loss_coef": experts.balance_loss, "output_router_logits": False}


def with_experts(family: str, values: Mapping[str, Any], model: ModelConfig) -> ModelConfig:
    """The model of a `config.json` with experts in place of its feed-forwards. Raises
    ConfigError for what is not computed here."""
    for name, fixed in FIXED[family].items():
        found = values.get(name, DEFAULTS.get(name, fixed))
        if found != fixed:
            raise ConfigError(
                f"{name} ({str(found)[:80]}) must be {fixed}, the one way computed here; {WAY_OUT}"
            )
    if family == "glm4_moe":
        name, rope = "partial_rotary_factor", values.get("rope_parameters", {})
        part = values.get(name, rope.get(name, 0.5))  # transformers' default
        if part != 1:
            raise ConfigError(f"{name} ({part}) must be 1, the one way computed here; {WAY_OUT}")
    top_k = values["num_experts_per_tok"]
    if family == "mixtral":
        return replace(model, experts=ExpertsConfig(values["num_local_experts"], top_k))
    inner, normalised = values["moe_intermediate_size"], values.get("norm_topk_prob", False)
    if family == "glm4_moe":
        experts = ExpertsConfig(
            values["n_routed_experts"],
            top_k,
            score="sigmoid",
            normalised=values.get("norm_topk_prob", True),
            scale=values.get("routed_scaling_factor", 1.0),
            shared_dim=_shared(values) * inner,
        )
        return replace(
            model,
            ffn_dim=inner,
            experts=experts,
            qk_norm=values.get("use_qk_norm", False),
            out_bias=False,
        )
    number = values["num_experts" if "num_experts" in values else "num_local_experts"]
    experts = ExpertsConfig(number, top_k, normalised=normalised)
    if family == "qwen3_moe":
        return replace(model, ffn_dim=inner, qk_norm=True, experts=experts)
    experts = replace(
        experts, shared_dim=values["shared_expert_intermediate_size"], shared_gate=True
    )
    biased = values.get("qkv_bias", True)
    return replace(model, ffn_dim=inner, qkv_bias=biased, out_bias=False, experts=experts)


def _shared(values: Mapping[str, Any]) -> int:
    number = values.get("n_shared_experts", 1)
    if type(number) is not int or not 0 <= number <= 1 << 12:
        raise ConfigError(
            f"n_shared_experts ({str(number)[:20]}) must be a whole number from 0 to {1 << 12:,};"
            " give the config.json of a Hugging Face model"
        )
    return number
