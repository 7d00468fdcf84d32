"""Old checkpoints leave beside training, unless somebody holds them or they are milestones."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import pytest
import torch

from llm_core.checkpoint import folders
from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.folders import hold, steps_in
from llm_core.checkpoint.index import CheckpointError
from llm_core.checkpoint.weights import open_weights
from tasks.runtime.code import ROOT
from tests.support.engine.small_states import ALONE, Run, damage


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Removing waits for it."""
    opened = threading.Event()

    def wait_and_delete(gone: Iterable[Path]) -> None:
        opened.wait(30)
        folders.delete(gone)

    monkeypatch.setattr("llm_core.checkpoint.checkpoints.delete", wait_and_delete)
    yield opened
    opened.set()


def test_training_does_not_wait_for_what_is_removed(tmp_path: Path, gate: threading.Event) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, *run.parts)
        assert steps_in(tmp_path) == [2] and (tmp_path / ".step-00000001.gone").is_dir()
        gate.set()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_what_cannot_be_removed_is_told_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(5, "Input/output error")

    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1) as checkpoints:
        checkpoints.save(1, *run.parts)
        with monkeypatch.context() as patch:
            patch.setattr("llm_core.checkpoint.checkpoints.delete", refuse)
            checkpoints.save(2, *run.parts)
        with pytest.raises(CheckpointError, match=r"read or changed .*Input/output error"):
            checkpoints.save(3, *run.parts)
        checkpoints._pruned = None
    assert steps_in(tmp_path) == [2, 3], "it is in force all the same"


def test_a_checkpoint_that_somebody_holds_stays_until_it_is_let_go(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1) as checkpoints:
        checkpoints.save(1, *run.parts)
        with hold(tmp_path, 1), hold(tmp_path, 1):
            for step in (2, 3):
                checkpoints.save(step, *run.parts)
            assert steps_in(tmp_path) == [1, 3]
        checkpoints.save(4, *run.parts)
        assert steps_in(tmp_path) == [4]
        with pytest.raises(FileNotFoundError), hold(tmp_path, 1):
            pass


def test_old_checkpoints_leave_a_network_file_system_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fcntl.flock

    def as_on_nfs(stream: IO[bytes], how: int) -> None:
        # NFS makes locks of byte ranges of them: an exclusive one needs a file open for writing.
        wants = os.O_WRONLY if how & fcntl.LOCK_EX else os.O_RDONLY
        if fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE not in (wants, os.O_RDWR):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        plain(stream, how)

    monkeypatch.setattr("fcntl.flock", as_on_nfs)
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, *run.parts)
            with hold(tmp_path, step):
                pass
    assert steps_in(tmp_path) == [3]


def test_who_dies_holds_nothing(tmp_path: Path) -> None:
    run = Run(dim=8)
    program = (
        "import os, sys; from pathlib import Path; from llm_core.checkpoint.folders import hold;"
        " held = hold(Path(sys.argv[1]), 1); held.__enter__(); print('held', flush=True);"
        " sys.stdin.read(); os.kill(os.getpid(), 9)"
    )
    with Checkpoints(tmp_path, ALONE, keep_last=1) as checkpoints:
        checkpoints.save(1, *run.parts)
        command = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        ) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == b"held\n"
            checkpoints.save(2, *run.parts)
            assert steps_in(tmp_path) == [1, 2]
            holder.stdin.close()
        checkpoints.save(3, *run.parts)
    assert steps_in(tmp_path) == [3]


def test_milestones_stay(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=1, keep_every=4) as checkpoints:
        for step in range(1, 11):
            checkpoints.save(step, *run.parts)
    assert steps_in(tmp_path) == [4, 8, 10]


def test_weights_of_any_step_are_read_whole_and_others_are_named(tmp_path: Path) -> None:
    run = Run(dim=8)
    with Checkpoints(tmp_path, ALONE, keep_last=3) as checkpoints:
        kept = {}
        for step in (1, 2, 3):
            run.move()
            checkpoints.save(step, *run.parts)
            kept[step] = run.values()
    for step, newest in ((2, 2), (None, 3)):
        with open_weights(tmp_path, step) as saved:
            found = dict(saved.each())
        assert saved.step == newest
        assert found.keys() == {name for name, _ in run.layout.bare.named_parameters()}
        assert all(torch.equal(found[n], kept[newest][f"model.{n}"]) for n in found)
    with (
        pytest.raises(CheckpointError, match="no checkpoint of step 7; there are: 1, 2, 3"),
        open_weights(tmp_path, 7),
    ):
        pass
    damage(tmp_path / "step-00000002" / "rank-00000.safetensors", "flipped", 0.5)
    with (
        pytest.raises(CheckpointError, match="is damaged: rank-00000.safetensors does not hold"),
        open_weights(tmp_path, 2),
    ):
        pass
    with pytest.raises(FileNotFoundError, match="a tokenizer"), open_weights(tmp_path, 3):
        raise FileNotFoundError("a tokenizer")  # of whoever reads them, not of the checkpoint
    with pytest.raises(CheckpointError, match="has no checkpoint; there are: none"):
        open_weights(tmp_path / "elsewhere").__enter__()
