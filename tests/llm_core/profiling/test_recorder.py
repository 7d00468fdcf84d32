"""A run leaves a trace and a table of the steps that it was asked for, and trains as without."""

import dataclasses
import json
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.profiling.table import read_trace, tabulate
from llm_core.training.config import TrainConfig
from llm_core.training.train import run
from tests.support.engine.small_runs import TRAIN, result_bytes, run_config


@pytest.mark.parametrize(("asked", "num_recorded"), [((1, 1), 1), ((2, 3), 2)])
def test_a_profile_holds_the_steps_asked_for_and_changes_nothing(
    asked: tuple[int, int], num_recorded: int, tmp_path: Path
) -> None:
    config = run_config(
        tmp_path, train={"num_steps": 3, "validate_every": 0, "checkpoint_every": 100}
    )
    for name, steps in (("plain", ()), ("profiled", asked)):
        (tmp_path / name).mkdir()
        run(
            dataclasses.replace(
                config, train=dataclasses.replace(config.train, profile_steps=steps)
            ),
            tmp_path / name,
        )
    assert not (tmp_path / "plain" / "profile").exists()
    assert result_bytes(tmp_path / "profiled") == result_bytes(tmp_path / "plain")
    folder = tmp_path / "profiled" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank-0.json",
        "rank-0.md",
        "rank-0.trace.json.gz",
    ]
    table = json.loads((folder / "rank-0.json").read_text("utf-8"))
    assert table["num_steps"] == num_recorded and table["device"] == "cpu"
    calls = {row["kind"]: row["calls"] for row in table["rows"]}
    # Forward and backward of four micro batches: two blocks of four products each, and the head.
    assert (
        calls["matmul"] >= 4 * 3 * (2 * 4 + 1)
        and calls["attention"] >= 4 * 2 * 2
        and calls["optimizer"] > 0
    )
    assert sum(row["exposed_ms"] for row in table["rows"]) == pytest.approx(table["step_ms"])
    assert dataclasses.asdict(tabulate(read_trace(folder / "rank-0.trace.json.gz"))) == table


@pytest.mark.parametrize(
    ("steps", "rule"),
    [((3,), "the first and the last"), ((0, 2), "from 1 on"), ((5, 13), "num_steps")],
)
def test_steps_that_cannot_be_profiled_are_refused(steps: tuple[int, ...], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        dataclasses.replace(TRAIN, profile_steps=steps)
    assert TrainConfig.__dataclass_fields__["profile_steps"].metadata["in_key"] is False
