"""A checkpoint holds what was there when it was taken, is found out when it changed, and leaves when it is not wanted."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.checkpoint import folders
from llm_core.checkpoint.checkpoints import CheckpointNotWritten, Checkpoints
from llm_core.checkpoint.folders import digest_file, prune, read_progress, steps_in
from llm_core.checkpoint.reader import CheckpointError
from llm_core.checkpoint.state import collect_state
from llm_core.checkpoint.writer import Writer
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import GuardConfig, OptimConfig
from llm_core.optim.guard import TrainingDiverged
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.rollback import Rollback
from tests.llm_core.small_runs import MODEL, OPTIM

ALONE = Ranks(0, 1, torch.device("cpu"))


class Run:
    """A model and its optimizer that can be moved on without training."""

    def __init__(self, dim: int = MODEL.dim, optim: OptimConfig = OPTIM, dtype: str = "fp32", **model: Any) -> None:
        self.layout = Layout(Transformer(dataclasses.replace(MODEL, dim=dim, **model)))
        init_weights(self.layout.bare, 1)
        self.optimizer = build_optimizer(self.layout, optim, dtype)

    @property
    def parts(self) -> tuple[Layout, Optimizer]:
        return self.layout, self.optimizer

    def values(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in collect_state(*self.parts).items()}

    @torch.no_grad()
    def move(self) -> None:
        for tensor in collect_state(*self.parts).values():
            tensor.add_(1)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writing waits for it."""
    opened, write = threading.Event(), Writer.write

    def wait_and_write(self: Writer, folder: Path) -> object:
        opened.wait(30)
        return write(self, folder)

    monkeypatch.setattr(Writer, "write", wait_and_write)
    yield opened
    opened.set()


def damage(path: Path, how: str, place: float) -> None:
    data = bytearray(path.read_bytes())
    at = int(place * (len(data) - 1))
    if how == "cut":
        del data[at:]
    else:
        data[at] ^= 1 << at % 8
    path.write_bytes(bytes(data))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["cut", "flipped"]), st.sampled_from(["__0_0.distcp", ".metadata"]), st.floats(0, 1))
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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"step": 20}', '{"step": 21, "val_loss": null, "files": {}}'])
def test_a_checkpoint_that_does_not_say_what_it_holds_is_passed_over(text: str, tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, *run.parts)
        (tmp_path / "step-00000020" / "progress.json").write_text(text, "utf-8")
        assert checkpoints.load(*run.parts) == 10


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lost", [False, True])
def test_where_no_checkpoint_is_sound_the_run_is_refused_and_none_is_lost(lost: bool, tmp_path: Path) -> None:
    run, told = Run(dim=8), []
    with Checkpoints(tmp_path, ALONE, report=lambda *event: told.append(event)) as checkpoints:
        assert checkpoints.load(*run.parts) == 0, "without any it begins"
        for step in (1, 2):
            checkpoints.save(step, *run.parts)
            folder = tmp_path / f"step-0000000{step}"
            (folder / "progress.json").unlink() if lost else damage(folder / "__0_0.distcp", "flipped", 0.5)
        before, kept = run.values(), sorted(contents(tmp_path).values())
        for _ in range(2):
            with pytest.raises(CheckpointError, match=r"none is sound .*step-00000001\.damaged: .*train\.restart=true"):
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
    assert names == {f"step-0000000{step}.damaged{again}" for step in (1, 2) for again in ("", "-2")}


def test_an_older_checkpoint_is_used_past_a_damaged_one_that_is_kept_through_pruning(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, *run.parts)
        damage(tmp_path / "step-00000002" / "__0_0.distcp", "flipped", 0.5)
        assert checkpoints.load(*run.parts) == 1
        for step in (2, 3, 4):
            checkpoints.save(step, *run.parts)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000002.damaged", "step-00000003", "step-00000004"}


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
    assert {path.name for path in (tmp_path / "points").iterdir()} == {"step-00000003.damaged", "step-00000006.damaged"}
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
    name = {"list": "steps_in", "progress": "read_progress", "data": "digest_file"}[place]
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(1, *run.parts)
        kept = contents(tmp_path)
        with monkeypatch.context() as patch, pytest.raises(CheckpointError, match=rf"cannot be read .*{os.strerror(number)}"):
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


LION, ADAFACTOR = (OptimConfig(lr=1e-3, kind=kind) for kind in ("lion", "adafactor"))
WITH_SPIKES = dataclasses.replace(OPTIM, guard=GuardConfig(spike_std=3.0))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"dim": 16}, r"its \S+ is \(8, 8\), that of this run \(16, 16\)"),
        ({"num_layers": 1}, r"it has model.blocks.1.attention.out.weight, which this run has not"),
        ({"num_layers": 3}, r"it has no model.blocks.2.attention.out.weight"),
        ({"optim": LION}, r"it has optimizer.\S+.exp_avg_sq, which this run has not"),
        ({"optim": ADAFACTOR}, r"it has no optimizer.\S+.columns"),
        ({"optim": WITH_SPIKES}, "it has no guard.accepted"),
        ({"dtype": "fp16"}, r"it has no loss_scale\.\S+"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_in_one_line_and_stays(other: dict[str, Any], what: str, tmp_path: Path) -> None:
    run = Run(**({"dim": 8} | other))
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(3, *Run(dim=8).parts)
        before = run.values()
        with pytest.raises(CheckpointError, match=rf"step-00000003 is of another run: {what}; .*work directory") as caught:
            checkpoints.load(*run.parts)
    assert "\n" not in str(caught.value) and equal(run.values(), before) and steps_in(tmp_path) == [3]


def test_what_lies_beside_checkpoints_is_left_alone_and_in_their_way_is_replaced(tmp_path: Path) -> None:
    root, run = tmp_path / "root", Run(dim=8)
    with Checkpoints(root, ALONE, keep_last=1) as checkpoints:
        checkpoints.save(1, *run.parts)
        for name in ("step-00000001.bak", "step-2", "step-old"):
            shutil.copytree(root / "step-00000001", root / name)
        (root / "step-00000001").rename(tmp_path / "elsewhere")
        (root / "step-00000001").symlink_to(tmp_path / "elsewhere")
        for name in ("step-00000002", ".step-00000002.tmp", ".step-00000003.tmp"):
            (root / name).write_text("a file", "utf-8")
        assert checkpoints.load(*run.parts) == 1
        checkpoints.save(2, *run.parts)
        assert checkpoints.load(*run.parts) == 2
    assert {path.name for path in root.iterdir()} == {"step-00000002", "step-00000001.bak", "step-2", "step-old"}
    assert (tmp_path / "elsewhere" / "progress.json").is_file()


def test_written_in_background_it_holds_what_was_there_when_it_was_taken(tmp_path: Path, gate: threading.Event) -> None:
    run = Run()
    at_once = Checkpoints(tmp_path / "at_once", ALONE)
    later = Checkpoints(tmp_path / "later", ALONE, in_background=True)
    later.save(5, *run.parts)
    taken = run.values()
    run.move()
    later.poll()
    assert steps_in(tmp_path / "later") == [], "not in force before it is written"
    gate.set()
    later.finish()
    other = Run()
    assert later.load(*other.parts) == 5 and equal(other.values(), taken)
    at_once.save(5, *other.parts)
    files = [(tmp_path / name / "step-00000005" / "__0_0.distcp").read_bytes() for name in ("at_once", "later")]
    assert files[0] == files[1]


def test_a_second_save_waits_for_the_first(tmp_path: Path, gate: threading.Event) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, in_background=True) as checkpoints:
        checkpoints.save(1, *run.parts)
        threading.Timer(0.2, gate.set).start()
        checkpoints.save(2, *run.parts)
        assert steps_in(tmp_path) == [1]
        checkpoints.finish()
        assert steps_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("in_background", [False, True])
def test_a_failed_write_is_raised_and_the_checkpoint_before_stays_in_force(
    in_background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(_path: Path) -> str:
        raise OSError(28, "No space left on device")

    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, in_background=in_background) as checkpoints:
        checkpoints.save(1, *run.parts)
        checkpoints.finish()
        monkeypatch.setattr("llm_core.checkpoint.writer.digest_file", no_space)
        with pytest.raises(CheckpointNotWritten, match=r"step 2 was not written, rank 0: .*No space left") as raised:
            checkpoints.save(2, *run.parts)
            while True:
                checkpoints.poll()
        assert isinstance(raised.value.__cause__, OSError)
        monkeypatch.undo()
        assert checkpoints.load(*run.parts) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"], "what was half written is gone"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.none() | st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=8),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_last_few_are_kept_and_the_best_where_it_is_wanted(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float | None], keep_last: int, keep_best: bool
) -> None:
    root = tmp_path_factory.mktemp("root")
    kept: list[int] = []
    for step, loss in enumerate(losses):
        folder = folders.folder_of(root, step)
        folder.mkdir()
        folders.write_progress(folder, root, folders.Progress(step, loss, {}))
        prune(root, step, keep_last, keep_best)
        there = [*kept, step]
        best = min(((found, s) for s in there if (found := losses[s]) is not None), default=(0.0, None))[1]
        named = json.loads((folder / "progress.json").read_text("utf-8"))["best"]
        assert named == best
        kept = [s for s in there if s in there[-keep_last:] or (keep_best and s == best)]
        assert steps_in(root) == kept


def test_going_back_forgets_what_came_later(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, *run.parts)
        assert checkpoints.newest_sound(newest=2) == 2 and steps_in(tmp_path) == [1, 2, 3]
        checkpoints.forget_after(2)
        assert steps_in(tmp_path) == [1, 2] and checkpoints.load(*run.parts) == 2


def test_later_checkpoints_neither_count_nor_go_when_an_earlier_step_is_saved_again(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1, keep_best=True) as checkpoints:
        checkpoints.save(2, *run.parts, val_loss=2.0)
        with Checkpoints(tmp_path, ALONE, keep_last=3) as lavish:
            lavish.save(7, *run.parts, val_loss=1.0)
        checkpoints.save(3, *run.parts, val_loss=3.0)
        assert steps_in(tmp_path) == [2, 3, 7]
        assert json.loads((tmp_path / "step-00000003" / "progress.json").read_text("utf-8"))["best"] == 2


@given(st.binary(max_size=300), st.integers(1, 64), st.data())
def test_a_digest_is_of_every_byte_in_its_place(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, piece: int, chosen: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("digest") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "PIECE", piece)
        path.write_bytes(data)
        digest = digest_file(path)
        assert digest == digest_file(path)
        other = chosen.draw(st.binary(max_size=300).filter(lambda found: found != data))
        path.write_bytes(other)
        assert digest_file(path) != digest


def test_progress_names_every_file(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(7, *Run(dim=8).parts, val_loss=1.5)
    progress = read_progress(tmp_path, 7)
    assert not isinstance(progress, str)
    folder = tmp_path / "step-00000007"
    assert {*progress.files, "progress.json"} == {path.name for path in folder.iterdir()}
    assert (progress.step, progress.val_loss) == (7, 1.5)
    assert json.loads((folder / "progress.json").read_text("utf-8"))["best"] == 7


@pytest.mark.slow
@pytest.mark.parametrize("in_background", [False, True])
def test_fifty_saves_take_no_more_memory_than_a_few(in_background: bool, tmp_path: Path) -> None:
    run = Run(dim=512)
    with Checkpoints(tmp_path, ALONE, in_background=in_background) as checkpoints:

        def save(times: range) -> int:
            for step in times:
                checkpoints.save(step, *run.parts)
            checkpoints.finish()
            gc.collect()
            return resident_bytes()

        few = save(range(1, 6))
        assert save(range(6, 56)) < few + 8 * 2**20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * resource.getpagesize()
