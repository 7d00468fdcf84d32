"""Machines that share a bucket have one store: the same keys and bytes, each made once and fetched
once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from tasks.runtime.artifact import ARTIFACT_FILE
from tasks.runtime.shared.bucket import Bucket
from tasks.runtime.shared.store import SharedArtifact, SharedStore
from tasks.runtime.stage import StageFailure
from tasks.runtime.store import Store
from tests.support.buckets import BUCKET, names
from tests.support.data.stored_artifacts import make_node, publish
from tests.tasks.runtime.shared.conftest import Machine


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def prefix(url: str) -> str:
    return url.removeprefix(f"s3://{BUCKET}/")


def object_of(bucket: Any, url: str) -> str:
    """The name of the one file of the artifact."""
    return next(name for name in names(bucket, prefix(url)) if name.endswith("data/a.txt"))


def test_an_artifact_has_the_same_files_as_a_local_one_here_there_and_elsewhere(
    machine: Machine, url: str, bucket: Any, tmp_path: Path
) -> None:
    local = publish(Store(tmp_path / "local"), make_node())
    made = publish(machine("a"), make_node())
    assert made.path == tmp_path / "a" / "ingest" / "k1" and made.key == local.key
    assert made.record["files"] == local.record["files"]
    assert machine("b").damage("ingest", "k1") is None
    found = machine("b").find("ingest", "k1")
    assert found is not None and (found.counters, found.metrics) == (made.counters, made.metrics)
    assert contents(found.path) == contents(made.path)
    digest = made.record["files"][0]["digest"]
    assert [n.removeprefix(f"{prefix(url)}/") for n in names(bucket, prefix(url))] == [
        "ingest/k1.json",
        f"ingest/k1/{digest}/data/a.txt",
    ], "no lease is left"


def test_files_come_once_and_when_they_are_asked_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(machine("a"), make_node())
    fetched: list[str] = []
    fetch = Bucket.fetch
    monkeypatch.setattr(Bucket, "fetch", lambda b, files: (fetched.extend(files), fetch(b, files)))
    elsewhere = machine("b")
    found = elsewhere.find("ingest", "k1")
    assert isinstance(found, SharedArtifact) and "k1" in repr(found) and found.files
    assert not found.place.exists() and not fetched
    assert found.file("data/a.txt").read_text() == "hello"
    assert found.path == found.place and len(fetched) == 1
    monkeypatch.setattr(Bucket, "_call", None)
    monkeypatch.setattr(Bucket, "read", None)
    assert (again := machine("b").find("ingest", "k1")) and again.file("data/a.txt").exists()
    assert machine("b").damage("ingest", "k1", check_digests=True) is None
    assert len(fetched) == 1, "what is here is not asked for again"


def test_what_is_damaged_here_comes_from_the_bucket(machine: Machine) -> None:
    here = machine("a")
    made = publish(here, make_node())
    (made.path / "data" / "a.txt").write_text("other")
    assert Store.damage(here, "ingest", "k1", check_digests=True) is not None
    assert here.damage("ingest", "k1") is None
    found = here.find("ingest", "k1")
    assert found is not None and found.file("data/a.txt").read_text() == "hello"


def test_a_file_that_is_gone_in_the_bucket_makes_the_artifact_damaged_until_it_is_rebuilt(
    machine: Machine, bucket: Any, url: str
) -> None:
    publish(machine("a"), make_node())
    bucket.delete_object(Bucket=BUCKET, Key=object_of(bucket, url))
    elsewhere = machine("b")
    assert elsewhere.damage("ingest", "k1") == f"damaged: data/a.txt is gone in {url}"
    assert elsewhere.find("ingest", "k1") is None
    publish(elsewhere, make_node())
    found = machine("c").find("ingest", "k1")
    assert found is not None and found.file("data/a.txt").read_text() == "hello"


def test_an_object_with_other_content_is_refused_and_rebuilt_by_the_next_run(
    machine: Machine, bucket: Any, url: str
) -> None:
    publish(machine("a"), make_node())
    bucket.put_object(Bucket=BUCKET, Key=object_of(bucket, url), Body=b"HELLO")
    found = machine("b").find("ingest", "k1")
    with pytest.raises(StageFailure, match=r"data/a\.txt has changed content; run again"):
        _ = found and found.path
    assert str(machine("b").damage("ingest", "k1")).startswith("damaged: data/a.txt is gone")
    assert publish(machine("b"), make_node()).file("data/a.txt").read_text() == "hello"


def test_a_check_reads_the_objects_also_where_a_copy_is_sound_and_removes_none(
    machine: Machine, bucket: Any, url: str
) -> None:
    publish(machine("a"), make_node())
    assert machine("a").check_there("ingest", "k1") == []
    bucket.put_object(Bucket=BUCKET, Key=object_of(bucket, url), Body=b"HELLO")
    assert machine("a").check_there("ingest", "k1") == ["data/a.txt has changed content"]
    assert object_of(bucket, url)


@pytest.mark.parametrize("text", [b"{", b'{"schema_version": 99}', b"[]"])
def test_a_record_that_cannot_be_read_is_damage(
    text: bytes, machine: Machine, bucket: Any, url: str
) -> None:
    bucket.put_object(Bucket=BUCKET, Key=f"{prefix(url)}/ingest/k1.json", Body=text)
    assert str(machine("a").damage("ingest", "k1")).startswith("damaged: ")
    publish(machine("a"), make_node())
    assert machine("b").damage("ingest", "k1") is None


def test_a_record_may_not_lead_out_of_its_folder(machine: Machine, bucket: Any, url: str) -> None:
    made = publish(machine("a"), make_node())
    record = json.loads((made.path / ARTIFACT_FILE).read_text())
    record["files"][0]["path"] = "../../../evil.txt"
    key = f"{prefix(url)}/ingest/k1.json"
    bucket.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(record).encode())
    assert "not in its folder" in str(machine("b").damage("ingest", "k1"))


def test_what_was_removed_from_the_bucket_is_given_back_by_a_run_that_has_it(
    machine: Machine,
) -> None:
    here = machine("a")
    made = publish(here, make_node())
    assert machine("b").remove_there("ingest", "k1")
    assert machine("b").damage("ingest", "k1") == "missing"
    here.share(made)
    assert machine("b").damage("ingest", "k1") is None


def test_what_was_removed_between_plan_and_use_is_said(machine: Machine) -> None:
    publish(machine("a"), make_node())
    found = machine("b").find("ingest", "k1")
    machine("a").remove_there("ingest", "k1")
    with pytest.raises(StageFailure, match="was removed from s3://.*; run again"):
        _ = found and found.path


def test_a_forced_result_replaces_the_one_in_the_bucket(machine: Machine) -> None:
    publish(machine("a"), make_node(), "one")
    before = machine("b").find("ingest", "k1")
    assert before is not None and before.file("data/a.txt").read_text() == "one"
    publish(machine("a"), make_node(), "two")
    after = machine("c").find("ingest", "k1")
    assert after is not None and after.file("data/a.txt").read_text() == "two"


def test_the_plan_of_a_fresh_machine_sees_what_others_made(machine: Machine) -> None:
    publish(machine("a"), make_node())
    time.sleep(1.1)  # S3 tells times in seconds
    publish(machine("a"), make_node("k2"))
    assert [artifact.key for artifact in machine("b").artifacts("ingest")] == ["k2"]
    assert machine("b").artifacts("train") == []


def test_a_server_that_ignores_conditions_is_refused(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Bucket._call

    def unconditional(bucket: Bucket, method: str, name: str, **arguments: Any) -> Any:
        arguments.pop("IfNoneMatch", None)
        return call(bucket, method, name, **arguments)

    store = machine("a")
    store.root.mkdir()
    (store.root / "run.json").write_text("{}")
    monkeypatch.setattr(Bucket, "_call", unconditional)
    with pytest.raises(ConfigError, match="ignores If-None-Match"):
        store.share_file(store.root / "run.json")


@pytest.mark.parametrize(
    "address", ["gs://bucket/x", "s3://", "s3://bucket/a?b", "s3:/bucket/x", "s3://me@bucket/x"]
)
def test_other_addresses_are_refused_in_one_line(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be an address such as s3://bucket/prefix") as error:
        SharedStore(tmp_path, address)
    assert "\n" not in str(error.value)


def test_a_bucket_that_is_not_there_is_one_line(bucket: Any, tmp_path: Path) -> None:
    store = SharedStore(tmp_path, "s3://no-such-bucket/x")
    with pytest.raises(ConfigError, match="s3://no-such-bucket/x") as error:
        publish(store, make_node())
    assert "\n" not in str(error.value) and "hidden-key" not in str(error.value)


def test_a_server_that_is_away_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Any
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    store = SharedStore(tmp_path, "s3://texts/away")
    with pytest.raises(ConfigError, match=r"s3://texts/away cannot be used \(") as error:
        store.damage("ingest", "k1")
    S3FileSystem.clear_instance_cache()
    assert "\n" not in str(error.value)
