"""Adapters are PEFT's: files both ways, and training step by step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.adapter import read_adapter, write_adapter
from llm_core.huggingface.export import export_model, load_model, read_config, read_weights
from llm_core.model.adapter import AdaptedModelConfig, AdapterConfig, adapted, is_factor
from llm_core.model.lora import merge, merged
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import OptimConfig
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.weights import write_weights
from llm_core.training.config import TrainConfig
from tests.support.engine.published_models import reference

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
"""PEFT asks transformers for what it calls deprecated."""

CPU = torch.device("cpu")
ONE = ParallelConfig(device="cpu", num_threads=1)
NUM_STEPS, LR = 20, 3e-3
LORA = AdapterConfig(kind="lora", rank=4, alpha=8)


def factors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: w.detach().clone() for name, w in model.named_parameters() if is_factor(name)}


def shape_of(folder: Path, adapter: AdapterConfig) -> AdaptedModelConfig:
    config = adapted(read_config(folder), adapter)
    assert isinstance(config, AdaptedModelConfig)
    return config


def layout_of(folder: Path, adapter: AdapterConfig, **train: Any) -> Layout:
    """A model of a folder, with factors of which neither is zero."""
    config = shape_of(folder, adapter)
    values = {"num_steps": 1, "global_batch_sequences": 1, "seq_len": 16}
    compute = TrainConfig(**values, micro_batch_sequences=1, **train)
    layout = build_layout(config, ONE, compute, Ranks(0, 1, CPU), trains=is_factor)
    write_weights(layout, read_weights(folder, read_config(folder)), lambda n: not is_factor(n))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in layout.bare.named_parameters():
            if name.endswith("lora.b"):
                weight.copy_(0.1 * torch.randn(weight.shape, generator=draw))
            if name.endswith("lora.m"):
                weight.copy_(1 + torch.rand(weight.shape, generator=draw))
    return layout


def peft_model(folder: Path, adapter: Path, trains: bool = False) -> Any:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return peft.PeftModel.from_pretrained(base, adapter, is_trainable=trains)


VARIANTS = [{}, {"scaling": "root_rank"}, {"decomposed": True}]


@pytest.mark.parametrize("variant", VARIANTS, ids=["LoRA", "rsLoRA", "DoRA"])
@pytest.mark.parametrize("case", ["llama", "llama with biases", "qwen 3", "gpt 2"])
def test_peft_computes_the_logits_of_an_adapter_written_here(
    tmp_path: Path, case: str, variant: dict[str, Any]
) -> None:
    reference(case, tmp_path / "base")
    layout = layout_of(tmp_path / "base", replace(LORA, **variant))
    config = layout.bare.config
    assert isinstance(config, AdaptedModelConfig)
    write_adapter(tmp_path / "adapter", config, factors_of(layout.bare), tmp_path / "base")
    theirs = peft_model(tmp_path / "base", tmp_path / "adapter").eval()
    ids_BT = torch.randint(1, 51, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits_BTV, plain_BTV = layout.bare(ids_BT), load_model(tmp_path / "base")(ids_BT)
        torch.testing.assert_close(logits_BTV, theirs(ids_BT).logits, atol=2e-5, rtol=1e-5)
    assert (logits_BTV - plain_BTV).abs().max() > 0.01


@pytest.mark.parametrize("decomposed", [False, True], ids=["LoRA", "DoRA"])
@pytest.mark.parametrize("targets", [(), ("qkv", "down")])
def test_twenty_steps_are_those_of_peft(
    tmp_path: Path, targets: tuple[str, ...], decomposed: bool
) -> None:
    reference("llama", tmp_path / "base")
    adapter = replace(LORA, targets=targets, decomposed=decomposed)
    layout = layout_of(tmp_path / "base", adapter)
    config = layout.bare.config
    assert isinstance(config, AdaptedModelConfig)
    write_adapter(tmp_path / "begin", config, factors_of(layout.bare), tmp_path / "base")
    theirs = peft_model(tmp_path / "base", tmp_path / "begin", trains=True).train()
    # Lengths of rows are vectors, which do not decay here.
    optim = OptimConfig(lr=LR, weight_decay=0.0 if decomposed else 0.1, clip_norm=1e9)
    optimizer = build_optimizer(layout, optim)
    trained = [weight for weight in theirs.parameters() if weight.requires_grad]
    assert sum(weight.numel() for weight in trained) == config.num_factors()
    other = torch.optim.AdamW(
        trained, LR, (optim.beta1, optim.beta2), optim.eps, optim.weight_decay
    )
    draw = torch.Generator().manual_seed(2)
    for _ in range(NUM_STEPS):
        ids_BT = torch.randint(1, 51, (4, 17), generator=draw)
        nats, _ = layout.bare(ids_BT[:, :-1], targets_BT=ids_BT[:, 1:])
        loss = nats / ids_BT[:, 1:].numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(LR, loss.detach(), torch.ones(()))
        found = theirs(ids_BT, labels=ids_BT).loss
        other.zero_grad()
        found.backward()
        other.step()
        torch.testing.assert_close(loss, found, atol=0, rtol=1e-6)
    theirs.save_pretrained(tmp_path / "end")
    made = read_adapter(tmp_path / "end", config)
    ours = factors_of(layout.bare)
    assert ours.keys() == made.keys()
    for name, factor in ours.items():
        torch.testing.assert_close(factor, made[name], atol=1e-6, rtol=0)
    held = optimizer.held_bytes()
    assert held["optimizer"] == 8 * config.num_factors()


def test_a_part_without_factors_reads_as_zeros_that_training_leaves(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = reference("llama", tmp_path / "base")
    asked = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    theirs = peft.get_peft_model(base, asked).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    layout = layout_of(tmp_path / "base", replace(LORA, targets=("qkv",)))
    config = layout.bare.config
    assert isinstance(config, AdaptedModelConfig)
    write_weights(layout, read_adapter(tmp_path / "adapter", config), is_factor)
    optimizer = build_optimizer(layout, OptimConfig(lr=LR))
    ids_BT = torch.randint(1, 51, (2, 16), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids_BT).logits
    torch.testing.assert_close(layout.bare(ids_BT), expected, atol=2e-5, rtol=1e-5)
    layout.bare(ids_BT, targets_BT=ids_BT)[0].backward()
    optimizer.step(LR, torch.ones(()), torch.ones(()))
    keys_a = layout.bare.own_blocks[0].attention.qkv.lora.a.detach()[4:8]  # type: ignore[union-attr]
    assert not keys_a.any()


@pytest.mark.parametrize("decomposed", [False, True], ids=["LoRA", "DoRA"])
def test_the_merged_model_computes_what_the_adapter_does(tmp_path: Path, decomposed: bool) -> None:
    for case in ("llama", "gpt 2 untied"):
        base = tmp_path / case
        reference(case, base)
        layout = layout_of(base, replace(LORA, decomposed=decomposed))
        config = layout.bare.config
        assert isinstance(config, AdaptedModelConfig)
        weights = dict(merged(config, layout.bare.state_dict().items()))
        export_model(read_config(base), weights, tmp_path / "merged")
        ids_BT = torch.randint(1, 51, (2, 16), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = layout.bare(ids_BT)
            found = load_model(tmp_path / "merged")(ids_BT)
        # Rows that are stretched are rounded once more.
        limit = 3e-6 if decomposed else 1e-6
        assert (found - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_merge_keeps_small_changes_whatever_the_dtype_of_the_factors(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    weight = (torch.randn(256, 256, generator=draw) / 16).to(dtype)
    a, b = (0.02 * torch.randn(shape, generator=draw) for shape in ((4, 256), (256, 4)))
    a, b = a.to(dtype), b.to(dtype)
    change = b.double() @ a.double()
    found = merge(weight, a, b, (256,), 1.0)
    assert (found.double() - weight.double() - change).norm() < 1e-4 * change.norm()


def test_settings_that_are_not_computed_here_are_refused_by_name(tmp_path: Path) -> None:
    reference("llama", tmp_path / "base")
    layout = layout_of(tmp_path / "base", LORA)
    config = layout.bare.config
    assert isinstance(config, AdaptedModelConfig)
    folder = tmp_path / "adapter"
    write_adapter(folder, config, factors_of(layout.bare), None)
    file = folder / "adapter_config.json"
    written = json.loads(file.read_text("utf-8"))
    for name, value, says in (
        ("use_dora", True, "adapter.decomposed"),
        ("use_dora", "yes", r"use_dora \(yes\) must be true or false"),
        ("rank_pattern", {"q_proj": 8}, "rank_pattern"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("peft_type", "IA3", "peft_type"),
        ("r", "4", "r \\(4\\)"),
        ("r", 10**12, "must be a whole number from 1 up to"),
        ("use_rslora", True, "adapter.scaling"),
        ("lora_alpha", 16, "adapter.alpha"),
        ("use_qalora", True, "use_qalora"),
        ("init_lora_weights", "pissa_niter_4", r"init_lora_weights \(pissa_niter_4\) changes"),
        ("init_lora_weights", "OLoRA", "changes the frozen model too"),
    ):
        file.write_text(json.dumps(written | {name: value}), "utf-8")
        with pytest.raises(ConfigError, match=says):
            read_adapter(folder, config)
    file.write_text(json.dumps(written | {"init_lora_weights": "gaussian"}), "utf-8")
    assert set(read_adapter(folder, config)) == set(factors_of(layout.bare))
    fewer = adapted(read_config(tmp_path / "base"), replace(LORA, targets=("qkv",)))
    assert isinstance(fewer, AdaptedModelConfig)
    with pytest.raises(ConfigError, match=r"belongs to no layer in adapter\.targets"):
        read_adapter(folder, fewer)


def test_lengths_of_some_parts_of_a_fused_layer_are_refused(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = reference("llama", tmp_path / "base")
    asked = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=True)
    peft.get_peft_model(base, asked).save_pretrained(tmp_path / "adapter")
    config = shape_of(tmp_path / "base", replace(LORA, targets=("qkv",), decomposed=True))
    with pytest.raises(ConfigError, match=r"k_proj\.lora_magnitude_vector is missing"):
        read_adapter(tmp_path / "adapter", config)


def test_each_adapted_layer_has_two_tensors_of_its_own_name(tmp_path: Path) -> None:
    reference("llama", tmp_path / "base")
    layout = layout_of(tmp_path / "base", LORA)
    config = layout.bare.config
    assert isinstance(config, AdaptedModelConfig)
    write_adapter(tmp_path / "adapter", config, factors_of(layout.bare), None)
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    parts = {re.sub(r"^.*layers\.\d+\.|\.lora_[AB]\.weight$", "", name) for name in names}
    attention = {f"self_attn.{n}_proj" for n in "qkvo"}
    assert parts == attention | {f"mlp.{n}_proj" for n in ("gate", "up", "down")}
    assert len(names) == 2 * 7 * 2
