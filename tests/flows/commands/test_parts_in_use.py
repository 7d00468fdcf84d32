"""`gc` removes no part under a stage that is at work."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from flows.commands.unused import needed, remove, unused
from tasks.runtime.store import Node
from tests.support.unused_store import KEYS, make_store


def test_parts_stay_while_a_stage_is_at_work_on_them_whatever_its_key(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    parts = store.root / ".parts" / "train" / KEYS[0]
    listed = unused(store, needed(store, 0))
    with store.hold(Node("train", "f" * 16, KEYS[0], {}, {}), print):
        assert parts not in {item.path for item in unused(store, needed(store, 0))}
        remove(listed)
        assert [part.name for part in parts.iterdir()] == [KEYS[0] * 2]
    remove(listed)
    assert not parts.exists()


def test_a_stage_that_begins_during_removal_waits_for_its_end(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    order: list[str] = []

    def begin() -> None:
        with store.hold(Node("train", "f" * 16, KEYS[0], {}, {}), print):
            order.append("stage")

    stage = threading.Thread(target=begin)
    lock = store.parts_lock_file("train", KEYS[0])
    lock.unlink()
    rename = os.rename

    def slow(source: str, target: str, **where: int) -> None:
        if source == KEYS[0] and not stage.is_alive() and not order and lock.exists():
            stage.start()
            time.sleep(0.3)
            order.append("removal")
        rename(source, target, **where)

    items = [item for item in unused(store, needed(store, 0)) if item.kind == "parts"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", slow)
        remove(items)
    stage.join()
    assert order == ["removal", "stage"]
