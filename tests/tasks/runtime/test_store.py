"""The store: complete or absent, one holder per key, damage noticed, nothing rewritten."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.runtime import soundness
from tasks.runtime.artifact import (
    Artifact,
    ArtifactMismatch,
    DamagedRecord,
    check_accounting,
    load_artifact,
    read_sealed,
    write_sealed,
)
from tasks.runtime.code import ROOT
from tasks.runtime.stage import StageFailure
from tasks.runtime.store import Node, Store


def node(key: str = "k1") -> Node:
    return Node("ingest", key, "p1", {"stage": "ingest", "config": {"x": 1}}, {"x": 1})


def make(store: Store, n: Node, text: str = "hello") -> Artifact:
    with store.hold(n, print) as out:
        (out / "data").mkdir()
        (out / "data" / "a.txt").write_text(text)
        return store.publish(
            n, Artifact(out, "ingest", {"read": 1, "kept": 1}, {"m": 0.5}), 1.0, 0.5, "2026-01-01"
        )


def test_published_artifact_says_how_it_was_made(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = make(store, node())
    assert artifact == store.find("ingest", "k1")
    assert (
        artifact.key == "k1"
        and artifact.config == {"x": 1}
        and artifact.counters == {"read": 1, "kept": 1}
    )
    assert [f["path"] for f in artifact.record["files"]] == ["data/a.txt"]
    assert {
        "identity",
        "host",
        "elapsed_s",
        "peak_memory_bytes",
        "started_at",
        "finished_at",
    } <= artifact.record.keys()
    assert not store.work_dir("ingest", "k1").exists()


def test_unfinished_work_is_not_an_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.hold(node(), print) as out:
        (out / "a.txt").write_text("half")
    assert store.find("ingest", "k1") is None
    with store.hold(node(), print) as out:
        assert list(out.iterdir()) == [], (
            "left-overs of a killed holder must not slip into the artifact"
        )


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
    harm(make(store, node()).path)
    assert re.match(named, store.damage("ingest", "k1") or "")
    assert store.find("ingest", "k1") is None
    make(store, node())
    assert store.damage("ingest", "k1", check_digests=True) is None


def test_changed_content_is_found_also_under_the_old_time_of_modification(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file = make(store, node()).path / "data/a.txt"
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
    file = make(store, node()).path / "data/a.txt"
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
    settle(make(store, node()).path / "data/a.txt")
    monkeypatch.setattr(soundness, "_CHECKS", {})
    assert store.damage("ingest", "k1") is None
    monkeypatch.setattr(soundness, "_CHECKS", {})  # as in a new process
    monkeypatch.setattr(soundness, "digest_file", read.append)
    assert store.damage("ingest", "k1") is None and not read


@pytest.mark.parametrize("memory", [b"", b"\xff", b"[]", b"{}", b'{"ingest/k1": 3}'])
def test_a_damaged_memory_of_what_was_sound_is_no_trouble(memory: bytes, tmp_path: Path) -> None:
    store = Store(tmp_path)
    settle(make(store, node()).path / "data/a.txt")
    (tmp_path / ".sound.json").write_bytes(memory)
    assert store.damage("ingest", "k1") is None
    (store.path("ingest", "k1") / "data/a.txt").write_text("HELLO")
    assert store.damage("ingest", "k1") == "damaged: data/a.txt has changed content"


def test_files_that_were_added_to_an_artifact_are_no_part_of_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = make(store, node())
    (artifact.path / "data/b.txt").write_text("stranger")
    assert store.damage("ingest", "k1") is None
    assert [file.name for file in artifact.files("data/*.txt")] == ["a.txt"]


@given(st.data())
def test_a_flipped_byte_in_a_record_is_found_or_changes_nothing(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        record = {"a": 1, "text": "Grüße", "list": [1.5, None, True], "deep": {"x": "y"}}
        write_sealed(file, record)
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
        try:
            found = read_sealed(file)
        except DamagedRecord:
            return
        assert {name: value for name, value in found.items() if name in record} == record


def test_artifact_of_another_schema_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = make(store, node()).path
    record = json.loads((path / "artifact.json").read_text())
    (path / "artifact.json").write_text(json.dumps(record | {"schema_version": 99}))
    with pytest.raises(ArtifactMismatch, match="schema 99"):
        load_artifact(path)


def test_second_holder_waits_and_says_so(tmp_path: Path) -> None:
    store, said, order = Store(tmp_path), [], []
    entered = threading.Event()

    def first() -> None:
        with store.hold(node(), print):
            entered.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with store.hold(node(), said.append):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert f"process {os.getpid()}" in said[0]


HOLDER = """
import sys, time
from pathlib import Path
from tasks.runtime.store import Store
from tests.tasks.runtime.test_store import node
with Store(Path(sys.argv[1])).hold(node(), print) as out:
    (out / "junk").write_text("x")
    print("held", flush=True)
    time.sleep(60)
"""


def test_killed_holder_frees_its_key(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    artifact = make(Store(tmp_path), node())
    assert [f["path"] for f in artifact.record["files"]] == ["data/a.txt"]


PUBLISHER = """
import os, signal, sys
from pathlib import Path
from tests.tasks.runtime.test_store import make, node
from tasks.runtime.store import Store
calls = {"n": 0}
def dying(function):
    def call(*args, **kwargs):
        calls["n"] += 1
        if calls["n"] == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
for name in ("fsync", "rename", "replace"):
    setattr(os, name, dying(getattr(os, name)))
make(Store(Path(sys.argv[1])), node())
"""


def test_kill_at_any_step_of_publishing_leaves_a_whole_artifact_or_none(tmp_path: Path) -> None:
    reference = make(Store(tmp_path / "reference"), node()).record["files"]
    for step in range(1, 30):
        root = tmp_path / str(step)
        run = subprocess.run(
            [sys.executable, "-c", PUBLISHER, str(root), str(step)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        store = Store(root)
        if (found := store.find("ingest", "k1")) is None:
            found = make(store, node())
        assert found.record["files"] == reference
        assert store.damage("ingest", "k1", check_digests=True) is None
        if run.returncode == 0:
            break
    assert step > 5, "the program was never killed"


def test_not_a_number_does_not_reach_a_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.hold(node(), print) as out, pytest.raises(ValueError, match="not JSON compliant"):
        store.publish(
            node(), Artifact(out, "ingest", {}, {"loss": float("nan")}), 1.0, 0.5, "2026-01-01"
        )
    assert store.find("ingest", "k1") is None


def test_full_disk_is_said_before_work_begins(tmp_path: Path) -> None:
    with pytest.raises(StageFailure, match="needs about 1000000.0 GB of free space"):
        Store(tmp_path).require_free_disk("ingest", 10**15)


def test_lost_documents_are_noticed() -> None:
    check_accounting("x", {"read": 5, "kept": 2, "dropped": {"A": 1, "B": 1}, "quarantined": 1})
    with pytest.raises(AssertionError, match="lost documents"):
        check_accounting("x", {"read": 5, "kept": 2, "dropped": {"A": 1}, "quarantined": 1})


def test_a_store_that_cannot_remember_what_was_sound_still_checks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "SETTLED_S", 0.0)
    artifact = make(Store(tmp_path / "other"), node())
    store = Store(tmp_path / "never made")
    assert store.damage_of(artifact.path) is None
    (artifact.path / "data" / "a.txt").write_text("hellO")
    assert store.damage_of(artifact.path) == "damaged: data/a.txt has changed content"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    artifact = make(Store(tmp_path), node())
    file = artifact.path / "data" / "a.txt"
    file.unlink()
    file.symlink_to(
        "/proc/self/mem"
    )  # its first page is never there: reading it is an input/output error
    files = [{**artifact.record["files"][0], "size": 0}]
    assert list(soundness.damage(artifact.path, files)) == [
        "data/a.txt cannot be read (Input/output error)"
    ]


def test_a_stray_file_beside_artifacts_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = make(store, node())
    (tmp_path / "ingest" / ".DS_Store").write_bytes(b"\0")
    assert store.artifacts("ingest") == [made]
