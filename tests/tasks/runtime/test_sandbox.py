"""A sandbox: bad calls cost themselves, others nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime.sandbox import OutOfBounds, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("tests.support.data.fake_pages:obey", 0.3, 300_000_000) as opened:
        yield opened


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (b"hang", "took longer than 0.3 s"),
        (b"eat", "took more memory than it may"),
        (b"crash", "brought its process down"),
        (b"raise", "brought its process down"),
    ],
)
def test_bad_call_is_refused_and_the_next_one_served(
    sandbox: Sandbox, call: bytes, why: str
) -> None:
    assert sandbox.call(b"before") == b"BEFORE"
    pid = int(sandbox.call(b"pid"))
    started = time.monotonic()
    with pytest.raises(OutOfBounds, match=why):
        sandbox.call(call)
    assert time.monotonic() - started < 30
    assert sandbox.call(b"after") == b"AFTER"
    assert int(sandbox.call(b"pid")) != pid and not is_alive(pid)


def test_call_that_waits_for_something_is_stopped_by_the_clock() -> None:
    with (
        Sandbox("tests.support.data.fake_pages:obey", 0.1, 300_000_000) as opened,
        pytest.raises(OutOfBounds, match=r"longer than 0\.1 s"),
    ):
        opened.call(b"sleep")


def test_time_is_that_of_the_process_and_not_of_a_busy_machine(sandbox: Sandbox) -> None:
    assert sandbox.call(b"rest 0.7") == b"REST 0.7"


def test_process_is_used_again(sandbox: Sandbox) -> None:
    assert sandbox.call(b"pid") == sandbox.call(b"pid")


def test_call_that_fails_in_a_used_process_is_judged_by_a_new_one(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.call(b"use it")
    call = b"wear-out " + os.fsencode(tmp_path / "once")
    assert sandbox.call(call) == call.upper()


def test_frames_of_any_size_pass(sandbox: Sandbox) -> None:
    assert sandbox.call(b"") == b""
    assert len(sandbox.call(b"large 20000000")) == 20_000_000
    assert sandbox.call(b"a" * 5_000_000) == b"A" * 5_000_000


def test_closed_sandbox_leaves_no_process() -> None:
    with Sandbox("tests.support.data.fake_pages:obey", 5, 300_000_000) as opened:
        pid = int(opened.call(b"pid"))
        assert is_alive(pid)
    assert not is_alive(pid)
