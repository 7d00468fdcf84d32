"""A lock is a plain file: what stands in its place is never written to."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.locks import open_lock
from tasks.runtime.store import Node, Store


def test_a_lock_is_made_and_held_once(tmp_path: Path) -> None:
    with open_lock(tmp_path / "lock") as first, open_lock(tmp_path / "lock") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_anything_but_a_plain_file_is_refused(kind: str, tmp_path: Path) -> None:
    lock, other = tmp_path / "lock", tmp_path / "other"
    if kind == "folder":
        lock.mkdir()
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(other)
    if kind == "link":
        other.write_text("mine")
    with pytest.raises(ConfigError, match="not a lock file"):
        open_lock(lock)
    assert not other.exists() or other.read_text() == "mine"


def test_a_link_in_place_of_the_lock_of_a_key_leaves_its_target_alone(tmp_path: Path) -> None:
    store, victim = Store(tmp_path / "store"), tmp_path / "victim"
    victim.write_text("mine")
    lock = store.work_dir("ingest", "k").with_name("k.lock")
    lock.parent.mkdir(parents=True)
    lock.symlink_to(victim)
    with pytest.raises(ConfigError), store.hold(Node("ingest", "k", "p", {}, {}), print):
        raise AssertionError("held by way of a link")
    assert victim.read_text() == "mine"
