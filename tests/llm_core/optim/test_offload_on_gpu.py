"""On a GPU too, where state and weights lie changes no answer, nor what a stopped run goes on
to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from llm_core.memory.config import MemoryConfig
from llm_core.optim import offload
from llm_core.training.metric_log import read_rows
from llm_core.training.status import read_status
from llm_core.training.train import StopFlag, run
from tests.support.engine.small_runs import run_config

pytestmark = pytest.mark.gpu

PLACES: dict[str, tuple[dict[str, Any], MemoryConfig, str]] = {
    "device": ({}, MemoryConfig(), "none"),
    "host": ({"state_in": "host"}, MemoryConfig(), "none"),
    "disk": ({"state_in": "disk"}, MemoryConfig(), "none"),
    "weights in host": ({}, MemoryConfig(weights_in="host"), "fsdp"),
    "weights in host, copies on the device": ({}, MemoryConfig(weights_in="host"), "zero2"),
    "weights in host, state on disk": (
        {"state_in": "disk"},
        MemoryConfig(weights_in="host"),
        "fsdp",
    ),
    "weights on disk": ({"state_in": "disk"}, MemoryConfig(weights_in="disk"), "fsdp"),
    "weights on disk, copies on the device": (
        {"state_in": "disk"},
        MemoryConfig(weights_in="disk"),
        "zero2",
    ),
}


def losses(folder: Path, place: str, inputs: Path) -> list[float]:
    """Of each step and of validations, after 20 steps with state at `place`."""
    optim, memory, kind = PLACES[place]
    config = run_config(
        inputs,
        train={"num_steps": 20, "checkpoint_every": 6},
        parallel={"device": "cuda", "kind": kind},
    )
    folder.mkdir(exist_ok=True)
    run(
        dataclasses.replace(
            config, optim=dataclasses.replace(config.optim, **optim), memory=memory
        ),
        folder,
    )
    rows = read_rows(folder / "metrics.jsonl")  # events among them have no loss
    return [row[name] for row in rows for name in ("train_loss", "val_loss") if name in row]


@pytest.mark.parametrize("place", [place for place in PLACES if place != "device"])
def test_losses_are_those_of_state_on_the_device_and_a_stopped_run_goes_on_to_them(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "PAGE", offload.GRAIN)
    expected = losses(tmp_path / "device", "device", tmp_path / "inputs")
    assert len(expected) == 24 and expected[-1] < expected[0]
    whole = losses(tmp_path / "whole", place, tmp_path / "inputs")
    assert whole == pytest.approx(expected, rel=1e-5)
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(StopFlag, "__call__", lambda self: asked.append(1) or len(asked) > 10)
        losses(tmp_path / "stopped", place, tmp_path / "inputs")
    assert read_status(tmp_path / "stopped" / "status.json")["outcome"] == "preempted"
    assert losses(tmp_path / "stopped", place, tmp_path / "inputs") == pytest.approx(
        whole, rel=1e-6
    )
