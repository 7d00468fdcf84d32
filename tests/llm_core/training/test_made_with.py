"""A checkpoint is gone on from by the run that it is of, however that is laid out, and by no
other."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.checkpoint.index import CheckpointError
from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY
from llm_core.data.shards import open_shards
from llm_core.optim.config import OptimConfig
from llm_core.training.made_with import MadeWith, made_with
from llm_core.training.metric_log import read_rows, training_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.schedule import learning_rate
from llm_core.training.train import run
from tests.support.engine.small_runs import result_bytes, run_config, write_token_shards

STEPS = {"num_steps": 4, "checkpoint_every": 2, "validate_every": 0}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return changed(
        run_config(tmp_path_factory.mktemp("inputs"), train=STEPS), "optim", schedule="constant"
    )


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("finished")
    run(config, workdir)
    return workdir


def changed(config: RunConfig, group: str, **values: Any) -> RunConfig:
    return dataclasses.replace(
        config, **{group: dataclasses.replace(getattr(config, group), **values)}
    )


def other_shards(config: RunConfig, folder: Path) -> RunConfig:
    return dataclasses.replace(
        config, shards=write_token_shards(folder / "other", document_tokens=61)
    )


OTHERS: dict[str, tuple[Callable[[RunConfig, Path], RunConfig], str]] = {
    "seed": (lambda c, _: changed(c, "train", seed=99), "train.seed is 7, that of this run 99"),
    "rows": (
        lambda c, _: changed(c, "train", seq_len=32),
        "train.seq_len is 16, that of this run 32",
    ),
    "rate": (lambda c, _: changed(c, "optim", lr=1e-1), "optim.lr is 0.003, that of this run 0.1"),
    "schedule": (
        lambda c, _: changed(c, "optim", schedule="linear"),
        "optim.schedule is constant, that of this run linear",
    ),
    "decay": (
        lambda c, _: changed(c, "optim", weight_decay=0.7),
        "optim.weight_decay is 0.1, that of this run 0.7",
    ),
    "clip": (
        lambda c, _: changed(c, "optim", clip_norm=9.0),
        "optim.clip_norm is 1.0, that of this run 9.0",
    ),
    "beta2": (
        lambda c, _: changed(c, "optim", beta2=0.5),
        "optim.beta2 is 0.95, that of this run 0.5",
    ),
    "corpus": (other_shards, "shards.train is [0-9a-f]{16}, that of this run [0-9a-f]{16}"),
    "model": (
        lambda c, _: changed(c, "model", num_layers=1),
        "model.num_layers is 2, that of this run 1",
    ),
}


@pytest.mark.parametrize(("change", "line"), OTHERS.values(), ids=OTHERS)
def test_another_run_is_refused_by_the_first_setting_that_differs(
    change: Callable[[RunConfig, Path], RunConfig],
    line: str,
    config: RunConfig,
    finished: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(finished, tmp_path / "work")
    other = change(changed(config, "train", num_steps=8), tmp_path)
    with pytest.raises(
        CheckpointError,
        match=f"step-00000004 is of another run: its {line}; .* work directory of its own$",
    ):
        run(other, tmp_path / "work")


def test_another_micro_batch_and_longer_training_end_as_if_they_had_been_so_from_the_start(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    longer = changed(config, "train", num_steps=6)
    shutil.copytree(finished, tmp_path / "resumed")
    (tmp_path / "whole").mkdir()
    run(changed(longer, "train", micro_batch_sequences=1, log_every=2), tmp_path / "resumed")
    run(longer, tmp_path / "whole")
    rows = [
        training_rows(read_rows(tmp_path / name / "metrics.jsonl")) for name in ("resumed", "whole")
    ]
    losses = [[row["train_loss"] for row in found if "train_loss" in row] for found in rows]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 6


def test_a_longer_run_has_the_bytes_of_one_planned_so(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    # Validating at step 4 too, as the last of the shorter one was.
    longer = changed(config, "train", num_steps=8, validate_every=4)
    (tmp_path / "whole").mkdir()
    run(longer, tmp_path / "whole")
    (tmp_path / "short").mkdir()
    run(changed(longer, "train", num_steps=4), tmp_path / "short")
    run(longer, tmp_path / "short")
    assert result_bytes(tmp_path / "short") == result_bytes(tmp_path / "whole")


def test_a_checkpoint_that_does_not_say_is_loaded_and_said_to_be_one(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "work")
    file = tmp_path / "work" / "checkpoints" / "step-00000004" / "progress.json"
    found = json.loads(file.read_text("utf-8"))
    del found["made_with"]
    file.write_text(json.dumps(found), "utf-8")
    run(changed(config, "train", num_steps=5), tmp_path / "work")
    events = [row for row in read_rows(tmp_path / "work" / "metrics.jsonl") if "event" in row]
    assert [(row["event"], row["step"]) for row in events] == [
        ("unknown_checkpoint", 4),
        ("resumed", 4),
    ]


@given(
    st.sampled_from(["constant", "inverse_sqrt", "wsd", "cosine", "linear"]),
    st.integers(0, 9),
    st.integers(1, 40),
    st.integers(1, 40),
    st.data(),
)
@settings(deadline=None)
def test_more_steps_are_taken_exactly_where_no_rate_of_a_step_made_changes(
    schedule: Any, warmup: int, before: int, now: int, chosen: st.DataObject
) -> None:
    optim = OptimConfig(lr=1e-3, schedule=schedule, warmup_steps=warmup)
    step = chosen.draw(st.integers(1, min(before, now)))
    found = MadeWith({"train.num_steps": now}, optim).difference_to(
        {"train.num_steps": before}, step
    )
    same = all(
        learning_rate(k, before, optim) == learning_rate(k, now, optim) for k in range(1, step + 1)
    )
    assert (found is None) == same
    if schedule in ("constant", "inverse_sqrt") or before == now or step <= warmup:
        assert found is None
    if schedule == "cosine" and before != now and step > warmup:
        assert (
            found is not None
            and f"that of this run {now}, which changes the learning rate of step {warmup + 1} "
            in found
        )


def test_every_setting_that_decides_the_result_is_compared_and_no_other(config: RunConfig) -> None:
    names = made_with(config, open_shards(config.shards, "train")).settings.keys()
    for group in ("model", "optim", "train"):
        for field in dataclasses.fields(getattr(config, group)):
            here = {
                name
                for name in names
                if name == f"{group}.{field.name}" or name.startswith(f"{group}.{field.name}.")
            }
            # Some decide it only where they are set, and none is here.
            decides = field.metadata not in (NOT_IN_KEY, IN_KEY_IF_SET)
            assert bool(here) == decides, field.name
    assert "train.data.packing" in names and "train.data.prefetch_batches" not in names
    assert not any(name.startswith(("parallel", "memory")) for name in names)
