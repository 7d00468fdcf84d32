"""A run says where it is while its process lives, and what it said outlives the process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.compose import compose
from flows.live import announced as live_runs
from flows.live.announced import announced, live_dir, read_live, run_name
from flows.live.standing import read_standing
from flows.progress import stage_progress
from flows.records import read_records
from flows.services import processes
from flows.services.dead_runs import settle
from llm_core.training.metric_log import TIMING_FILE
from llm_core.training.status import STATUS_FILE, write_status
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT
from tasks.runtime.store import Store
from tests.flows.conftest import RunCli

SLEEPER = """
import sys, time
from flows.compose import compose
from flows.live.announced import announced
with announced("pipeline", ["optim.lr=1"], compose(sys.argv[1:])) as live:
    live.note_record(sys.argv[1].removeprefix("tracking.experiment="))
    live.note_stage("train", "0" * 16)
    print("ready", flush=True)
    time.sleep(60)
"""


def test_run_is_announced_while_it_goes_on_and_not_after(places: list[str], tmp_path: Path) -> None:
    config = compose(places)
    with announced("pipeline", ["optim.lr=1", "tracking.uri=http://me:word@host"], config) as live:
        live.note_stage("dedup", "0" * 16)
        (read,) = read_live(config.state)
        assert (read.flow, read.stage, read.process["pid"]) == ("pipeline", "dedup", os.getpid())
        assert not read.is_dead
        assert "word" not in live.file.read_text(), "passwords stay where they were given"
        assert live_dir(config.state).stat().st_mode & 0o077 == 0
    assert read_live(config.state) == []


def test_process_of_another_boot_is_dead_and_of_another_host_unknown() -> None:
    own = processes.own_identity()
    assert processes.may_be_alive(own)
    assert not processes.may_be_alive(own | {"boot": "another"})
    assert not processes.may_be_alive(own | {"started": "1"}), "the same id, used again"
    assert processes.may_be_alive(own | {"host": "elsewhere", "started": "1"})


@pytest.mark.usefixtures("stand_in_stages")
def test_run_that_was_killed_is_settled_by_the_next_one(
    run_cli: RunCli, places: list[str], tmp_path: Path
) -> None:
    run_cli("refresh")
    store = Store(tmp_path / "store")
    (record,) = read_records(store)
    file = store.root / ".runs" / f"{record.run_id}.json"
    write_json(file, json.loads(file.read_text()) | {"outcome": "running", "finished_at": None})
    kill_a_run([f"tracking.experiment={record.run_id}", "tracking.enabled=false", *places])
    config = compose(places)
    (dead,) = read_standing(config)["dead"]
    assert (dead["name"], dead["stage"]) == ("pipeline optim.lr=1", "train")
    assert "ended unexpectedly during train" in run_cli("refresh")["err"]
    assert read_live(config.state) == []
    last, first = read_records(store)
    assert first.outcome == "died" and first.error and "during train" in first.error
    assert last.outcome == "completed"
    assert [run["run_id"] for run in read_standing(config)["dead"]] == [first.run_id]


def kill_a_run(words: list[str]) -> None:
    command = [sys.executable, "-c", SLEEPER, *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)


def test_runs_of_a_shared_store_are_shown_while_its_bucket_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    config = compose(["store=s3://texts/here", f"state={tmp_path}"])
    with announced("pipeline", [], config):
        began = time.monotonic()
        (live,) = read_standing(config)["live"]
    assert live["name"] == "pipeline" and time.monotonic() - began < 3


def test_dead_flow_run_stays_announced_until_its_server_is_told(
    places: list[str], tmp_path: Path
) -> None:
    config = compose(places)
    with announced("pipeline", [], config) as live:
        live.note_flow_run("local", "e57ff658-5217-43f4-8f6e-724bfeac67cd")
        live.process["started"] = "1"
        live.save()
        assert settle(config.state, None) == []
        assert [run.is_dead for run in read_live(config.state)] == [True]


def test_full_disk_under_the_state_folder_costs_one_warning(
    places: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with announced("pipeline", [], compose(places)) as live:
        monkeypatch.setattr(live_runs, "write_durably", full)
        for stage in ("ingest", "language"):
            live.note_stage(stage, "0" * 16)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_file_that_a_power_cut_emptied_is_passed_over(places: list[str]) -> None:
    config = compose(places)
    with announced("pipeline", [], config) as live:
        live.file.write_bytes(b"")
        assert read_live(config.state) == []


def test_announcement_of_another_version_is_kept_and_read_as_far_as_it_is_known(
    places: list[str],
) -> None:
    config = compose(places)
    with announced("pipeline", [], config) as live:
        values = json.loads(live.file.read_text("utf-8"))
        live.file.write_text(json.dumps(values | {"of_a_later_version": 1}), "utf-8")
        (read,) = read_live(config.state)
        assert read.process == live.process
        for strange in ({"of_another_kind": 1}, [1]):
            live.file.write_text(json.dumps(strange), "utf-8")
            assert read_live(config.state) == [] and live.file.exists()


def test_name_says_what_was_asked_without_places_and_secrets() -> None:
    asked = ["optim.lr=2e-3", "store=/a", "state=/b", "tracking.uri=http://me:word@host/x"]
    assert run_name("pipeline", asked) == "pipeline optim.lr=2e-3 tracking.uri=http://me:***@host/x"
    assert len(run_name("pipeline", ["source.paths=[" + "x" * 999 + "]"])) == 120


def test_a_training_whose_job_is_queued_says_so_and_why(places: list[str], tmp_path: Path) -> None:
    work = tmp_path / "store/.work/train" / ("0" * 16) / "out.work/run-1"
    work.mkdir(parents=True)
    write_json(work / "config.json", {"train": {"num_steps": 100}})
    job = {"id": "12", "phase": "queued", "words": "is queued (Priority)"}
    write_json(work / "job.json", job)
    with announced("pipeline", [], compose(places)) as live:
        live.note_stage("train", "0" * 16)
        assert str(stage_progress(live)) == "step 0 of 100, job 12 is queued (Priority)"
        write_json(work / "job.json", job | {"phase": "running"})
        assert str(stage_progress(live)) == "step 0 of 100"


def test_progress_of_a_training_is_read_from_its_files(places: list[str], tmp_path: Path) -> None:
    work = tmp_path / "store/.work/train" / ("0" * 16) / "out.work/run-1"
    work.mkdir(parents=True)
    write_json(work / "config.json", {"train": {"num_steps": 100}})
    write_status(work / STATUS_FILE, "running", 40)
    row = {"step": 40, "num_steps": 20, "elapsed_s": 10.0}
    (work / TIMING_FILE).write_text(json.dumps(row) + "\n")
    with announced("pipeline", [], compose(places)) as live:
        live.note_stage("train", "0" * 16)
        assert str(stage_progress(live)) == "step 40 of 100, 0:00:30 left"
        live.note_stage("dedup", "0" * 16)
        assert stage_progress(live) is None
        live.note_parts(1, 4)
        time.sleep(0.01)
        progress = stage_progress(live)
        assert progress is not None and (progress.done, progress.total) == (1, 4)
        assert progress.left_s is not None and progress.left_s > 0
