"""The sizes in conf/model against what was published, and against the models they build."""

from pathlib import Path

import pytest
import torch
import yaml

from llm_core.config import build
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from tasks.runtime.code import ROOT

PRESETS = {file.stem: file for file in sorted((ROOT / "conf/model").glob("*.yaml"))}
PUBLISHED = {  # vocabulary, parameters: counts of the published weights
    "gemma_2b": (256000, 2_506_172_416),
    "gpt2": (50257, 124_439_808),
    "llama_1b": (128256, 1_235_814_400),
    "llama_3b": (128256, 3_212_749_824),
    "llama_8b": (128256, 8_030_261_248),
    "pythia_160m": (50304, 162_322_944),
    "qwen2_500m": (151936, 494_032_768),
    "qwen3_600m": (151936, 596_049_920),
}


def preset(file: Path, vocab_size: int) -> ModelConfig:
    return build(ModelConfig, yaml.safe_load(file.read_text("utf-8")) | {"vocab_size": vocab_size})


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_size_has_its_published_number_of_parameters(name: str) -> None:
    vocab_size, num_parameters = PUBLISHED[name]
    assert preset(PRESETS[name], vocab_size).num_parameters() == num_parameters


@pytest.mark.parametrize("name", PRESETS)
def test_counted_parameters_of_a_preset_are_those_of_the_built_model(name: str) -> None:
    config = preset(PRESETS[name], 32000)
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters()
    not_multiplied = (
        ("positions.weight",)
        if config.tied_embeddings
        else ("positions.weight", "embedding.weight")
    )
    matrices = sum(
        p.numel() for n, p in model.named_parameters() if p.ndim == 2 and n not in not_multiplied
    )
    assert matrices == config.matmul_parameters(all_experts=True)
