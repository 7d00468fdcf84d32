"""An artifact is complete or absent, one process holds a key, and nothing is rewritten."""

import json
import os
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
from tasks.runtime.store import Store
from tests.support.data.stored_artifacts import make_node, publish


def test_published_artifact_says_how_it_was_made(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = publish(store, make_node())
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
        "input_bytes",
        "started_at",
        "finished_at",
    } <= artifact.record.keys()
    assert not store.work_dir("ingest", "k1").exists()


def test_unfinished_work_is_not_an_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.hold(make_node(), print) as out:
        (out / "a.txt").write_text("half")
    assert store.find("ingest", "k1") is None
    with store.hold(make_node(), print) as out:
        assert list(out.iterdir()) == [], (
            "left-overs of a killed holder must not slip into the artifact"
        )


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
    path = publish(store, make_node()).path
    record = json.loads((path / "artifact.json").read_text())
    (path / "artifact.json").write_text(json.dumps(record | {"schema_version": 99}))
    with pytest.raises(ArtifactMismatch, match="schema 99"):
        load_artifact(path)


def test_second_holder_waits_and_says_so(tmp_path: Path) -> None:
    store, said, order = Store(tmp_path), [], []
    entered = threading.Event()

    def first() -> None:
        with store.hold(make_node(), print):
            entered.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with store.hold(make_node(), said.append):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert f"process {os.getpid()}" in said[0]


HOLDER = """
import sys, time
from pathlib import Path
from tasks.runtime.store import Store
from tests.support.data.stored_artifacts import make_node
with Store(Path(sys.argv[1])).hold(make_node(), print) as out:
    (out / "junk").write_text("x")
    print("held", flush=True)
    time.sleep(60)
"""


def test_killed_holder_frees_its_key(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGKILL)
    artifact = publish(Store(tmp_path), make_node())
    assert [f["path"] for f in artifact.record["files"]] == ["data/a.txt"]


PUBLISHER = """
import os, signal, sys
from pathlib import Path
from tasks.runtime.store import Store
from tests.support.data.stored_artifacts import make_node, publish
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
publish(Store(Path(sys.argv[1])), make_node())
"""


def test_kill_at_any_step_of_publishing_leaves_a_whole_artifact_or_none(tmp_path: Path) -> None:
    reference = publish(Store(tmp_path / "reference"), make_node()).record["files"]
    for step in range(1, 30):
        root = tmp_path / str(step)
        run = subprocess.run(
            [sys.executable, "-c", PUBLISHER, str(root), str(step)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        store = Store(root)
        if (found := store.find("ingest", "k1")) is None:
            found = publish(store, make_node())
        assert found.record["files"] == reference
        assert store.damage("ingest", "k1", check_digests=True) is None
        if run.returncode == 0:
            break
    assert step > 5, "the program was never killed"


def test_not_a_number_does_not_reach_a_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with (
        store.hold(make_node(), print) as out,
        pytest.raises(ValueError, match="not JSON compliant"),
    ):
        store.publish(
            make_node(), Artifact(out, "ingest", {}, {"loss": float("nan")}), 1.0, 0.5, "2026-01-01"
        )
    assert store.find("ingest", "k1") is None


def test_full_disk_is_said_before_work_begins(tmp_path: Path) -> None:
    with pytest.raises(StageFailure, match="needs about 1000000.0 GB of free space"):
        Store(tmp_path).require_free_disk("ingest", 10**15)


def test_lost_documents_are_noticed() -> None:
    check_accounting("x", {"read": 5, "kept": 2, "dropped": {"A": 1, "B": 1}, "quarantined": 1})
    with pytest.raises(AssertionError, match="lost documents"):
        check_accounting("x", {"read": 5, "kept": 2, "dropped": {"A": 1}, "quarantined": 1})


def test_a_stray_file_beside_artifacts_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = publish(store, make_node())
    (tmp_path / "ingest" / ".DS_Store").write_bytes(b"\0")
    assert store.artifacts("ingest") == [made]
