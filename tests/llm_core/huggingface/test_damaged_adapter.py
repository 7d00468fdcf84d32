"""An adapter of PEFT that is damaged, of another model or of another kind is refused in one line,
whether it is merged or trained further."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.adapter import adapted_as_in, base_of, read_adapter, write_adapter
from llm_core.huggingface.export import load_model
from llm_core.model.adapter import AdaptedModelConfig, AdapterConfig, adapted, is_factor
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from tests.support.engine.small_runs import MODEL

LORA = AdapterConfig("lora", 3, 6.0)
QUERIES = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
Change = Callable[[dict[str, Tensor]], object]


def written(folder: Path) -> AdaptedModelConfig:
    config = adapted(MODEL, LORA)
    assert isinstance(config, AdaptedModelConfig)
    draw = torch.Generator().manual_seed(0)
    shapes = {name: one.shape for name, one in Transformer(config).named_parameters()}
    factors = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    write_adapter(folder, config, {n: f for n, f in factors.items() if is_factor(n)}, None)
    return config


def refused(folder: Path, config: AdaptedModelConfig, says: str, model: ModelConfig) -> None:
    """Both ways in say the same."""
    with pytest.raises(ConfigError, match=says):
        read_adapter(folder, config)
    with pytest.raises(ConfigError, match=says):
        read_adapter(folder, adapted_as_in(folder, model))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("r", 0, r"adapter_config\.json: r \(0\)"),
        ("r", -4, r"adapter_config\.json: r \(-4\)"),
        ("lora_alpha", 0, r"adapter_config\.json: lora_alpha \(0\)"),
        ("lora_alpha", float("nan"), r"adapter_config\.json: lora_alpha \(nan\)"),
        ("use_rslora", "false", r"use_rslora \(false\) must be true or false"),
        ("use_qalora", True, "use_qalora"),
        ("kasa_config", {"beta": 1}, "kasa_config"),
        ("init_lora_weights", "pissa", r"init_lora_weights \(pissa\) changes the frozen model"),
        ("init_lora_weights", "loftq", r"init_lora_weights \(loftq\) changes the frozen model"),
    ],
)
def test_a_setting_of_another_result_is_refused_by_its_name_in_the_file(
    name: str, value: Any, says: str, tmp_path: Path
) -> None:
    config, file = written(tmp_path), tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {name: value}), "utf-8")
    refused(tmp_path, config, says, MODEL)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found.pop(f"{QUERIES}A.weight"), "lora_A.weight is missing beside"),
        (lambda found: found.pop(f"{QUERIES}B.weight"), "lora_B.weight is missing beside"),
        (lambda found: found[f"{QUERIES}B.weight"].fill_(torch.nan), "NaN or infinity"),
        (lambda found: found[f"{QUERIES}A.weight"][0, 1].fill_(torch.inf), "NaN or infinity"),
    ],
)
def test_factors_that_are_missing_or_no_numbers_are_refused(
    change: Change, says: str, tmp_path: Path
) -> None:
    config, file = written(tmp_path), tmp_path / "adapter_model.safetensors"
    found = load_file(file)
    change(found)
    save_file(found, file)
    refused(tmp_path, config, says, MODEL)


def test_pickled_factors_are_not_read(tmp_path: Path) -> None:
    config, file = written(tmp_path), tmp_path / "adapter_model.safetensors"
    torch.save(load_file(file), tmp_path / "adapter_model.bin")
    file.unlink()
    refused(tmp_path, config, "only safetensors are read", MODEL)


def test_an_adapter_without_the_name_of_its_base_has_no_base(tmp_path: Path) -> None:
    """And not the folder in which one happens to work."""
    written(tmp_path)
    with pytest.raises(ConfigError, match=r"names no frozen model; set export\.base=FOLDER"):
        base_of(tmp_path)


def test_an_adapter_in_the_place_of_a_model_is_named_as_such(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match=r"is an adapter of PEFT, not a model; merge it"):
        load_model(tmp_path)


def test_a_rank_above_that_of_every_matrix_is_refused() -> None:
    assert adapted(MODEL, AdapterConfig("lora", MODEL.dim))
    with pytest.raises(ConfigError, match=rf"must be at most {MODEL.dim}"):
        adapted(MODEL, AdapterConfig("lora", MODEL.dim + 1))
