"""Runs of models of experts: what they log, resume and publish."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from llm_core.checkpoint.weights import open_weights
from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model
from llm_core.model.expert_config import ExpertsConfig
from llm_core.optim.method import AVERAGE
from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.train import run
from tests.support.engine.small_runs import result_bytes, run_config, stop_and_resume

EXPERTS = ExpertsConfig(
    6, 2, score="sigmoid", shared_dim=48, bias_rate=0.01, balance_loss=0.01, z_loss=0.001
)


def config_in(folder: Path) -> RunConfig:
    train = {"num_steps": 9, "checkpoint_every": 4, "ema": 0.5, "publish": "average"}
    plain = run_config(folder, train=train)
    return dataclasses.replace(plain, model=dataclasses.replace(plain.model, experts=EXPERTS))


def test_a_stopped_run_resumes_to_the_same_bytes_biases_included(tmp_path: Path) -> None:
    config, whole = config_in(tmp_path), tmp_path / "whole"
    whole.mkdir()
    run(config, whole)
    assert result_bytes(stop_and_resume(config, tmp_path / "stopped", 6)) == result_bytes(whole)
    bias_E = load_model(whole / "model").blocks[0].get_buffer("ffn.router.bias")
    # Nine steps of ± 0.01, as float32 adds them.
    assert 0 < bias_E.abs().max() < 0.0901
    with open_weights(whole / "checkpoints") as saved:
        last, averages = dict(saved.each()), dict(saved.each(AVERAGE))
    for name in ("blocks.0.ffn.router.bias", "blocks.0.ffn.router.weight"):
        published = load_model(whole / "model").state_dict()[name]
        assert torch.equal(published, averages[name])
        assert not torch.equal(published, last[name])
    rows = [row for row in read_rows(whole / "metrics.jsonl") if "train_loss" in row]
    assert [len(row["expert_load"]) for row in rows] == [config.model.num_layers] * 9
    assert all(load >= 1 for row in rows for load in row["expert_load"])
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.1


def test_experts_that_tensor_ranks_cannot_share_are_refused_by_name(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    with pytest.raises(ConfigError, match=r"model.experts.number \(5\) must be shared by 2"):
        dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, experts=dataclasses.replace(EXPERTS, number=5)),
            parallel=ParallelConfig(num_processes=2, kind="ddp", tp=2, device="cpu"),
        )


SHARED = ParallelConfig("fsdp", num_processes=4, ep=4, device="cpu")


@pytest.mark.parametrize(
    ("number", "parallel", "line"),
    [
        (6, SHARED, r"model.experts.number \(6\) must be a multiple of the 4 expert ranks x 1"),
        (8, dataclasses.replace(SHARED, ep=2), r"parallel.ep \(2\) must be 1, or the 4 processes"),
        (0, SHARED, r"parallel.ep \(4\) shares out experts, and model.experts is null"),
    ],
)
def test_expert_ranks_that_cannot_share_are_refused_by_name(
    number: int, parallel: ParallelConfig, line: str, tmp_path: Path
) -> None:
    config = config_in(tmp_path)
    experts = dataclasses.replace(EXPERTS, number=number) if number else None
    model = dataclasses.replace(config.model, experts=experts)
    with pytest.raises(ConfigError, match=line):
        dataclasses.replace(config, model=model, parallel=parallel)


def test_expert_ranks_need_a_layout_that_shares_weights() -> None:
    with pytest.raises(ConfigError, match=r"ep \(4\) .* kind is ddp; set parallel=zero1"):
        dataclasses.replace(SHARED, kind="ddp")


@pytest.mark.parametrize(
    ("group", "change", "line"),
    [
        ("memory", {"weights_in": "host"}, r"memory.weights_in \(host\) .* parallel.ep=1"),
        ("train", {"gradient_bits": 16, "dtype": "bf16"}, r"train.gradient_bits \(16\) .*ep=1"),
    ],
)
def test_savings_of_fsdp_do_not_go_with_expert_ranks(
    group: str, change: dict[str, object], line: str, tmp_path: Path
) -> None:
    config = config_in(tmp_path)
    model = dataclasses.replace(config.model, experts=dataclasses.replace(EXPERTS, number=8))
    changed = dataclasses.replace(getattr(config, group), **change)
    with pytest.raises(ConfigError, match=line):
        dataclasses.replace(config, model=model, parallel=SHARED, **{group: changed})
