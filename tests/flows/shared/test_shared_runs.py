"""Commands on a store in a bucket, as several machines give them: each machine is a folder that the
commands start in."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.compose import compose
from flows.records import read_records, write_record
from tasks.runtime.code import ROOT
from tasks.runtime.shared.store import SharedStore
from tests.flows.conftest import RunCli
from tests.support.buckets import BUCKET, names, served_bucket

NUMBERS = itertools.count()
OnMachine = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    with served_bucket() as client:
        yield client


@pytest.fixture
def url(bucket: Any) -> str:
    return f"s3://{BUCKET}/runs/{next(NUMBERS)}"


@pytest.fixture
def places(url: str) -> list[str]:
    return [f"store={url}", "state=state"]


@pytest.fixture
def on(
    stand_in_stages: list[str], run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OnMachine:
    """(machine, words) -> what the command gives, with the stages that it `made`."""

    def run(machine: str, *words: str) -> dict[str, Any]:
        (tmp_path / machine).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / machine)
        stand_in_stages.clear()
        return run_cli(*words) | {"made": list(stand_in_stages)}

    return run


def store_here(url: str) -> SharedStore:
    """The store of the machine whose folder this process is in."""
    store = compose([f"store={url}"]).open_store()
    assert isinstance(store, SharedStore)
    return store


def test_an_address_becomes_a_copy_in_one_folder_that_other_settings_refer_to() -> None:
    config = compose(["store=s3://Bucket-1/my/data/", "source=sample"])
    assert config.shared == "s3://Bucket-1/my/data/"
    assert config.store.parent == Path("data/stores") and "my-data" in config.store.name
    assert config.source.cache == config.store / ".remote"
    assert compose(["store=s3://bucket/a/b"]).store != compose(["store=s3://bucket/a-b"]).store
    given = compose(["store=/fast/copy", "shared=s3://bucket/x"])
    assert (given.store, given.shared) == (Path("/fast/copy"), "s3://bucket/x")


def test_a_second_machine_makes_nothing_again_and_fetches_what_it_reads(
    on: OnMachine, url: str, tmp_path: Path
) -> None:
    first = on("a", "run")
    assert first["code"] == 0 and len(first["made"]) == 15
    planned = on("b", "plan")
    assert planned["code"] == 0 and "building" not in planned["out"]
    second = on("b", "run")
    assert second["code"] == 0 and second["made"] == []
    assert second["summary"]["report"] and Path(second["summary"]["report"]).is_file()
    copy = store_here(url).root
    assert not (copy / "shards").exists(), "nothing has read it here"
    changed = on("b", "run", "train.num_steps=7")
    assert changed["made"] == ["train", "evaluate", "bench", "report"]
    shards = store_here(url).find("shards", changed["summary"]["stages"]["shards"]["key"])
    assert shards is not None and shards.file("out.txt").is_relative_to(copy)
    assert on("a", "run", "train.num_steps=7")["made"] == []


def test_records_of_all_machines_are_known_to_each(on: OnMachine, url: str) -> None:
    run_id = on("a", "run")["summary"]["run_id"]
    assert on("b", "status")["code"] == 0
    records = read_records(store_here(url))
    assert [r.run_id for r in records] == [run_id] and records[0].outcome == "completed"
    other = on("b", "run", "train.num_steps=7")["summary"]["run_id"]
    assert on("a", "status")["code"] == 0
    assert {r.run_id for r in read_records(store_here(url))} == {run_id, other}


@pytest.mark.slow
def test_a_run_that_was_found_dead_on_its_machine_is_dead_for_the_others(
    on: OnMachine, url: str
) -> None:
    on("a", "run")
    here = store_here(url)
    [record] = read_records(here)
    record.outcome, record.process["host"] = "running", "elsewhere"
    path = write_record(here, record)
    died = json.loads(path.read_text()) | {"outcome": "died"}
    path.write_text(json.dumps(died))  # as `flows.services.dead_runs` does, which knows no bucket
    later = path.stat().st_mtime + 5
    os.utime(path, (later, later))
    read_records(here)
    on("b", "status")
    [known] = read_records(store_here(url))
    assert known.outcome == "died" and not known.is_alive()


@pytest.mark.slow
def test_gc_removes_in_the_bucket_what_no_run_of_any_machine_refers_to(
    on: OnMachine, url: str, bucket: Any
) -> None:
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    old = on("a", "run")["summary"]["stages"]["train"]["key"]
    new = on("b", "run", "train.num_steps=7")["summary"]["stages"]["train"]["key"]
    kept = on("a", "gc", "keep=2", "--yes")
    assert kept["code"] == 0 and "0.0 MB" in kept["out"]
    assert len({n for n in names(bucket, f"{prefix}/train/") if n.endswith(".json")}) == 2
    listed = on("a", "gc", "keep=1")["out"]
    assert f"{url}/train/{old}" in listed.replace("\n", "") and new not in listed
    assert on("a", "gc", "keep=1", "--yes")["code"] == 0
    left = names(bucket, f"{prefix}/train/")
    assert left and all(f"/{new}" in name for name in left)
    bucket.delete_object(Bucket=BUCKET, Key=f"{prefix}/.textmill-store")
    refused = on("a", "gc", "keep=0", "--yes")
    assert refused["code"] == 2 and "has no .textmill-store" in refused["err"]


@pytest.mark.slow
def test_verify_reads_the_bucket_and_repair_has_the_next_run_heal_it(
    on: OnMachine, url: str, bucket: Any
) -> None:
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    on("a", "run")
    assert on("b", "verify")["code"] == 0
    [wrong] = [n for n in names(bucket, f"{prefix}/quality/") if n.endswith("out.txt")]
    size = bucket.head_object(Bucket=BUCKET, Key=wrong)["ContentLength"]
    bucket.put_object(Bucket=BUCKET, Key=wrong, Body=b"x" * size)
    found = on("b", "verify")
    assert found["code"] == 1
    [damaged] = found["summary"]["damaged"]
    assert (damaged["kind"], damaged["stage"]) == ("shared", "quality")
    assert on("b", "verify", "--repair")["code"] == 0
    assert on("a", "run")["made"] == [], "the first machine gives back what it has"
    assert on("b", "verify")["code"] == 0


@pytest.mark.slow
def test_explain_and_a_chain_work_on_another_machine(on: OnMachine, url: str) -> None:
    chain = ("dedup=indexed", "dedup.chain=crawl")
    assert on("a", "refresh", *chain)["code"] == 0
    assert on("b", "refresh", *chain)["made"] == []
    asked = on("b", "explain", "nobody")
    assert asked["code"] == 2 and asked["err"].count("\n") == 1


def test_a_store_without_credentials_is_one_line(
    on: OnMachine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    S3FileSystem.clear_instance_cache()
    refused = on("c", "plan")
    S3FileSystem.clear_instance_cache()
    assert refused["code"] == 2 and refused["err"].count("\n") == 1
    assert f"{url} cannot be used (NoCredentialsError" in refused["err"]


def test_a_local_store_imports_nothing_of_the_bucket() -> None:
    program = """
import sys
from flows.compose import compose
from flows.records import read_records
import flows.run, flows.commands.unused, flows.commands.verify
read_records(compose(["store=/nonexistent"]).open_store())
assert not {"fsspec", "s3fs", "botocore", "aiohttp"} & set(sys.modules)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
