"""Models of Hugging Face, made tiny and random, against ours."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model
from llm_core.model.config import RopeScaling
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.transformer import Transformer
from tests.support.engine.published_models import CASES, EXPERT_CASES, random_ids, reference
from tests.support.engine.small_runs import MODEL
from tests.support.engine.uneven_model import make_model

GPT2_TYPE = {
    "norm": "layer",
    "ffn": "gelu",
    "positions": "learned",
    "qkv_bias": True,
    "out_bias": True,
    "ffn_bias": True,
}
GEMMA_TYPE = {"norm": "offset_rms", "ffn": "geglu", "scaled_embeddings": True}
NEOX_TYPE = {
    "norm": "layer",
    "ffn": "exact_gelu",
    "num_kv_heads": 4,
    "qkv_bias": True,
    "out_bias": True,
    "ffn_bias": True,
    "rotary_frac": 0.5,
    "parallel_residual": True,
}
OURS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama 3": {"rope_scaling": RopeScaling(2.0, 1.0, 4.0, 16)},
    "yarn": {"rope_scaling": RopeScaling(4.0, original_max_seq_len=16, kind="yarn")},
    "yarn of its own": {
        "rope_scaling": RopeScaling(
            3.0,
            original_max_seq_len=20,
            kind="yarn",
            beta_fast=4.0,
            beta_slow=0.5,
            attention_factor=1.3,
            whole_channels=False,
        )
    },
    "qwen2": {"qkv_bias": True, "tied_embeddings": False},
    "qwen3": {"qk_norm": True, "own_head_dim": 12},
    "mistral": {"window": 6},
    "qwen2 with windows": {"qkv_bias": True, "window": 6, "full_layers": (0,)},
    "gemma": GEMMA_TYPE | {"own_head_dim": 12},
    "neox": NEOX_TYPE | {"tied_embeddings": False},
    "neox, one after the other": NEOX_TYPE | {"parallel_residual": False, "ffn": "gelu"},
    "gpt2": GPT2_TYPE | {"num_kv_heads": 4},
    "mixtral": {"experts": ExpertsConfig(4, 2), "window": 6},
    "qwen2 moe": {
        "qkv_bias": True,
        "experts": ExpertsConfig(4, 3, normalised=False, shared_dim=20, shared_gate=True),
    },
    "qwen3 moe": {"qk_norm": True, "experts": ExpertsConfig(4, 1, normalised=False)},
    "glm 4.5": {
        "tied_embeddings": False,
        "experts": ExpertsConfig(4, 2, score="sigmoid", scale=1.5, shared_dim=2 * MODEL.ffn_dim),
    },
}


@pytest.mark.parametrize("case", [*CASES, *EXPERT_CASES])
def test_imported_model_computes_the_logits_of_hugging_face_and_goes_back_unchanged(
    case: str, tmp_path: Path
) -> None:
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
def test_hugging_face_computes_the_logits_of_our_exported_model(
    family: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model, ids_BT = make_model(dataclasses.replace(MODEL, **OURS[family])), random_ids()
    export_model(model.config, model.state_dict(), tmp_path)
    with torch.no_grad():
        assert (
            AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids_BT).logits - model(ids_BT)
        ).abs().max() < 1e-5


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
    # Which expert has how many tokens is known where there are numbers alone; of attention on a CPU
    # the counter knows nothing.
    with torch.device("meta" if config.experts is None else "cpu"):
        model, ids_BT = Transformer(config), torch.zeros(3, 20, dtype=torch.long)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters()
    with FlopCounterMode(display=False) as counter:
        model(ids_BT).sum().backward()
    attended = 20 if config.experts is None else 0
    assert counter.get_total_flops() == 3 * 20 * config.training_flops_per_token(attended)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model_type": "bert"}, r"model_type \(bert\) .*llama, mistral, qwen2"),
        ({"hidden_act": "gelu"}, r"hidden_act \(gelu\) must be silu"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            r"rope_type \(longrope\) must be default, llama3 or yarn",
        ),
        ({"num_hidden_layers": 3}, r"model.layers.2.* is missing"),
        ({"num_hidden_layers": 1}, r"model.layers.1.* is not part"),
        ({"intermediate_size": 47}, r"mlp.* is .*, in the configured model "),
        ({"hidden_size": None}, "config.json has no hidden_size"),
        ({"vocab_size": "51"}, r"config.json: vocab_size \('51'\) must be a whole number"),
        (
            {"num_attention_heads": 0},
            r"num_attention_heads \(0\) must be a whole number of at least 1",
        ),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps .* must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings .* must be true or false"),
        ({"rope_parameters": 5}, "rope_parameters .* must be a mapping"),
        (
            {"rope_scaling": {"type": "dynamic"}},
            r"rope_parameters \(default\) and rope_scaling \(dynamic\) must not differ",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor .* must be 1.0"),
        ({"model_type": "gemma2"}, r"model_type \(gemma2\) is not a model computed here"),
        ({"model_type": "gemma", "hidden_act": "relu"}, r"hidden_act \(relu\) must be gelu_py"),
        (
            {"use_bidirectional_attention": True},
            r"use_bidirectional_attention \(True\) must be False",
        ),
        ({"model_type": ["llama"]}, r"model_type \(\['llama'\]\) must be a name"),
        ({"model_type": "gpt_neox", "hidden_act": ["gelu"]}, r"hidden_act \(.*\) must be a name"),
        ({"model_type": "gpt_neox", "hidden_act": "relu"}, r"hidden_act \(relu\) must be one of"),
        ({"model_type": "gpt_neox", "rotary_pct": "all"}, r"rotary_pct \('all'\) must be a pos"),
        (
            {"model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 2},
            r"rotary_frac \(2.0\) must be above 0",
        ),
        ({"quantization_config": {"bits": 4}}, "give the original model"),
    ],
)
def test_what_is_not_computed_here_is_refused_in_one_line(
    change: dict[str, Any], line: str, tmp_path: Path
) -> None:
    export_small(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text("utf-8")) | change
    (tmp_path / "config.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(ConfigError, match=line) as found:
        load_model(tmp_path)
    assert "\n" not in str(found.value)


def export_small(folder: Path, **values: Any) -> None:
    model = make_model(
        dataclasses.replace(MODEL, tied_embeddings=False)
        if not values
        else dataclasses.replace(MODEL, **values)
    )
    export_model(model.config, model.state_dict(), folder)


def write_parts(folder: Path, index: str | None = None, twice: bool = False) -> None:
    """The weights of a folder in two numbered parts."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, files = (
        sorted(weights),
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    )
    for k, file in enumerate(files):
        save_file(
            {name: weights[name] for name in (names[k::2] + names[: int(twice)])}, folder / file
        )
    found = {"weight_map": {name: files[k % 2] for k, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(index or json.dumps(found), "utf-8")


def change_weights(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | change(weights), folder / "model.safetensors")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (
        lambda folder: os.truncate(folder / "model.safetensors", 5000),
        "model.safetensors is cut off",
    ),
    "a pointer": (
        lambda folder: (folder / "model.safetensors").write_text("version 1", "utf-8"),
        "cut off or not a safetensors file",
    ),
    "index of text": (lambda folder: write_parts(folder, "{"), "index.json cannot be read as JSON"),
    "index of a list": (lambda folder: write_parts(folder, "[]"), "index.json has no weight_map"),
    "index of nothing": (
        lambda folder: write_parts(folder, '{"weight_map": {}}'),
        "index.json has no weight_map",
    ),
    "index of numbers": (
        lambda folder: write_parts(folder, '{"weight_map": {"a": 1}}'),
        "index.json has no weight_map",
    ),
    "a tensor twice": (
        lambda folder: write_parts(folder, twice=True),
        "lm_head.weight is in model-00002-of-00002",
    ),
    "whole numbers": (
        lambda folder: change_weights(
            folder,
            lambda weights: {"model.norm.weight": weights["model.norm.weight"].to(torch.int8)},
        ),
        "model.norm.weight holds int8, which needs scales",
    ),
    "a list for a config": (
        lambda folder: (folder / "config.json").write_text("[]", "utf-8"),
        "json: a list is not a mapping",
    ),
    "bytes for a config": (
        lambda folder: (folder / "config.json").write_bytes(b"\xff"),
        "config.json cannot be read as JSON",
    ),
}


@pytest.mark.parametrize(("damage", "line"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(
    damage: Callable[[Path], object], line: str, tmp_path: Path
) -> None:
    export_small(tmp_path)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=line) as found:
        load_model(tmp_path)
    assert "\n" not in str(found.value) and str(tmp_path) in str(found.value)


def test_saved_buffers_are_no_weights_and_a_saved_copy_of_a_tied_head_must_be_one(
    tmp_path: Path,
) -> None:
    export_small(tmp_path, tied_embeddings=True)
    before = load_model(tmp_path).state_dict()
    change_weights(
        tmp_path, lambda _: {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    )
    change_weights(
        tmp_path, lambda weights: {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    )
    assert all(
        torch.equal(value, before[name])
        for name, value in load_model(tmp_path).state_dict().items()
    )
    change_weights(tmp_path, lambda weights: {"lm_head.weight": weights["lm_head.weight"] + 1})
    with pytest.raises(ConfigError, match=r"lm_head.weight differs from the embedding"):
        load_model(tmp_path)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    export_small(tmp_path)
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
        GPT2_TYPE | {"num_kv_heads": 4, "window": 4},
        GEMMA_TYPE | {"window": 4},
        {"scaled_embeddings": True},
        {"norm": "offset_rms"},
        NEOX_TYPE | {"ffn_bias": False},
        NEOX_TYPE | {"scaled_embeddings": True},
        {"parallel_residual": True},
        {"rotary_frac": 0.5},
        GPT2_TYPE | {"num_kv_heads": 4, "parallel_residual": True},
        {"experts": ExpertsConfig(4, 2), "rotary_frac": 0.5},
        {"window": 4, "full_layers": (0,)},
    ],
)
def test_a_mixture_that_no_family_computes_is_refused_before_training(
    values: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match=r"start from model=|choose one of these"):
        dataclasses.replace(MODEL, **values)


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "gemma", "neox", "neox, one after the other"])
def test_cached_decode_matches_full_forward_for_every_kind_of_block(family: str) -> None:
    from llm_core.infer.cache.rows import decode, paged_cache, prefill, static_cache
    from llm_core.infer.cpu.products import speed_up

    for make_cache in (static_cache, paged_cache):
        model = make_model(dataclasses.replace(MODEL, **OURS[family])).requires_grad_(False)
        if make_cache is paged_cache:
            speed_up(model, copy_weights=True)
        prompts = [[5, 9, 2, 7], [3, 1]]
        cache = make_cache(model, list(map(len, prompts)), 1)
        prefill(model, prompts, cache)
        decoded = decode(model, [4, 8], cache)
        for row, (prompt, new) in enumerate(zip(prompts, (4, 8), strict=True)):
            whole = model(torch.tensor([[*prompt, new]]))[0, -1]
            assert (decoded[row] - whole).abs().max() < 1e-5
