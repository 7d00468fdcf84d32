"""Folders of models with patterns of attention: read back here, refused by others."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.config import hugging_face_config, model_config
from llm_core.huggingface.export import export_model, load_model
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.sparse.patterns import PRESETS, Pattern
from tests.support.engine.small_runs import MODEL
from tests.support.engine.uneven_model import make_model

BASES = {
    "llama": MODEL,
    "qwen3": dataclasses.replace(MODEL, qk_norm=True),
    "gpt2": dataclasses.replace(
        MODEL, norm="layer", ffn="gelu", positions="learned", num_kv_heads=4,
        qkv_bias=True, out_bias=True, ffn_bias=True,
    ),
    "mixtral": dataclasses.replace(MODEL, experts=ExpertsConfig(4, 2)),
}  # fmt: skip


@pytest.mark.parametrize("family", BASES)
def test_a_folder_has_the_logits_of_the_model_and_its_patterns(family: str, tmp_path: Path) -> None:
    patterns = (Pattern(window=3, num_global=1), Pattern(block=4, summary=1))
    config = dataclasses.replace(BASES[family], attention=patterns)
    model = make_model(config, dtype=torch.float64).eval()
    export_model(config, model.state_dict(), tmp_path)
    loaded = load_model(tmp_path, torch.float64)
    assert loaded.config == config
    ids = torch.arange(20)[None]
    torch.testing.assert_close(loaded(ids), model(ids), rtol=0, atol=1e-12)
    assert (loaded(ids) - make_model(BASES[family], dtype=torch.float64)(ids)).abs().max() > 1e-3


def test_other_readers_refuse_the_folder_and_do_not_attend_all(tmp_path: Path) -> None:
    from transformers import AutoConfig

    config = dataclasses.replace(MODEL, attention="bigbird")
    values = hugging_face_config(config)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="textmill_sparse"):
        AutoConfig.from_pretrained(tmp_path)
    assert model_config(values).patterns == PRESETS["bigbird"] * MODEL.num_layers
    for wrong in (None, [], [{"windows": 3}], [{"window": -3}]):
        with pytest.raises(ConfigError, match="attention_patterns"):
            model_config(values | {"attention_patterns": wrong})
