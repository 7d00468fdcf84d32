"""Of several machines one makes a key, by a lease that ends with its holder; the record decides
whatever becomes of the lease. Machines are processes with folders of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT
from tasks.runtime.shared import leases
from tasks.runtime.shared.bucket import Bucket
from tasks.runtime.shared.leases import LEASE_S, held_if_free
from tests.support.buckets import BUCKET, names
from tests.support.data.stored_artifacts import make_node, publish
from tests.tasks.runtime.shared.conftest import Machine

LEASE_OF_TESTS_S = 4.0

MACHINE = """
import json, os, signal, sys, time
from pathlib import Path
from tasks.runtime.artifact import Artifact
from tasks.runtime.shared.bucket import Bucket
from tasks.runtime.shared.store import SharedStore
from tests.support.data.stored_artifacts import make_node
root, url, lease_s, how = sys.argv[1:]
store, node, made = SharedStore(Path(root), url, float(lease_s)), make_node(), False
if how == "killed in upload":
    send = Bucket.send
    def die(bucket, files):
        send(bucket, dict([next(iter(files.items()))]))
        os.kill(os.getpid(), signal.SIGKILL)
    Bucket.send = die
with store.hold(node, lambda line: print(line, flush=True)) as out:
    print("held", flush=True)
    if store.find(node.stage, node.key) is None:
        sys.stdin.readline()
        for name in ("a.txt", "b.txt"):
            (out / name).write_text(name)
        store.publish(node, Artifact(out, node.stage, {}, {}), 1, 1, "2026-01-01")
        made = True
found = store.find(node.stage, node.key)
print(json.dumps({"made": made, "files": [p.read_text() for p in found.files("*.txt")]}))
"""


def start(root: Path, url: str, how: str = "well") -> subprocess.Popen[str]:
    """A machine that makes a key once it is told to, or finds it."""
    command = [sys.executable, "-c", MACHINE, str(root), url, str(LEASE_OF_TESTS_S), how]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def end_of(process: subprocess.Popen[str]) -> Any:
    """What a machine says at its end, after it was told to go on."""
    with process:
        try:
            said = process.communicate("go on\n", timeout=60)[0].splitlines()
        finally:
            process.kill()  # where it has not ended
    return json.loads(said[-1]) if process.returncode == 0 else process.returncode


def test_a_lease_ends_within_two_minutes_of_its_holder() -> None:
    assert LEASE_S * (1 + 1 / leases.RENEWALS / 4) <= 120


def test_two_machines_make_a_key_once(url: str, tmp_path: Path) -> None:
    first = start(tmp_path / "a", url)
    assert first_line(first) == "held\n"
    second = start(tmp_path / "b", url)
    assert f"ingest k1 is being built by process {first.pid} on " in first_line(second)
    files = ["a.txt", "b.txt"]
    assert end_of(first) == {"made": True, "files": files}
    assert end_of(second) == {"made": False, "files": files}


def test_a_machine_killed_in_the_middle_of_an_upload_is_followed_by_another(
    url: str, bucket: Any, tmp_path: Path
) -> None:
    killed = start(tmp_path / "a", url, "killed in upload")
    assert first_line(killed) == "held\n"
    second = start(tmp_path / "b", url)
    assert f"is being built by process {killed.pid} on " in first_line(second)
    assert end_of(killed) == -signal.SIGKILL
    died_at = time.monotonic()
    left = [n.rpartition("/")[2] for n in names(bucket, url.removeprefix(f"s3://{BUCKET}/"))]
    assert left == ["k1.lease", "a.txt"], "one file, and no record"
    assert end_of(second) == {"made": True, "files": ["a.txt", "b.txt"]}
    assert time.monotonic() - died_at < 2 * LEASE_OF_TESTS_S + 5
    assert end_of(start(tmp_path / "a", url)) == {"made": False, "files": ["a.txt", "b.txt"]}


def test_a_living_holder_keeps_its_lease_beyond_its_time(machine: Machine) -> None:
    with machine("a", 2.0).hold(make_node(), print):
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with held_if_free(machine("b").bucket, "ingest/k1.lease", 2.0) as free:
                assert not free
            time.sleep(0.3)
    with held_if_free(machine("b").bucket, "ingest/k1.lease", 2.0) as free:
        assert free


@pytest.mark.parametrize("forced", [False, True])
def test_a_holder_that_has_lost_its_lease_takes_what_the_other_made(
    forced: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = machine("a"), machine("b")
    if forced:  # both rebuild what is there
        publish(machine("c"), make_node(), "before")
    with monkeypatch.context() as still:
        still.setattr(leases, "_has_ended", lambda found: True)  # as after a suspension
        with slow.hold(make_node(), print) as out:
            theirs = publish(other, make_node(), "theirs")
            (out / "data").mkdir()
            (out / "data" / "a.txt").write_text("mine")
            got = slow.publish(make_node(), Artifact(out, "ingest"), 1.0, 0.5, "2026-01-01")
    assert got.record == theirs.record and got.file("data/a.txt").read_text() == "theirs"
    for name in "abd":
        found = machine(name).find("ingest", "k1")
        assert found is not None and found.file("data/a.txt").read_text() == "theirs"


def test_an_answer_that_was_lost_is_no_other_holder(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = Bucket.put

    def lost(bucket: Bucket, *arguments: Any) -> str | None:
        """Sent twice, as a client does that got no answer: the second meets the first."""
        put(bucket, *arguments)
        return put(bucket, *arguments)

    monkeypatch.setattr(Bucket, "put", lost)
    made = publish(machine("a"), make_node())
    assert made.file("data/a.txt").read_text() == "hello" and not caplog.records


def test_a_lease_that_cannot_be_renewed_for_a_while_is_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put, failed = Bucket.put, []

    def away(bucket: Bucket, *arguments: Any) -> str | None:
        if not failed:
            failed.append(1)
            raise ConfigError("s3://… cannot be used")
        return put(bucket, *arguments)

    with machine("a", 2.0).hold(make_node(), print):
        monkeypatch.setattr(Bucket, "put", away)
        time.sleep(2.5)
        with held_if_free(machine("b").bucket, "ingest/k1.lease", 2.0) as free:
            assert not free
    assert failed and "was not renewed" in caplog.text


def test_a_lease_that_cannot_be_given_back_costs_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(bucket: Bucket, *arguments: Any) -> None:
        raise ConfigError("s3://… cannot be used")

    monkeypatch.setattr(Bucket, "remove_version", away)
    assert publish(machine("a"), make_node()).file("data/a.txt").exists()
    assert "was not released" in caplog.text


def test_runs_of_a_chain_begin_one_after_another_on_two_machines(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ended: list[str] = []

    def end(seconds: float) -> None:
        ended.append("first")
        first.__exit__(None, None, None)

    first = machine("a").alone("chain-x", lambda: said.append("first waits"))
    first.__enter__()
    monkeypatch.setattr(leases.time, "sleep", end)
    with machine("b").alone("chain-x", lambda: said.append("second waits")):
        assert ended == ["first"]
    assert said == ["second waits"]
