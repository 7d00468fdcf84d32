"""The average of the weights is a mean by powers of its decay, and takes their place if asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from llm_core.config import ConfigError
from llm_core.optim.method import AVERAGE
from llm_core.training.metric_log import read_rows
from tests.support.engine.optimized_runs import in_folder, make_config
from tests.support.engine.small_optimizers import ONE, copies, make_optimizer, same, set_gradients
from tests.support.engine.small_runs import TRAIN, result_bytes, stop_and_resume

NAN = ONE * float("nan")


@settings(max_examples=8, deadline=None)
@given(st.floats(0.01, 0.99), st.sets(st.integers(0, 5), max_size=3))
def test_the_average_is_the_mean_of_all_weights_by_powers_of_the_decay(
    decay: float, skipped: set[int]
) -> None:
    weights, optimizer, config = make_optimizer(ema=decay)
    seen = []
    for step in range(6):
        set_gradients(weights, step)
        before = {s.weight.name: s.piece.clone() for s in optimizer.states() if s.kind == AVERAGE}
        optimizer.step(config.lr, NAN if step in skipped else ONE, ONE)
        if step in skipped:
            after = {s.weight.name: s.piece for s in optimizer.states() if s.kind == AVERAGE}
            assert same(before, after)
        else:
            seen.append(copies(weights))
    powers = [decay ** (len(seen) - 1 - k) for k in range(len(seen))]
    last = copies(weights)
    with optimizer.averaged():
        for name, weight in weights.items():
            expected = sum(p * w[name] for p, w in zip(powers, seen, strict=True)) / sum(powers)
            torch.testing.assert_close(weight.detach(), expected, atol=1e-14, rtol=1e-12)
    assert same(copies(weights), last)


def test_before_the_first_update_there_is_no_average_to_take() -> None:
    weights, optimizer, config = make_optimizer(ema=0.9)
    initial = copies(weights)
    for seed in range(2):
        with optimizer.averaged():
            assert same(copies(weights), initial)
        set_gradients(weights, seed)
        optimizer.step(config.lr, NAN, ONE)


@pytest.mark.parametrize("state_in", ["device", "host", "disk"])
def test_a_stopped_run_resumes_its_average_to_the_bit_wherever_that_is(
    state_in: str, tmp_path: Path
) -> None:
    config = make_config(tmp_path, {"ema": 0.8, "validate_every": 3}, state_in=state_in)
    whole = in_folder(config, tmp_path / "whole")
    assert result_bytes(stop_and_resume(config, tmp_path / "stopped", 5)) == result_bytes(whole)
    here = dataclasses.replace(config, optim=dataclasses.replace(config.optim, state_in="device"))
    assert result_bytes(in_folder(here, tmp_path / "here")) == result_bytes(whole)


def test_the_average_changes_no_step_and_is_published_by_choice(tmp_path: Path) -> None:
    found, rows = {}, {}
    for name, train in (
        ("plain", {}),
        ("average", {"ema": 0.8}),
        ("last", {"ema": 0.8, "publish": "last"}),
    ):
        values = {"validate_every": 3, "keep_models_every": 4} | train
        (tmp_path / name).mkdir()
        config = make_config(tmp_path / name, values)
        workdir = in_folder(config, tmp_path / name / "run")
        files = "model/model.safetensors", "models/step-00000004/model.safetensors"
        found[name] = [load_file(workdir / file) for file in files]
        rows[name] = read_rows(workdir / "metrics.jsonl")
    losses = {name: [row for row in some if "train_loss" in row] for name, some in rows.items()}
    assert losses["plain"] == losses["average"] == losses["last"]
    assert rows["plain"] == rows["last"] != rows["average"]
    for plain, average, last in zip(*found.values(), strict=True):
        assert same(plain, last) and not same(plain, average)


def test_an_impossible_decay_is_refused() -> None:
    for decay in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=rf"ema \({decay}\) must be at least 0 and below 1"):
            dataclasses.replace(TRAIN, ema=decay)
