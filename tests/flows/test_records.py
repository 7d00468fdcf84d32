"""What may be deleted from a store: nothing that a recent run, a live run or a holder needs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flows.commands.unused import needed, remove, unused
from flows.records import RunRecord, mark_store, read_records, write_record
from tasks.runtime.artifact import Artifact
from tasks.runtime.inputs import InputDigests
from tasks.runtime.store import Node, Store
from tests.flows.conftest import RunCli

pytestmark = pytest.mark.usefixtures("stand_in_stages")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_what_only_forgotten_runs_used_is_listed_then_removed(
    run_cli: RunCli, store: Store
) -> None:
    old = run_cli("refresh", "tokenizer.vocab_size=300")["summary"]
    new = run_cli("refresh", "tokenizer.vocab_size=400")["summary"]
    assert "0 items" in run_cli("gc")["out"]
    listed = run_cli("gc", "keep=1")["out"]
    assert (
        old["stages"]["tokenizer"]["key"] in listed
        and new["stages"]["tokenizer"]["key"] not in listed
    )
    assert store.find("tokenizer", old["stages"]["tokenizer"]["key"]), (
        "nothing is removed without --yes"
    )
    assert "removed" in run_cli("gc", "keep=1", "--yes")["out"]
    for name in ("tokenizer", "shards"):
        assert store.find(name, old["stages"][name]["key"]) is None
        assert store.find(name, new["stages"][name]["key"])
    assert store.find("documents", old["stages"]["documents"]["key"]), "shared with a recent run"
    assert "0 items" in run_cli("gc", "keep=1")["out"]
    assert len(list((store.root / ".parts" / "tokenizer").glob("*[0-9a-f]"))) == 1


def test_many_runs_of_other_stages_leave_the_last_completed_run_of_each(
    run_cli: RunCli, store: Store
) -> None:
    whole = run_cli("refresh", "tokenizer.vocab_size=300")["summary"]["stages"]
    for threshold in (0.6, 0.7):
        assert run_cli("refresh", f"dedup.threshold={threshold}", "only=dedup")["code"] == 0
    kept = {stage["key"] for stage in whole.values()}
    assert not kept & {item.path.name for item in unused(store, needed(store, 1))}
    assert kept & {item.path.name for item in unused(store, needed(store, 0))}, (
        "keep=0 asks for everything"
    )


def record_ingest(store: Store, digest: str) -> None:
    """An artifact of one fetched file, and a run that used it."""
    key, at = 16 * "a", "2026-01-01"
    node = Node("ingest", key, "p", {"stage": "ingest", "inputs": {"a.jsonl": digest}}, {})
    with store.hold(node, print) as out:
        (out / "f").write_text("documents")
        store.publish(node, Artifact(out, "ingest"), 0, 0, at)
    write_record(store, RunRecord("r", "refresh", "shards", [], at, {"ingest": key}, {}))


def test_fetched_files_that_no_recent_run_read_are_unused(tmp_path: Path, store: Store) -> None:
    cache = store.root / ".remote"
    cache.mkdir(parents=True)
    read, old, cut_off, fetching = (
        f"{number:032x}.jsonl{'.part' * (number > 1)}" for number in range(4)
    )
    cut_rows = f".{old}.{0:032x}.tmp"
    for name in (read, old, cut_off, fetching, cut_rows):
        (cache / name).write_text(name)
    digests = InputDigests(store.root / ".inputs.json").of(
        {name: cache / name for name in (read, old)}
    )
    record_ingest(store, digests[read])
    for name in (read, old, cut_off, cut_rows):
        os.utime(cache / name, (0, 0))
    items = [item for item in unused(store, needed(store, 1)) if item.kind == "remote"]
    assert {item.path.name for item in items} == {old, cut_off, cut_rows}
    assert remove(items) == len(old) + len(cut_off) + len(cut_rows)
    assert {path.name for path in cache.iterdir()} == {read, fetching}


@pytest.mark.parametrize("damaged", ["f", "artifact.json"])
def test_fetched_files_that_a_damaged_ingest_is_rebuilt_from_are_kept(
    tmp_path: Path, store: Store, damaged: str
) -> None:
    cache = store.root / ".remote"
    cache.mkdir(parents=True)
    fetched = cache / f"{0:032x}.jsonl"
    fetched.write_text("fetched")
    digests = InputDigests(store.root / ".inputs.json").of({"a": fetched})
    record_ingest(store, digests["a"])
    os.utime(fetched, (0, 0))
    (store.path("ingest", 16 * "a") / damaged).write_text("other")
    assert not [item for item in unused(store, needed(store, 1)) if item.kind == "remote"]


def test_held_key_is_never_touched(run_cli: RunCli, store: Store) -> None:
    old = run_cli("refresh", "tokenizer.vocab_size=300")["summary"]["stages"]["tokenizer"]["key"]
    run_cli("refresh", "tokenizer.vocab_size=400")
    listed = unused(store, needed(store, 1))
    with store.hold(Node("tokenizer", old, "", {}, {}), print):
        assert not [item for item in unused(store, needed(store, 1)) if item.path.name == old]
        remove(listed)  # listed before it was held
        assert store.find("tokenizer", old)
    remove(unused(store, needed(store, 1)))
    assert store.find("tokenizer", old) is None


def test_live_run_protects_what_it_will_read(run_cli: RunCli, store: Store) -> None:
    run_cli("refresh", "tokenizer.vocab_size=300")
    run_cli("refresh", "tokenizer.vocab_size=400")
    (record,) = [r for r in read_records(store) if "tokenizer.vocab_size=300" in r.overrides]
    path = store.root / ".runs" / f"{record.run_id}.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "outcome": "running"}))
    assert unused(store, needed(store, 1)) == [], "its process is alive: it is this one"
    values["process"]["pid"] = 2**22 + 1
    path.write_text(json.dumps({**values, "outcome": "running"}))
    assert unused(store, needed(store, 1)) != []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"run_id": "x"}'])
@pytest.mark.parametrize("command", [["gc"], ["explain", "x"]])
def test_record_that_cannot_be_read_is_one_line(
    content: bytes, command: list[str], run_cli: RunCli, store: Store
) -> None:
    mark_store(store)
    (store.root / ".runs").mkdir()
    (store.root / ".runs" / "x.json").write_bytes(content)
    result = run_cli(*command)
    assert (
        result["code"] == 2
        and "x.json is not a readable run record" in result["err"]
        and result["err"].count("\n") == 1
    )


def test_record_says_what_a_run_stands_on(run_cli: RunCli, store: Store) -> None:
    summary = run_cli("refresh")["summary"]
    (record,) = read_records(store)
    assert (record.run_id, record.flow, record.target) == (summary["run_id"], "refresh", "shards")
    assert (
        record.outcome == "completed"
        and record.finished_at
        and record.process["pid"] == os.getpid()
    )
    assert record.stages == {name: stage["key"] for name, stage in summary["stages"].items()}
