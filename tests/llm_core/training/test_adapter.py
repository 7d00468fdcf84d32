"""A run with an adapter trains and saves factors alone, and publishes the merged model."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.checkpoint.index import CheckpointError, read_index
from llm_core.config import ConfigError
from llm_core.huggingface.adapter import read_adapter
from llm_core.huggingface.export import export_model, load_model
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig, AdapterConfig, is_factor
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.config import GroupRule
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.training.made_with import made_with
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from llm_core.training.train import run, run_in
from tests.support.engine.small_runs import MODEL, result_bytes, run_config, signal_when

LORA = AdapterConfig(kind="lora", rank=4, alpha=8)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("inputs")
    base = Transformer(MODEL)
    init_weights(base, 3)
    export_model(MODEL, base.state_dict(), folder / "base")
    train = {"init_from": folder / "base", "dtype": "fp32"}
    return dataclasses.replace(run_config(folder, train=train), adapter=LORA)


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("finished")
    run_in(workdir, config)
    return workdir


def test_checkpoints_hold_factors_and_their_state_alone(config: RunConfig, finished: Path) -> None:
    model = config.trained_model
    assert isinstance(model, AdaptedModelConfig)
    index = read_index(max((finished / "checkpoints").glob("step-*")))
    weights = {name for name in index.tensors if name.startswith("model.")}
    assert weights and all(is_factor(name) for name in weights)
    numbers = sum(
        torch.Size(entry.shape).numel() for name, entry in index.tensors.items() if ".lora." in name
    )
    assert numbers == 3 * model.num_factors()
    held = read_status(finished / "status.json")["held_bytes"]
    assert held["optimizer"] == 8 * model.num_factors()
    assert held["gradients"] == 4 * model.num_factors()
    assert held["weights"] == 4 * (model.num_parameters() + model.num_factors())


def test_the_published_model_is_the_base_with_the_factors_beside_it(
    config: RunConfig, finished: Path
) -> None:
    model = config.trained_model
    assert isinstance(model, AdaptedModelConfig) and config.train.init_from is not None
    factors = read_adapter(finished / "model" / "adapter", model)
    adapted = Transformer(model)
    base = load_model(config.train.init_from).state_dict()
    adapted.load_state_dict(base | dict(factors))
    merged = load_model(finished / "model")
    ids_BT = torch.randint(1, 51, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = adapted(ids_BT), merged(ids_BT)
        before = load_model(config.train.init_from)(ids_BT)
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert (before - expected).abs().max() > 1e-3
    kept = merged.state_dict()
    for name, weight in base.items():
        is_merged = name.endswith(("qkv.weight", "out.weight", "gate_up.weight", "down.weight"))
        assert torch.equal(kept[name], weight) != is_merged


def test_a_stopped_run_resumes_to_the_same_bytes(
    config: RunConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        signal_when(6, signal.SIGTERM, patch)
        assert run_in(tmp_path, config) == "preempted"
    run_in(tmp_path, config)
    assert result_bytes(tmp_path) == result_bytes(finished)
    name = "model/adapter/adapter_model.safetensors"
    assert (tmp_path / name).read_bytes() == (finished / name).read_bytes()


def test_another_base_is_not_resumed_with(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    other = Transformer(MODEL)
    init_weights(other, 4)
    export_model(MODEL, other.state_dict(), tmp_path / "other")
    train = dataclasses.replace(config.train, init_from=tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"adapter\.base"):
        run(dataclasses.replace(config, train=train), finished)


def test_a_run_starts_from_an_adapter_of_another(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    adapter = dataclasses.replace(LORA, init_from=finished / "model" / "adapter")
    train = dataclasses.replace(config.train, num_steps=1)
    optim = dataclasses.replace(config.optim, lr=1e-30, weight_decay=0.0)
    run(dataclasses.replace(config, adapter=adapter, train=train, optim=optim), tmp_path)
    name = "model/model.safetensors"
    assert (tmp_path / name).read_bytes() == (finished / name).read_bytes()


def test_frozen_matrices_rest_in_16_bits_and_train_as_in_32(
    config: RunConfig, tmp_path: Path
) -> None:
    train = dataclasses.replace(config.train, dtype="bf16")
    losses = {}
    for dtype in ("fp32", "bf16"):
        short = dataclasses.replace(
            config, train=train, adapter=dataclasses.replace(LORA, base_dtype=dtype)
        )
        run_in(tmp_path / dtype, short)
        rows = read_rows(tmp_path / dtype / "metrics.jsonl")
        losses[dtype] = [row["train_loss"] for row in rows if "train_loss" in row]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=2e-3)
    ranks = Ranks(0, 1, torch.device("cpu"))
    layout = build_layout(short.trained_model, short.parallel, train, ranks, trains=is_factor)
    for name, weight in layout.bare.named_parameters():
        is_short = weight.ndim > 1 and not is_factor(name)
        assert weight.dtype == (torch.bfloat16 if is_short else torch.float32), name
        assert weight.requires_grad == is_factor(name)


def test_lengths_of_rows_begin_as_those_of_the_base_and_are_trained(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(config, adapter=dataclasses.replace(LORA, decomposed=True))
    still = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, num_steps=1),
        optim=dataclasses.replace(config.optim, lr=1e-30),
    )
    run_in(tmp_path / "still", still)
    base = load_model(config.train.init_from).state_dict()  # type: ignore[arg-type]
    for name, weight in load_model(tmp_path / "still" / "model").state_dict().items():
        torch.testing.assert_close(weight, base[name], atol=1e-7, rtol=1e-6)
    run_in(tmp_path / "whole", config)
    with monkeypatch.context() as patch:
        signal_when(6, signal.SIGTERM, patch)
        assert run_in(tmp_path / "stopped", config) == "preempted"
    run_in(tmp_path / "stopped", config)
    assert result_bytes(tmp_path / "stopped") == result_bytes(tmp_path / "whole")
    model = config.trained_model
    assert isinstance(model, AdaptedModelConfig)
    factors = read_adapter(tmp_path / "whole" / "model" / "adapter", model)
    lengths = {name: factors[name] for name in factors if name.endswith("lora.m")}
    assert len(lengths) == 4 * model.num_layers
    for name, found in lengths.items():
        before = base[name.replace("lora.m", "weight")].norm(dim=1)
        assert (found - before).abs().max() > 1e-4
    adapted = Transformer(model)
    adapted.load_state_dict(base | dict(factors))
    ids_BT = torch.randint(1, 51, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, merged = adapted(ids_BT), load_model(tmp_path / "whole" / "model")(ids_BT)
    assert (merged - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_without_an_adapter_nothing_is_another_run(config: RunConfig) -> None:
    plain = dataclasses.replace(config, adapter=AdapterConfig())
    assert plain.trained_model is plain.model
    assert not [name for name in made_with(plain).settings if name.startswith("adapter")]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"adapter": {"targets": ("qvk",)}}, "did you mean qkv"),
        ({"adapter": {"targets": ("head",)}}, r"adapter\.targets \(head\)"),
        ({"adapter": {"rank": 0}}, r"adapter\.rank \(0\)"),
        ({"adapter": {"kind": "none"}}, r"adapter\.rank \(4\) belongs to an adapter"),
        ({"adapter": {"base_dtype": "bf16"}}, r"train\.dtype is fp32"),
        (
            {
                "adapter": {"decomposed": True},
                "parallel": {"kind": "ddp", "tp": 2, "num_processes": 2},
            },
            r"parallel\.tp \(2\) does not go with adapter\.decomposed",
        ),
        ({"memory": {"ffn_tiles": 2}}, r"memory\.ffn_tiles \(2\) does not go with an adapter"),
        (
            {"parallel": {"kind": "ddp", "tp": 4, "num_processes": 4}},
            r"must not exceed model\.num_kv_heads \(2\)",
        ),
        ({"optim": {"kind": "muon"}}, r"optim\.kind \(muon\) does not go with an adapter"),
    ],
)
def test_what_would_pass_over_factors_is_refused(
    config: RunConfig, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        groups = {"memory": MemoryConfig(), "parallel": ParallelConfig()}
        groups |= {name: getattr(config, name) for name in ("adapter", "optim")}
        for name, values in changed.items():
            groups[name] = dataclasses.replace(groups[name], **values)  # type: ignore[type-var]
        dataclasses.replace(config, **groups)


def test_a_rule_for_frozen_weights_alone_is_refused(config: RunConfig, tmp_path: Path) -> None:
    optim = dataclasses.replace(config.optim, groups=(GroupRule("embedding", weight_decay=0.0),))
    with pytest.raises(ConfigError, match="matches no weight"):
        run(dataclasses.replace(config, optim=optim), tmp_path)
