"""A checkpoint holds what was there when it was taken, is found out when it changed, and leaves
when it is not wanted."""

from __future__ import annotations

import dataclasses
import gc
import json
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.checkpoint import folders
from llm_core.checkpoint.checkpoints import CheckpointNotWritten, Checkpoints
from llm_core.checkpoint.folders import digest_pieces, prune, read_progress, steps_in
from llm_core.checkpoint.index import CheckpointError
from llm_core.checkpoint.writer import Writer
from llm_core.optim.config import GuardConfig, OptimConfig
from tests.support.engine.small_runs import OPTIM
from tests.support.engine.small_states import ALONE, Run, equal


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writing waits for it."""
    opened, write = threading.Event(), Writer.write

    def wait_and_write(self: Writer, folder: Path, step: int) -> None:
        opened.wait(30)
        write(self, folder, step)

    monkeypatch.setattr(Writer, "write", wait_and_write)
    yield opened
    opened.set()


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
def test_a_checkpoint_of_another_run_is_refused_in_one_line_and_stays(
    other: dict[str, Any], what: str, tmp_path: Path
) -> None:
    run = Run(**({"dim": 8} | other))
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(3, *Run(dim=8).parts)
        before = run.values()
        with pytest.raises(
            CheckpointError, match=rf"step-00000003 is of another run: {what}; .*work directory"
        ) as caught:
            checkpoints.load(*run.parts)
    assert (
        "\n" not in str(caught.value) and equal(run.values(), before) and steps_in(tmp_path) == [3]
    )


def test_what_lies_beside_checkpoints_is_left_alone_and_in_their_way_is_replaced(
    tmp_path: Path,
) -> None:
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
    assert {path.name for path in root.iterdir()} == {
        "step-00000002",
        "step-00000001.bak",
        "step-2",
        "step-old",
    }
    assert (tmp_path / "elsewhere" / "progress.json").is_file()


def test_written_in_background_it_holds_what_was_there_when_it_was_taken(
    tmp_path: Path, gate: threading.Event
) -> None:
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
    files = [
        (tmp_path / name / "step-00000005" / "rank-00000.safetensors").read_bytes()
        for name in ("at_once", "later")
    ]
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
        monkeypatch.setattr("llm_core.checkpoint.folders.digest_pieces", no_space)
        with pytest.raises(
            CheckpointNotWritten, match=r"step 2 was not written, rank 0: .*No space left"
        ) as raised:
            checkpoints.save(2, *run.parts)
            while True:
                checkpoints.poll()
        assert isinstance(raised.value.__cause__, OSError)
        monkeypatch.undo()
        assert checkpoints.load(*run.parts) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"], (
            "what was half written is gone"
        )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.none() | st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=8),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_last_few_are_kept_and_the_best_where_it_is_wanted(
    tmp_path_factory: pytest.TempPathFactory,
    losses: list[float | None],
    keep_last: int,
    keep_best: bool,
) -> None:
    root = tmp_path_factory.mktemp("root")
    kept: list[int] = []
    for step, loss in enumerate(losses):
        folder = folders.folder_of(root, step)
        folder.mkdir()
        folders.write_progress(folder, root, folders.Progress(step, loss, 1, ""))
        prune(root, step, keep_last, keep_best)
        there = [*kept, step]
        best = min(
            ((found, s) for s in there if (found := losses[s]) is not None), default=(0.0, None)
        )[1]
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


def test_later_checkpoints_neither_count_nor_go_when_an_earlier_step_is_saved_again(
    tmp_path: Path,
) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1, keep_best=True) as checkpoints:
        checkpoints.save(2, *run.parts, val_loss=2.0)
        with Checkpoints(tmp_path, ALONE, keep_last=3) as lavish:
            lavish.save(7, *run.parts, val_loss=1.0)
        checkpoints.save(3, *run.parts, val_loss=3.0)
        assert steps_in(tmp_path) == [2, 3, 7]
        assert (
            json.loads((tmp_path / "step-00000003" / "progress.json").read_text("utf-8"))["best"]
            == 2
        )


@given(st.binary(max_size=300), st.integers(1, 64), st.data())
def test_a_digest_is_of_every_byte_in_its_place(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, piece: int, chosen: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("digest") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "PIECE", piece)
        path.write_bytes(data)
        digest = digest_pieces(path)
        assert digest == digest_pieces(path)
        other = chosen.draw(st.binary(max_size=300).filter(lambda found: found != data))
        path.write_bytes(other)
        assert digest_pieces(path) != digest


def test_progress_says_what_the_other_files_must_be(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, ALONE) as checkpoints:
        checkpoints.save(7, *Run(dim=8).parts, val_loss=1.5)
    progress, folder = read_progress(tmp_path, 7), tmp_path / "step-00000007"
    digest = digest_pieces(folder / "index.json")
    assert progress == folders.Progress(7, 1.5, 1, digest, None)
    assert {path.name for path in folder.iterdir()} == {
        *("progress.json", "index.json", "rank-00000.json", "rank-00000.safetensors"),
    }
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
