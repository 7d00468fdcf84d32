"""A damaged checkpoint is found, kept, and passed over; where none is sound the run starts over
only when asked to."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.folders import Progress, read_progress, steps_in, write_progress
from llm_core.checkpoint.index import CheckpointError, Entry, read_index
from llm_core.config import ConfigError
from llm_core.optim.config import GuardConfig
from llm_core.optim.guard import TrainingDiverged
from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.ranks import Ranks
from llm_core.training.rollback import Rollback
from tests.support.engine.small_runs import OPTIM
from tests.support.engine.small_states import ALONE, Run, damage, equal


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["cut", "flipped"]),
    st.sampled_from(["rank-00000.safetensors", "index.json"]),
    st.floats(0, 1),
)
def test_one_changed_bit_or_lost_byte_is_found_and_the_checkpoint_before_is_used(
    tmp_path_factory: pytest.TempPathFactory, how: str, name: str, place: float
) -> None:
    root, run, told = tmp_path_factory.mktemp("root"), Run(dim=8), []
    checkpoints = Checkpoints(root, ALONE, report=lambda *event: told.append(event))
    checkpoints.save(10, *run.parts)
    before = run.values()
    run.move()
    checkpoints.save(20, *run.parts)
    damage(root / "step-00000020" / name, how, place)
    other = Run(dim=8)
    assert checkpoints.load(*other.parts) == 10 and equal(other.values(), before)
    assert [event[:2] for event in told] == [("damaged_checkpoint", 20)] and name in told[0][2]
    assert steps_in(root) == [10], "the damaged one must not count among those that are kept"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"step": 20}',
        '{"step": 21, "val_loss": null, "num_files": 1, "index_digest": ""}',
    ],
)
def test_a_checkpoint_that_does_not_say_what_it_holds_is_passed_over(
    text: str, tmp_path: Path
) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, *run.parts)
        (tmp_path / "step-00000020" / "progress.json").write_text(text, "utf-8")
        assert checkpoints.load(*run.parts) == 10


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"num_files": "many"}, "invalid literal"),
        ({"num_files": float("inf")}, "infinity to integer"),
        ({"val_loss": "low"}, "could not convert"),
        ({"made_with": json.loads("[" * 500 + "]" * 500)}, "nested deeper"),
    ],
    ids=["no number", "infinite", "no loss", "nested"],
)
def test_a_progress_file_of_impossible_values_is_damage(
    changed: dict[str, Any],
    why: str,
    tmp_path: Path,
) -> None:
    progress = {"step": 7, "val_loss": 1.5, "num_files": 1, "index_digest": "", "made_with": None}
    (tmp_path / "step-00000007").mkdir()
    text = json.dumps(progress | changed)
    (tmp_path / "step-00000007" / "progress.json").write_text(text, "utf-8")
    read = read_progress(tmp_path, 7)
    assert isinstance(read, str) and read.startswith("progress.json cannot be read") and why in read


def test_progress_that_would_count_as_damage_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"progress\.json would be JSON that is not read again"):
        write_progress(tmp_path, tmp_path, Progress(7, None, 1, "", {"seed": 10**100}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": [1, 0, 1, 1]},
        {"sizes": [1, 1]},
        {"sizes": None},
        {"tensors": {"weight": None}},
        {"tensors": {"weight": {"shape": [-1], "dtype": "F32"}}},
        {"tensors": {"weight": {"shape": [4], "dtype": "PICKLE"}}},
        {"tensors": {"weight": {"shape": [4], "dtype": "F32", "cuts": [["tp", 1]]}}},
        {"tensors": {"weight": {"shape": [4], "dtype": "F32", "cuts": [["cp", 0]]}}},
        {"tensors": {"weight": {"shape": [4], "dtype": "F32", "copy": 2}}},
        {"tensors": {"weight": {"shape": [4], "dtype": "F32", "pp": 1}}},
        {"tensors": {"weight": {"shape": [4], "dtype": "F32", "file": "../elsewhere"}}},
        {"tensors": json.loads("[" * 500 + "]" * 500)},
    ],
    ids=str,
)
def test_a_damaged_index_gives_the_one_error_that_is_documented(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    sound = {"sizes": [1, 2, 1, 1], "tensors": {"weight": {"shape": [4], "dtype": "F32"}}}
    (tmp_path / "index.json").write_text(json.dumps(sound), "utf-8")
    assert read_index(tmp_path).tensors == {"weight": Entry((4,), "F32")}
    (tmp_path / "index.json").write_text(json.dumps(sound | changed), "utf-8")
    rule = r"is damaged; restore or delete the checkpoint \("
    with pytest.raises(CheckpointError, match=rule) as caught:
        read_index(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\ud800"])
def test_an_index_that_is_no_index_is_damage_and_one_that_is_missing_is_not(
    text: str, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        read_index(tmp_path)
    (tmp_path / "index.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=r"is damaged"):
        read_index(tmp_path)


def contents(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("lost", [False, True])
def test_where_no_checkpoint_is_sound_the_run_is_refused_and_none_is_lost(
    lost: bool, tmp_path: Path
) -> None:
    run, told = Run(dim=8), []
    with Checkpoints(tmp_path, ALONE, report=lambda *event: told.append(event)) as checkpoints:
        assert checkpoints.load(*run.parts) == 0, "without any it begins"
        for step in (1, 2):
            checkpoints.save(step, *run.parts)
            folder = tmp_path / f"step-0000000{step}"
            (folder / "progress.json").unlink() if lost else damage(
                folder / "rank-00000.safetensors", "flipped", 0.5
            )
        before, kept = run.values(), sorted(contents(tmp_path).values())
        for _ in range(2):
            with pytest.raises(
                CheckpointError,
                match=r"none is sound .*step-00000001\.damaged: .*train\.restart=true",
            ):
                checkpoints.load(*run.parts)
            assert sorted(contents(tmp_path).values()) == kept and equal(run.values(), before)
        assert [event[:2] for event in told] == [("damaged_checkpoint", step) for step in (2, 1)]
        assert checkpoints.load(*run.parts, restart=True) == 0
        assert told[-1][:2] == ("restarted", 0)
        checkpoints.save(1, *run.parts)
        damage(tmp_path / "step-00000001" / "index.json", "cut", 0.5)
        checkpoints.save(2, *run.parts)
        (tmp_path / "step-00000002" / "progress.json").write_text("{", "utf-8")
        assert checkpoints.load(*run.parts, restart=True) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        f"step-0000000{step}.damaged{again}" for step in (1, 2) for again in ("", "-2")
    }


def test_an_older_checkpoint_is_used_past_a_damaged_one_that_is_kept_through_pruning(
    tmp_path: Path,
) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, *run.parts)
        damage(tmp_path / "step-00000002" / "rank-00000.safetensors", "flipped", 0.5)
        assert checkpoints.load(*run.parts) == 1
        for step in (2, 3, 4):
            checkpoints.save(step, *run.parts)
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-00000002.damaged",
        "step-00000003",
        "step-00000004",
    }


def test_a_rollback_keeps_the_best_checkpoint(tmp_path: Path) -> None:
    guard = GuardConfig(rollback_skips=1, rollback_window_steps=4, rollback_every_steps=3)
    run = Run(dim=8, optim=dataclasses.replace(OPTIM, guard=guard))
    points = Checkpoints(tmp_path / "points", ALONE)
    with (
        Checkpoints(tmp_path / "checkpoints", ALONE, keep_last=1, keep_best=True) as checkpoints,
        points,
    ):
        points.save(3, *run.parts)
        checkpoints.save(3, *run.parts, val_loss=1.0)
        checkpoints.save(6, *run.parts, val_loss=2.0)
        assert Rollback(guard, points).go_back(7, *run.parts, checkpoints) == 3
        checkpoints.save(6, *run.parts, val_loss=2.0)
    assert steps_in(checkpoints.root) == [3, 6]


def test_a_damaged_point_is_kept_and_the_run_goes_back_to_the_one_before(tmp_path: Path) -> None:
    guard = GuardConfig(rollback_skips=1, rollback_window_steps=4, rollback_every_steps=3)
    run, told = Run(dim=8, optim=dataclasses.replace(OPTIM, guard=guard)), []
    points = Checkpoints(tmp_path / "points", ALONE, report=lambda *event: told.append(event))
    with Checkpoints(tmp_path / "checkpoints", ALONE) as checkpoints, points:
        for step in (3, 6):
            points.save(step, *run.parts)
        damage(tmp_path / "points" / "step-00000006" / "rank-00000.safetensors", "flipped", 0.5)
        assert Rollback(guard, points).go_back(7, *run.parts, checkpoints) == 3
        (tmp_path / "points" / "step-00000003" / "progress.json").unlink()
        with pytest.raises(TrainingDiverged, match="no sound point to go back to"):
            Rollback(guard, points).go_back(5, *run.parts, checkpoints)
    assert {path.name for path in (tmp_path / "points").iterdir()} == {
        "step-00000003.damaged",
        "step-00000006.damaged",
    }
    assert steps_in(tmp_path / "checkpoints") == [3] and [event[:2] for event in told] == [
        ("damaged_checkpoint", 6),
        ("damaged_checkpoint", 3),
    ]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("place", ["list", "progress", "data"])
def test_a_file_system_that_does_not_answer_is_no_damage(
    number: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> Any:
        raise OSError(number, os.strerror(number), str(tmp_path))

    run = Run(dim=8)
    name = {"list": "steps_in", "progress": "read_progress", "data": "damage_in"}[place]
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(1, *run.parts)
        kept = contents(tmp_path)
        with (
            monkeypatch.context() as patch,
            pytest.raises(CheckpointError, match=rf"cannot be read .*{os.strerror(number)}"),
        ):
            patch.setattr(f"llm_core.checkpoint.checkpoints.{name}", lambda *_, **__: no_answer())
            checkpoints.load(*run.parts, restart=True)
        assert contents(tmp_path) == kept and checkpoints.load(*run.parts) == 1


def test_a_file_that_a_network_file_system_shows_late_is_no_damage(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(1, *run.parts)
        hidden = tmp_path / "hidden"
        for name in ("progress.json", "index.json", "rank-00000.json", "rank-00000.safetensors"):
            (tmp_path / "step-00000001" / name).rename(hidden)
            threading.Timer(0.3, hidden.rename, [tmp_path / "step-00000001" / name]).start()
            assert checkpoints.load(*run.parts) == 1


CALLS: dict[str, Callable[[Checkpoints], object]] = {
    "recover": lambda checkpoints: checkpoints.newest_sound(),
    "set_aside": lambda checkpoints: checkpoints.newest_sound(),
    "read_progress": lambda checkpoints: checkpoints.val_loss_at(1),
    "discard": lambda checkpoints: checkpoints.forget_after(0),
}


@pytest.mark.parametrize("fails", CALLS)
def test_what_fails_on_the_first_rank_is_raised_on_all(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    run, store = Run(dim=8), HashStore()
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(1, *run.parts)
    if fails == "set_aside":
        damage(tmp_path / "step-00000001" / "rank-00000.safetensors", "flipped", 0.5)
    monkeypatch.setattr(f"llm_core.checkpoint.checkpoints.{fails}", no_answer)

    def call(rank: int) -> None:
        ranks = Ranks(rank, 2, torch.device("cpu"))
        vars(ranks)["hosts"] = Hosts(store, rank, 2)
        with Checkpoints(tmp_path, ranks) as checkpoints:
            CALLS[fails](checkpoints)

    with ThreadPoolExecutor(2) as threads:
        raised = [one.exception() for one in [threads.submit(call, rank) for rank in range(2)]]
    for error in raised:
        assert isinstance(error, CheckpointError), error
        assert "cannot be read or changed (rank 0: " in str(error) and "\n" not in str(error)
