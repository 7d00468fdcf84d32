"""Damage to an artifact is noticed and makes a miss, and what was sound is not read again."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tasks.runtime import soundness
from tasks.runtime.store import Store
from tests.support.data.stored_artifacts import make_node, publish


def rename_file(path: Path, name: str) -> None:
    record = json.loads((path / "artifact.json").read_text())
    record["files"][0]["path"] = name
    (path / "artifact.json").write_text(json.dumps(record))


def replace_by_folder(p: Path) -> None:
    (p / "data/a.txt").unlink()
    (p / "data/a.txt").mkdir()


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda p: (p / "data/a.txt").unlink(), "damaged: data/a.txt is gone"),
        (lambda p: (p / "data/a.txt").write_text("hell"), "damaged: data/a.txt has 4 bytes, not 5"),
        (
            lambda p: (p / "artifact.json").write_text("{"),
            "damaged: .*artifact.json is not a readable",
        ),
        (
            lambda p: (p / "artifact.json").write_text("[]"),
            "damaged: .*artifact.json is not a readable",
        ),
        (
            lambda p: (p / "artifact.json").write_bytes(b"\xff"),
            "damaged: .*artifact.json is not a readable",
        ),
        (
            lambda p: (p / "artifact.json").write_text("[" * 100_000),
            "damaged: .*artifact.json is not a readable",
        ),
        (
            lambda p: rename_file(p, "../../other/a.txt"),
            "damaged: .*artifact.json names '../../other/a.txt', which is not in",
        ),
        (
            lambda p: rename_file(p, "/etc/hostname"),
            "damaged: .*artifact.json names '/etc/hostname', which is not in",
        ),
        (lambda p: (p / "artifact.json").unlink(), "damaged: artifact.json is gone"),
        (
            lambda p: (p / "artifact.json").write_text(
                (p / "artifact.json").read_text().replace('"kept": 1', '"kept": 2')
            ),
            "damaged: .*is not what was written",
        ),
        (
            lambda p: (p / "data/a.txt").write_text("hellO"),
            "damaged: data/a.txt has changed content",
        ),
        (replace_by_folder, "damaged: data/a.txt is not a file"),
        (lambda p: shutil.rmtree(p / "data"), "damaged: data/a.txt is gone"),
    ],
)
def test_damage_is_named_and_makes_a_miss(harm, named: str, tmp_path: Path) -> None:
    import re

    store = Store(tmp_path)
    harm(publish(store, make_node()).path)
    assert re.match(named, store.damage("ingest", "k1") or "")
    assert store.find("ingest", "k1") is None
    publish(store, make_node())
    assert store.damage("ingest", "k1", check_digests=True) is None


def test_changed_content_is_found_also_under_the_old_time_of_modification(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file = publish(store, make_node()).path / "data/a.txt"
    settle(file)
    assert store.damage("ingest", "k1") is None
    before = file.stat()
    file.write_text("HELLO")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.damage("ingest", "k1") == "damaged: data/a.txt has changed content"
    assert store.find("ingest", "k1") is None


@pytest.fixture(autouse=True)
def files_settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "SETTLED_S", 0.1)


def settle(file: Path) -> None:
    """Wait until the file is old enough for its stamp to be trusted."""
    time.sleep(max(0.0, file.stat().st_ctime + soundness.SETTLED_S + 0.02 - time.time()))


def test_who_reads_an_artifact_sees_a_disk_that_gives_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    file = publish(store, make_node()).path / "data/a.txt"
    file.write_text("HELLO")
    settle(file)
    # A stamp that is remembered as sound and bytes that are not: what a failing disk looks like.
    with monkeypatch.context() as failing:
        failing.setattr(soundness, "digest_file", lambda path: store_digest("hello"))
        assert store.damage("ingest", "k1") is None
    monkeypatch.setattr(soundness, "RECENT_S", 0.0)
    assert store.damage("ingest", "k1") is None, "the stamp says nothing has written to it"
    assert (
        store.damage("ingest", "k1", check_digests=True)
        == "damaged: data/a.txt has changed content"
    )
    assert store.find("ingest", "k1") is None, "once found it is known"


def store_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def test_what_was_sound_is_remembered_and_costs_no_other_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = Store(tmp_path), []
    settle(publish(store, make_node()).path / "data/a.txt")
    monkeypatch.setattr(soundness, "_CHECKS", {})
    assert store.damage("ingest", "k1") is None
    monkeypatch.setattr(soundness, "_CHECKS", {})  # as in a new process
    monkeypatch.setattr(soundness, "digest_file", read.append)
    assert store.damage("ingest", "k1") is None and not read


@pytest.mark.parametrize("memory", [b"", b"\xff", b"[]", b"{}", b'{"ingest/k1": 3}'])
def test_a_damaged_memory_of_what_was_sound_is_no_trouble(memory: bytes, tmp_path: Path) -> None:
    store = Store(tmp_path)
    settle(publish(store, make_node()).path / "data/a.txt")
    (tmp_path / ".sound.json").write_bytes(memory)
    assert store.damage("ingest", "k1") is None
    (store.path("ingest", "k1") / "data/a.txt").write_text("HELLO")
    assert store.damage("ingest", "k1") == "damaged: data/a.txt has changed content"


def test_files_that_were_added_to_an_artifact_are_no_part_of_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = publish(store, make_node())
    (artifact.path / "data/b.txt").write_text("stranger")
    assert store.damage("ingest", "k1") is None
    assert [file.name for file in artifact.files("data/*.txt")] == ["a.txt"]


def test_a_store_that_cannot_remember_what_was_sound_still_checks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "SETTLED_S", 0.0)
    artifact = publish(Store(tmp_path / "other"), make_node())
    store = Store(tmp_path / "never made")
    assert store.damage_of(artifact.path) is None
    (artifact.path / "data" / "a.txt").write_text("hellO")
    assert store.damage_of(artifact.path) == "damaged: data/a.txt has changed content"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    artifact = publish(Store(tmp_path), make_node())
    file = artifact.path / "data" / "a.txt"
    file.unlink()
    file.symlink_to(
        "/proc/self/mem"
    )  # its first page is never there: reading it is an input/output error
    files = [{**artifact.record["files"][0], "size": 0}]
    assert list(soundness.damage(artifact.path, files)) == [
        "data/a.txt cannot be read (Input/output error)"
    ]
