"""The status of a run says how it stands, also of one that hangs, has died, or has no room to
write."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_core.process import describe_end
from llm_core.training.status import (
    LOCK_FILE,
    Heartbeat,
    note_death,
    read_status,
    status_as_written,
    write_status,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_core.training.status.BEAT_S", 0.01)


@pytest.fixture
def status(tmp_path: Path) -> Path:
    return tmp_path / "status.json"


def test_a_hung_run_gives_signs_of_life_and_shows_when_its_last_step_was(
    tmp_path: Path, status: Path
) -> None:
    with Heartbeat(tmp_path) as heartbeat:
        heartbeat.note_step(3)
        time.sleep(0.05)
        first = status_as_written(status)
        time.sleep(0.05)
        second = status_as_written(status)
        heartbeat.end("finished")
    assert (
        first["step"] == second["step"] == 3
        and first["step_at"] == second["step_at"] < first["at"] < second["at"]
    )
    assert (second["pid"], second["host"]) == (os.getpid(), platform.node())
    time.sleep(0.05)
    assert status_as_written(status)["outcome"] == "finished", "no beat after the last word"


def test_a_full_disk_stops_no_run_and_the_last_word_is_written_over_the_old_one(
    tmp_path: Path,
    status: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Heartbeat(tmp_path) as heartbeat:
        heartbeat.tell(device="some device of a long name", packing={"padding_frac": 0.0})
        monkeypatch.setattr("os.replace", full)
        heartbeat.note_step(7)
        time.sleep(0.05)
        heartbeat.end("failed", error="checkpoint of step 8 was not written")
    found = json.loads(status.read_text("utf-8"))
    assert (found["outcome"], found["step"], found["error"]) == (
        "failed",
        7,
        "checkpoint of step 8 was not written",
    )
    assert [path.name for path in tmp_path.iterdir()] == [
        "status.json"
    ] and not capsys.readouterr().err


def test_a_beat_that_cannot_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Heartbeat(tmp_path):
        monkeypatch.setattr("os.replace", broken)
        time.sleep(0.1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "status.json was not written" in line and os.strerror(errno.EIO) in line


def test_a_reader_sees_that_a_run_without_a_last_word_is_dead_and_one_that_lives_is_not(
    tmp_path: Path, status: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from llm_core.training.status import Heartbeat; from"
        " llm_core.training.workdir import hold_workdir\nwith hold_workdir(Path(sys.argv[1])),"
        " Heartbeat(Path(sys.argv[1]), 30):\n    print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline()
        assert read_status(status)["outcome"] == "running"
        process.kill()
    found = read_status(status)
    assert (found["outcome"], found["step"]) == (
        "died",
        30,
    ) and f"process {process.pid} on {platform.node()} is gone" in found["cause"]


def test_on_another_host_the_last_sign_of_life_decides(
    status: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status.with_name(LOCK_FILE).touch()
    write_status(status, "running", 4, host="elsewhere", pid=1)
    assert read_status(status)["outcome"] == "running"
    monkeypatch.setattr("llm_core.training.status.SILENT_S", 0.0)
    assert "process 1 on elsewhere gave no sign of life" in read_status(status)["cause"]


def test_reading_hinders_no_trainer(tmp_path: Path, status: Path) -> None:
    with (tmp_path / LOCK_FILE).open("a") as lock:
        write_status(status, "running", 4, host=platform.node(), pid=os.getpid())
        assert read_status(status)["outcome"] == "died"
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert read_status(status)["outcome"] == "running"


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\x00", b"[]"])
def test_a_status_that_a_loss_of_power_left_is_none(content: bytes, status: Path) -> None:
    assert read_status(status) == {}
    status.write_bytes(content)
    assert read_status(status) == {}
    note_death(status, "no power")
    assert read_status(status)["cause"] == "no power"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "SIGKILL .*memory"),
        (-7, "SIGBUS .*full disk"),
        (-11, "SIGSEGV$"),
        (-64, "signal|SIGRTMAX"),
        (3, "code 3 "),
    ],
)
def test_an_end_without_a_word_is_named(code: int, said: str) -> None:
    assert re.search(said, describe_end(code))
