"""Between two logged steps the host never waits for the device: it may give it work for many steps
in advance."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from llm_core.data.config import DataConfig
from llm_core.memory.config import MemoryConfig
from llm_core.optim.config import GuardConfig
from llm_core.training import step as step_module
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.train import run
from tests.support.engine.small_runs import OPTIM, run_config, write_token_shards
from tests.support.engine.waits import WaitedError, watched_runs

GUARD = GuardConfig(spike_std=6.0, spike_window_steps=8, rollback_skips=3, rollback_every_steps=50)


def config_of(
    folder: Path, optim: dict[str, Any], train: dict[str, Any], memory: MemoryConfig
) -> RunConfig:
    plan = {"num_steps": 5, "log_every": 4, "validate_every": 0, "checkpoint_every": 100}
    config = run_config(
        folder,
        train=plan | {"checkpoint_in_background": False} | train,
        parallel={"device": "auto"},
    )
    write_token_shards(folder / "shards", sources=("walk", "web"))
    (folder / "work").mkdir()
    return dataclasses.replace(
        config, optim=dataclasses.replace(OPTIM, guard=GUARD, **optim), memory=memory
    )


CASES = [
    (
        {"kind": "muon"},
        {"dtype": "bf16", "data": DataConfig(mask_documents=True, packing="best_fit")},
        MemoryConfig("full"),
    ),
    (
        {"kind": "adafactor"},
        {"dtype": "fp16"},
        MemoryConfig("selective", loss_chunk_tokens=7, ffn_tiles=2),
    ),
    ({"kind": "adamw"}, {"data": DataConfig(prefetch_batches=0)}, MemoryConfig()),
]


@pytest.mark.parametrize(
    ("optim", "train", "memory"), CASES, ids=[str(case[0]["kind"]) for case in CASES]
)
def test_no_step_waits_for_the_device(
    optim: dict[str, Any],
    train: dict[str, Any],
    memory: MemoryConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(tmp_path, optim, train, memory)
    with watched_runs(monkeypatch):
        run(config, tmp_path / "work")
    rows = read_rows(tmp_path / "work" / "metrics.jsonl")
    assert [row["step"] for row in rows if "lr" in row] == [1, 2, 3, 4, 5]


def test_a_number_read_in_a_step_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, {}, {}, MemoryConfig())
    plain = step_module.gradient_norm

    def reading(layout: Any) -> Tensor:
        norm = plain(layout)
        return norm * 2 if norm > 1e9 else norm

    monkeypatch.setattr(step_module, "gradient_norm", reading)
    with (
        watched_runs(monkeypatch),
        pytest.raises((WaitedError, RuntimeError), match=r"between two logged steps|synchronizing"),
    ):
        run(config, tmp_path / "work")
