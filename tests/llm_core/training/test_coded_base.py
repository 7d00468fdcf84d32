"""A run beside a base in 4 bits trains factors of that base, resumes to the bit, and publishes it
with them."""

from __future__ import annotations

import dataclasses
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.adapter import read_adapter
from llm_core.huggingface.export import export_model, load_model
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdapterConfig, coded_layer
from llm_core.model.init import init_weights
from llm_core.model.lora import merge
from llm_core.model.nf4 import CodedWeight
from llm_core.model.transformer import Transformer
from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from llm_core.training.train import run_in
from tests.support.engine.small_runs import (
    MODEL,
    kill_trainer,
    result_bytes,
    run_config,
    signal_when,
)

WIDE = dataclasses.replace(MODEL, dim=64, ffn_dim=128)
CODED = AdapterConfig(kind="lora", rank=4, alpha=8, base_codes="nf4")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("inputs")
    base = Transformer(WIDE)
    init_weights(base, 3)
    export_model(WIDE, base.state_dict(), folder / "base")
    train = {"init_from": folder / "base", "dtype": "fp32"}
    plain = run_config(folder, train=train)
    return dataclasses.replace(plain, model=WIDE, adapter=CODED)


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("finished")
    run_in(workdir, config)
    return workdir


def test_the_published_model_is_the_base_of_the_codes_with_factors(
    config: RunConfig, finished: Path
) -> None:
    assert config.train.init_from is not None
    before, after = (
        load_model(folder).state_dict() for folder in (config.train.init_from, finished / "model")
    )
    model: Any = config.trained_model
    factors = dict(read_adapter(finished / "model" / "adapter", model))
    for name, weight in before.items():
        layer = coded_layer(model, name)
        if layer is None:
            assert torch.equal(after[name], weight), name
            continue
        codes = CodedWeight(model, layer, *weight.shape).to_empty(device="cpu")
        codes.write(weight, *map(range, weight.shape))
        beside = name.removesuffix("weight") + "lora."
        a, b = factors[beside + "a"], factors[beside + "b"]
        parts = model.factored[layer].parts
        expected = merge(codes.numbers(torch.float32), a, b, parts, model.adapter.strength)
        assert torch.equal(after[name], expected), name


def test_codes_take_the_place_of_numbers_in_what_a_run_holds(
    config: RunConfig, finished: Path
) -> None:
    model: Any = config.trained_model
    held = read_status(finished / "status.json")["held_bytes"]
    shapes = {n: w.shape for n, w in Transformer(WIDE).named_parameters()}
    numbers = sum(4 * s.numel() for n, s in shapes.items() if coded_layer(model, n) is None)
    codes = sum(layer.coded_bytes(layer.rows, layer.columns) for layer in model.factored.values())
    factors = 4 * model.num_factors()
    assert held["weights"] == numbers + WIDE.num_layers * codes + factors
    assert held["optimizer"] == 2 * factors


def test_a_stopped_run_resumes_to_the_same_bytes(
    config: RunConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        signal_when(6, signal.SIGTERM, patch)
        assert run_in(tmp_path, config) == "preempted"
    run_in(tmp_path, config)
    assert result_bytes(tmp_path) == result_bytes(finished)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    moments = random.Random(5)
    for _ in range(6):
        kill_trainer(tmp_path, config, moments.randrange(1, 13))
    run_in(tmp_path / "work", config)
    assert result_bytes(tmp_path / "work") == result_bytes(finished)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputation_changes_no_bit(
    config: RunConfig, finished: Path, tmp_path: Path, recompute: Any
) -> None:
    run_in(tmp_path, dataclasses.replace(config, memory=MemoryConfig(recompute)))
    assert result_bytes(tmp_path) == result_bytes(finished)


def test_training_follows_that_beside_the_base_itself(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    plain = dataclasses.replace(CODED, base_codes="none")
    run_in(tmp_path, dataclasses.replace(config, adapter=plain))
    losses = [
        [row["train_loss"] for row in read_rows(folder / "metrics.jsonl") if "train_loss" in row]
        for folder in (finished, tmp_path)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parallel": {"kind": "fsdp", "num_processes": 2}}, r"parallel\.kind \(fsdp\) shards"),
        ({"parallel": {"kind": "ddp", "num_processes": 2, "tp": 2}}, r"has 32 of 64 on a process"),
        ({"parallel": {"kind": "ddp", "num_processes": 4, "tp": 4}}, r"must not exceed model"),
        ({"model": {"ffn_dim": 96}}, r"ffn\.down has 96 of 96"),
        ({"adapter": {"kind": "none"}}, r"adapter\.\w+ \(\S+\) belongs to an adapter"),
    ],
)
def test_what_cannot_be_kept_in_codes_is_refused(
    config: RunConfig, changed: dict[str, Any], says: str
) -> None:
    groups: dict[str, Any] = {"parallel": ParallelConfig(), "model": WIDE, "adapter": CODED}
    with pytest.raises(ConfigError, match=says):
        for name, values in changed.items():
            groups[name] = dataclasses.replace(groups[name], **values)
        dataclasses.replace(config, **groups)
