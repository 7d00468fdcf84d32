"""Models of Hugging Face, made tiny and random, against ours."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.export import export_model, load_model
from llm_core.model.config import RopeScaling
from llm_core.model.transformer import Transformer
from tests.llm_core.model.test_transformer import make_model
from tests.llm_core.small_runs import MODEL

LLAMA3_ROPE = {
    "rope_theta": 5000.0,
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
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
GPT2 = {"vocab_size": 51, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES | {"tie_word_embeddings": False}),
    "llama 3 rope": ("llama", SIZES | {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "llama with biases": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "qwen 2": ("qwen2", SIZES | {"tie_word_embeddings": False}),
    "qwen 3": ("qwen3", SIZES | {"tie_word_embeddings": True, "head_dim": 16}),
    "gpt 2": ("gpt2", GPT2),
    "gpt 2 untied": ("gpt2", GPT2 | {"tie_word_embeddings": False, "n_inner": 40}),
}
GPT2_TYPE = {"norm": "layer", "ffn": "gelu", "positions": "learned", "qkv_bias": True, "out_bias": True, "ffn_bias": True}
OURS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama 3": {"rope_scaling": RopeScaling(2.0, 1.0, 4.0, 16)},
    "qwen2": {"qkv_bias": True, "tied_embeddings": False},
    "qwen3": {"qk_norm": True, "own_head_dim": 12},
    "gpt2": GPT2_TYPE | {"num_kv_heads": 4},
}


def reference(case: str, folder: Path, max_shard_size: str = "1GB") -> Any:
    """A random model of transformers, saved to `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family, values = CASES[case]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initial biases are zeros and norms ones, which hides mistakes
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def random_ids() -> torch.Tensor:
    return torch.randint(0, 51, (2, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", CASES)
def test_imported_model_computes_the_logits_of_hugging_face_and_goes_back_unchanged(case: str, tmp_path: Path) -> None:
    theirs = reference(case, tmp_path / "theirs")
    ours, ids_BT = load_model(tmp_path / "theirs"), random_ids()
    with torch.no_grad():
        assert (ours(ids_BT) - theirs(ids_BT).logits).abs().max() < 1e-5
    export_model(ours.config, ours.state_dict(), tmp_path / "back")
    from transformers import AutoModelForCausalLM

    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert back.keys() == theirs.state_dict().keys()
    assert all(torch.equal(value, back[name]) for name, value in theirs.state_dict().items())
    assert load_model(tmp_path / "back").config == ours.config


@pytest.mark.parametrize("family", OURS)
def test_hugging_face_computes_the_logits_of_our_exported_model(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, ids_BT = make_model(dataclasses.replace(MODEL, **OURS[family])), random_ids()
    export_model(model.config, model.state_dict(), tmp_path)
    with torch.no_grad():
        assert (AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids_BT).logits - model(ids_BT)).abs().max() < 1e-5


def test_a_model_in_parts_is_the_model_in_one_file(tmp_path: Path) -> None:
    reference("llama", tmp_path / "whole")
    reference("llama", tmp_path / "parts", max_shard_size="10KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    whole, parts = (load_model(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


@pytest.mark.parametrize("values", OURS.values(), ids=OURS)
def test_counts_of_every_family_are_those_of_the_model(values: dict[str, Any]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = dataclasses.replace(MODEL, **values)
    with torch.device("meta"):
        model, ids_BT = Transformer(config), torch.zeros(3, 20, dtype=torch.long)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters()
    with FlopCounterMode(display=False) as counter:
        model(ids_BT).sum().backward()
    assert counter.get_total_flops() == 3 * 20 * config.training_flops_per_token(20)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model_type": "bert"}, r"model_type \(bert\) .*llama, qwen2"),
        ({"hidden_act": "gelu"}, r"hidden_act \(gelu\) must be silu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, r"rope_type \(yarn\) must be default or llama3"),
        ({"num_hidden_layers": 3}, r"model.layers.2.* is missing"),
        ({"num_hidden_layers": 1}, r"model.layers.1.* is not part"),
        ({"intermediate_size": 47}, r"mlp.* is .* says"),
    ],
)
def test_what_is_not_computed_here_is_refused_in_one_line(change: dict[str, Any], line: str, tmp_path: Path) -> None:
    reference("llama", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text("utf-8")) | change
    (tmp_path / "config.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(ConfigError, match=line) as found:
        load_model(tmp_path)
    assert "\n" not in str(found.value)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    reference("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="only safetensors are read"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"norm": "layer"},
        {"qk_norm": True, "ffn_bias": True},
        {"out_bias": True},
        GPT2_TYPE,
        GPT2_TYPE | {"num_kv_heads": 4, "qk_norm": True},
    ],
)
def test_a_mixture_that_no_family_computes_is_refused_before_training(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"start from model=|drop the odd one"):
        dataclasses.replace(MODEL, **values)


def test_cached_decode_matches_full_forward_for_learned_positions_and_normed_keys() -> None:
    from llm_core.infer.engine import decode, prefill, static_cache

    for values in (OURS["gpt2"], OURS["qwen3"]):
        model = make_model(dataclasses.replace(MODEL, **values)).requires_grad_(False)
        prompts = [[5, 9, 2, 7], [3, 1]]
        cache = static_cache(model, prompts, 1)
        prefill(model, prompts, cache)
        decoded = decode(model, [4, 8], cache)
        for row, (prompt, new) in enumerate(zip(prompts, (4, 8), strict=True)):
            whole = model(torch.tensor([[*prompt, new]]))[0, -1]
            assert (decoded[row] - whole).abs().max() < 1e-5
