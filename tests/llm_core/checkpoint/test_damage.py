"""A damaged checkpoint is found, kept, and passed over; where none is sound the run starts over
only when asked to."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.folders import Progress, read_progress, steps_in, write_progress
from llm_core.checkpoint.reader import CheckpointError, read_index
from llm_core.config import ConfigError
from llm_core.optim.config import GuardConfig
from llm_core.optim.guard import TrainingDiverged
from llm_core.parallel.ranks import Ranks
from llm_core.training.rollback import Rollback
from tests.support.engine.small_runs import OPTIM
from tests.support.engine.small_states import ALONE, Run, damage, equal


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["cut", "flipped"]),
    st.sampled_from(["__0_0.distcp", ".metadata"]),
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
    "text", ["", "{", "[]", "{}", '{"step": 20}', '{"step": 21, "val_loss": null, "files": {}}']
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
        ({"files": {"a/b": [3, "digest"]}}, "'a/b' is not the name of a file"),
        ({"files": {"9" * 256: [3, "digest"]}}, "is not the name of a file"),
        ({"files": {"\ud800": [3, "digest"]}}, "surrogates not allowed"),
        ({"files": {"a": [float("inf"), "digest"]}}, "infinity to integer"),
        ({"made_with": json.loads("[" * 500 + "]" * 500)}, "nested deeper"),
    ],
    ids=["path", "long name", "surrogate", "infinite size", "nested"],
)
def test_a_progress_file_of_impossible_values_is_damage(
    changed: dict[str, Any],
    why: str,
    tmp_path: Path,
) -> None:
    progress = {"step": 7, "val_loss": 1.5, "files": {}, "made_with": None}
    (tmp_path / "step-00000007").mkdir()
    text = json.dumps(progress | changed)
    (tmp_path / "step-00000007" / "progress.json").write_text(text, "utf-8")
    read = read_progress(tmp_path, 7)
    assert isinstance(read, str) and read.startswith("progress.json cannot be read") and why in read


def test_progress_that_would_count_as_damage_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"progress\.json would be JSON that is not read again"):
        write_progress(tmp_path, tmp_path, Progress(7, None, {}, {"seed": 10**100}))
    assert list(tmp_path.iterdir()) == []


def sound_index() -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([4]), [chunk])
    places = {MetadataIndex("weight", [0]): _StorageInfo("__0_0.distcp", 0, 16)}
    return Metadata({"weight": tensor}, storage_data=places)


def indexed(**changes: Any) -> bytes:
    return pickle.dumps(dataclasses.replace(sound_index(), **changes))


def place(*facts: Any) -> dict[str, Any]:
    return {"storage_data": {MetadataIndex("weight"): _StorageInfo(*facts)}}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b".", b"N.", b"\x80\x04", b"garbage", b"0.", b"}\x8c\x01aR.", b"h\x07."),
        pickle.dumps({}),
        b"\x8e" + (1 << 62).to_bytes(8, "little"),  # a length that no memory has
        b"Nr\0\0\0\x01.",
        b"Np16777216\n.",
        b"ctorch\nSize\n(I1\nI2\ntR.",
        b"cpathlib\nPosixPath\n(I1\ntR.",
        b"ctorch\ndevice\n(S'nowhere'\ntR.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81.",
        indexed(state_dict_metadata=None),
        indexed(state_dict_metadata={3: None}),
        indexed(state_dict_metadata={"weight": None}),
        indexed(storage_data=None),
        indexed(storage_meta="none"),
        indexed(**place("../elsewhere", 0, 16)),
        indexed(**place("..", 0, 16)),
        indexed(**place("__0_0.distcp", -1, 16)),
        indexed(**place("__0_0.distcp", 0, None)),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_a_damaged_index_gives_the_one_error_that_is_documented(
    data: bytes, tmp_path: Path
) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    rule = r"is damaged; restore or delete the checkpoint \("
    with pytest.raises(CheckpointError, match=rule) as caught:
        read_index(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_sound_index_is_read_and_one_that_is_missing_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_index(tmp_path)
    (tmp_path / ".metadata").write_bytes(indexed())
    assert read_index(tmp_path) == sound_index()


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
                folder / "__0_0.distcp", "flipped", 0.5
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
        damage(tmp_path / "step-00000001" / ".metadata", "cut", 0.5)
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
        damage(tmp_path / "step-00000002" / "__0_0.distcp", "flipped", 0.5)
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
        damage(tmp_path / "points" / "step-00000006" / "__0_0.distcp", "flipped", 0.5)
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
    name = {"list": "steps_in", "progress": "read_progress", "data": "digest_pieces"}[place]
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
        for name in ("progress.json", "__0_0.distcp"):
            (tmp_path / "step-00000001" / name).rename(hidden)
            threading.Timer(0.3, hidden.rename, [tmp_path / "step-00000001" / name]).start()
            assert checkpoints.load(*run.parts) == 1


class Exchange:
    """Two ranks that are threads. One that is left alone at a barrier is told so after a second."""

    def __init__(self) -> None:
        self._meet, self._values = threading.Barrier(2), [None, None]

    def gather(self, value: Any, ranks: Ranks) -> list[Any]:
        self._values[ranks.rank] = value
        self.wait(ranks)
        found = list(self._values)
        self.wait(ranks)
        return found

    def wait(self, _: Ranks) -> None:
        self._meet.wait(timeout=1)


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

    run, exchange = Run(dim=8), Exchange()
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(1, *run.parts)
    if fails == "set_aside":
        damage(tmp_path / "step-00000001" / "__0_0.distcp", "flipped", 0.5)
    monkeypatch.setattr("llm_core.checkpoint.checkpoints.gather_objects", exchange.gather)
    monkeypatch.setattr(Ranks, "barrier", lambda ranks: exchange.wait(ranks))
    monkeypatch.setattr(f"llm_core.checkpoint.checkpoints.{fails}", no_answer)

    def call(rank: int) -> None:
        with Checkpoints(tmp_path, Ranks(rank, 2, torch.device("cpu"))) as checkpoints:
            CALLS[fails](checkpoints)

    with ThreadPoolExecutor(2) as threads:
        raised = [one.exception() for one in [threads.submit(call, rank) for rank in range(2)]]
    for error in raised:
        assert isinstance(error, CheckpointError), error
        assert "cannot be read or changed (rank 0: " in str(error) and "\n" not in str(error)
