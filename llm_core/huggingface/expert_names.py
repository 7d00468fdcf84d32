"""Names the tensors of experts in Hugging Face models, within a block.

These are the names in files, which have three tensors for each expert. In memory, transformers
keeps the experts of a layer in two tensors.
"""

from __future__ import annotations

from llm_core.model.config import ModelConfig

ROOT = {
    "mixtral": "block_sparse_moe",
    "qwen2_moe": "mlp",
    "qwen3_moe": "mlp",
    "glm4_moe": "mlp",
}
GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"
SHARED = {"qwen2_moe": "mlp.shared_expert", "glm4_moe": "mlp.shared_experts"}
BIAS = ".gate.e_score_correction_bias"
"""End of the name of a bias, which is float32 in every file."""


def plain_names(config: ModelConfig) -> dict[str, str]:
    """Our name within a block → theirs, of tensors that are one on both sides."""
    experts, family = config.experts, config.family
    assert experts is not None
    found = {"ffn.router.weight": f"{ROOT[family]}.gate.weight"}
    if experts.has_bias:
        found["ffn.router.bias"] = f"{ROOT[family]}{BIAS}"
    if experts.shared_dim:
        found["ffn.shared.down.weight"] = f"{SHARED[family]}.{DOWN}.weight"
    if experts.shared_gate:
        found["ffn.shared_gate.weight"] = "mlp.shared_expert_gate.weight"
    return found


def stacked_names(config: ModelConfig) -> dict[str, list[str]]:
    """Our name within a block → theirs, of the tensors stacked or joined in it."""
    experts, family = config.experts, config.family
    assert experts is not None
    gate, up, down = ("w1", "w3", "w2") if family == "mixtral" else (GATE, UP, DOWN)
    each = [f"{ROOT[family]}.experts.{number}" for number in range(experts.number)]
    found = {
        "ffn.experts.gate_up.weight": [f"{one}.{n}.weight" for one in each for n in (gate, up)],
        "ffn.experts.down.weight": [f"{one}.{down}.weight" for one in each],
    }
    if experts.shared_dim:
        shared = SHARED[family]
        found["ffn.shared.gate_up.weight"] = [f"{shared}.{n}.weight" for n in (GATE, UP)]
    return found
