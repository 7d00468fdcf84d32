"""A model of experts made from a dense one begins with the answers of the dense model."""

import dataclasses
from pathlib import Path

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model, read_weights
from llm_core.huggingface.upcycling import read_initial_weights
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.transformer import Transformer
from tasks.training.initial_model import initial_model_files
from tests.support.engine.small_runs import MODEL, VOCAB_SIZE
from tests.support.engine.uneven_model import make_model

IDS = torch.arange(VOCAB_SIZE).view(3, -1)
CHOICES = {
    "mixtral": ExpertsConfig(4, 2),
    "glm4_moe": ExpertsConfig(4, 3, score="sigmoid", shared_dim=MODEL.ffn_dim, bias_rate=0.01),
    "qwen2_moe": ExpertsConfig(4, 2, shared_dim=32, shared_gate=True),
}


def save_dense(folder: Path) -> Path:
    export_model(MODEL, make_model(MODEL, 3).state_dict(), folder)
    return folder


@pytest.mark.parametrize("experts", CHOICES.values(), ids=CHOICES)
def test_the_first_logits_are_those_of_the_dense_model(
    experts: ExpertsConfig, tmp_path: Path
) -> None:
    folder, config = save_dense(tmp_path / "dense"), dataclasses.replace(MODEL, experts=experts)
    assert initial_model_files(folder, config)
    weights = read_initial_weights(folder, config, seed=5)
    made = Transformer(config).double()
    made.load_state_dict(dict(weights))
    dense_BSV = load_model(folder, torch.float64)(IDS)
    assert (made(IDS) - dense_BSV).abs().max() < 1e-12
    # Experts are alike, and routers are not: each token learns for the ones it is sent to.
    router = weights["blocks.0.ffn.router.weight"]
    assert not torch.equal(router, weights["blocks.1.ffn.router.weight"])
    assert not torch.equal(
        router, read_initial_weights(folder, config, seed=6)["blocks.0.ffn.router.weight"]
    )


@pytest.mark.parametrize("name", ["gate_up", "down", "router"])
def test_any_rows_are_those_of_the_whole_weight(name: str, tmp_path: Path) -> None:
    folder = save_dense(tmp_path / "dense")
    config = dataclasses.replace(MODEL, experts=CHOICES["mixtral"])
    weights = read_initial_weights(folder, config, seed=5)
    full = f"blocks.1.ffn.{'experts.' if name != 'router' else ''}{name}.weight"
    for rows in (slice(1, 3), slice(len(weights[full]) - 2, None)):
        assert torch.equal(weights.rows(full, rows), weights[full][rows])


def test_a_model_with_experts_is_read_as_it_is(tmp_path: Path) -> None:
    config = dataclasses.replace(MODEL, experts=CHOICES["mixtral"])
    export_model(config, make_model(config, 3).state_dict(), tmp_path)
    there, found = read_weights(tmp_path, config), read_initial_weights(tmp_path, config, seed=5)
    assert all(torch.equal(found[name], there[name]) for name in there)


def test_an_upcycled_model_may_grow(tmp_path: Path) -> None:
    folder = save_dense(tmp_path / "dense")
    config = dataclasses.replace(MODEL, experts=CHOICES["mixtral"], vocab_size=VOCAB_SIZE + 5)
    weights = read_initial_weights(folder, config, seed=5, grows=True)
    assert len(weights["embedding.weight"]) == VOCAB_SIZE + 5


@pytest.mark.parametrize("change", [{"normalised": False}, {"score": "sigmoid", "scale": 2.5}])
def test_gates_that_do_not_sum_to_1_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    folder, config = save_dense(tmp_path / "dense"), _with_experts(change)
    with pytest.raises(ConfigError, match=r"normalised and scale are .*set model.experts.norm"):
        initial_model_files(folder, config)


def test_another_width_is_refused(tmp_path: Path) -> None:
    folder = save_dense(tmp_path / "dense")
    config = dataclasses.replace(MODEL, experts=CHOICES["mixtral"], ffn_dim=24)
    with pytest.raises(ConfigError, match=r"model.ffn_dim \(24\) must be 48"):
        initial_model_files(folder, config)


def _with_experts(change: dict[str, object]) -> ModelConfig:
    values = {"number": 4, "top_k": 2, "qk": True} | change
    qk_norm = bool(values.pop("qk")) and "score" not in change
    experts = ExpertsConfig(**values)  # type: ignore[arg-type]
    return dataclasses.replace(MODEL, experts=experts, qk_norm=qk_norm)
