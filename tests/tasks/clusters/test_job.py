"""A job is submitted once, followed through requeues, and stopped with whoever follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.clusters.commands import Refused
from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import JOB_FILE, STOP_FILE, Ended, Job, Sighting, read_job, run_job
from tasks.runtime.artifact import write_json
from tasks.runtime.stage import StageFailure

CONFIG = ClusterConfig("slurm", poll_s=0.01, patience_s=0.05)
QUEUED, RUNNING = Sighting("queued", "is queued (Priority)"), Sighting("running", "runs on n1")
DONE, GONE = Sighting("ended", "ended as COMPLETED"), Sighting("gone", "vanished")
AWAY = Refused("no controller")


@dataclass
class Scripted:
    """A scheduler whose answers are given; the last one stays."""

    answers: list[Sighting | Refused]
    live: str | None = None
    refuses: bool = False
    calls: list[str] = field(default_factory=list)
    kind: str = "slurm"
    during_submit: Callable[[], None] = lambda: None
    during_look: Callable[[], None] = lambda: None

    def submit(self, job: Job) -> str:
        self.calls.append("submit")
        if self.refuses:
            raise Refused("invalid partition")
        self.live = "12"
        self.during_submit()
        return "12"

    def find(self, job: Job) -> str | None:
        self.calls.append("find")
        return self.live

    def look(self, job_id: str) -> Sighting:
        self.during_look()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def stop(self, job_id: str) -> None:
        self.calls.append("stop")
        self.answers = [DONE]

    def kill(self, job_id: str) -> None:
        self.calls.append("kill")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("textmill-train-0a", tmp_path, tmp_path / "log", ("true",), {}, 0, 1.0)


def run(scheduler: Scripted, job: Job, watch: Callable[[], None] = lambda: None) -> Ended:
    return run_job(scheduler, job, CONFIG, watch)


def test_a_job_is_followed_through_a_requeue_and_each_change_is_told_once(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [QUEUED, QUEUED, RUNNING, RUNNING, QUEUED, RUNNING, DONE]
    assert run(Scripted(list(answers)), job) == Ended("12", "ended as COMPLETED", False)
    told = [line for line in capsys.readouterr().err.splitlines() if ": job 12 " in line]
    words = [line.partition(": job 12 ")[2] for line in told]
    assert words == [s.words for s in (QUEUED, RUNNING, QUEUED, RUNNING, DONE)]


def test_the_id_is_on_disk_before_anything_waits_and_gone_once_the_end_was_seen(job: Job) -> None:
    seen: list[str] = []
    scheduler = Scripted([QUEUED, DONE])
    scheduler.during_look = lambda: seen.append(read_job(job.folder)["id"])
    run(scheduler, job)
    assert seen == ["12", "12"] and not read_job(job.folder)


@pytest.mark.parametrize("known", [True, False])
def test_a_live_job_is_attached_to_whether_its_id_was_written_or_not(known: bool, job: Job) -> None:
    if known:
        write_json(job.folder / JOB_FILE, {"scheduler": "slurm", "id": "12"})
    scheduler = Scripted([RUNNING, DONE], live="12")
    assert run(scheduler, job).attached
    assert "submit" not in scheduler.calls


def test_a_job_that_finished_while_nobody_looked_is_not_submitted_again(job: Job) -> None:
    write_json(job.folder / JOB_FILE, {"scheduler": "slurm", "id": "12"})
    scheduler = Scripted([GONE])
    ended = run_job(scheduler, job, CONFIG, lambda: None, is_finished=lambda: True)
    assert ended.attached and not scheduler.calls


def test_a_job_that_failed_while_nobody_looked_is_submitted_again(job: Job) -> None:
    write_json(job.folder / JOB_FILE, {"scheduler": "slurm", "id": "11"})
    (job.folder / STOP_FILE).touch()
    assert not run(Scripted([GONE, DONE]), job).attached
    assert not (job.folder / STOP_FILE).exists(), "it may be requeued"


def test_a_job_that_was_told_to_stop_is_waited_for_and_a_new_one_resumes(job: Job) -> None:
    write_json(job.folder / JOB_FILE, {"scheduler": "slurm", "id": "11"})
    (job.folder / STOP_FILE).touch()
    scheduler = Scripted([RUNNING, RUNNING, DONE, DONE], live="11")
    assert run(scheduler, job) == Ended("12", "ended as COMPLETED", False)
    assert scheduler.calls == ["submit"] and not (job.folder / STOP_FILE).exists()


def test_a_job_that_vanishes_ends_the_wait_and_says_so(job: Job) -> None:
    assert run(Scripted([RUNNING, GONE]), job).words == "vanished"


def test_a_scheduler_that_is_away_for_a_while_costs_nothing(job: Job) -> None:
    assert run(Scripted([RUNNING, AWAY, AWAY, DONE]), job).words == "ended as COMPLETED"


def test_one_that_stays_away_ends_the_wait_and_leaves_the_job(job: Job) -> None:
    scheduler = Scripted([RUNNING, AWAY])
    with pytest.raises(
        StageFailure, match=r"has not answered for 0 s .*no controller; job 12 continues, run again"
    ):
        run(scheduler, job)
    assert "stop" not in scheduler.calls and read_job(job.folder)["id"] == "12"


def test_a_refusal_is_one_line_with_the_reason(job: Job) -> None:
    with pytest.raises(StageFailure, match="slurm refused the job .*: invalid partition; see"):
        run(Scripted([QUEUED], refuses=True), job)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_stop_stops_the_job_and_keeps_it_from_being_requeued(job: Job) -> None:
    scheduler = Scripted([RUNNING])
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, job, interrupt)
    assert scheduler.calls[-1] == "stop"
    assert (job.folder / STOP_FILE).exists() and not read_job(job.folder)


def test_a_stop_in_the_middle_of_a_submission_leaves_no_job(job: Job) -> None:
    scheduler = Scripted([RUNNING], during_submit=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, job)
    assert scheduler.calls == ["find", "submit", "find", "stop"]


def test_a_job_that_does_not_stop_in_time_is_killed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.clusters.job.STOP_EXTRA_S", -1.0)
    scheduler = Scripted([RUNNING])
    monkeypatch.setattr(scheduler, "stop", lambda job_id: None)
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, job, interrupt)
    assert scheduler.calls[-1] == "kill"


def test_lines_of_the_log_are_told_once_whole(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.log.write_text("of an earlier try\n", "utf-8")
    pieces = iter(["first\nsec", "ond\n", ""])

    def write() -> None:
        with job.log.open("a", encoding="utf-8") as log:
            log.write(next(pieces))

    run(Scripted([RUNNING, RUNNING, RUNNING, DONE]), job, write)
    told = [line for line in capsys.readouterr().err.splitlines() if " | " in line]
    assert told == ["textmill-train-0a | first", "textmill-train-0a | second"]
