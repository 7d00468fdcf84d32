"""Submits a program as a job, or attaches to one that is running, and follows it to its end.

A job belongs to a folder that its nodes share. `job.json` in that folder holds the id, written
before anything waits, so a later process finds the job of a killed one. A job is also looked up by
its name and folder before another is submitted. A process that is killed leaves its job running.
One that is stopped stops its job, and gives it time to save.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from llm_core.json_files import UnreadableJson, read_json
from llm_core.printing import note
from tasks.clusters.commands import Refused
from tasks.clusters.config import ClusterConfig
from tasks.runtime.artifact import write_json
from tasks.runtime.stage import StageFailure

JOB_FILE = "job.json"
STOP_FILE = "stop"
"""Its presence says that a job was told to stop, and must not be started again."""
MAX_LINE_CHARS = 500
STOP_EXTRA_S = 60.0
"""Beyond the time to save: what a scheduler takes to deliver a signal and to clean up."""


@dataclass(frozen=True)
class Job:
    """A program for one or several nodes."""

    name: str
    folder: Path
    """What the job writes; absolute, and the same on all nodes. One job at a time."""
    log: Path
    """What the program prints is appended here."""
    command: tuple[str, ...]
    """Started once on each node."""
    environment: Mapping[str, str]
    num_gpus: int
    """On each node."""
    grace_s: float
    """Time to save after SIGTERM."""
    max_restarts: int = 0
    """How often the scheduler starts it again after a failure."""


@dataclass(frozen=True)
class Sighting:
    """The state of a job. gone: the scheduler no longer knows it."""

    phase: Literal["queued", "running", "ended", "gone"]
    words: str
    """For people: where it runs, why it waits or how it ended."""

    @property
    def is_live(self) -> bool:
        return self.phase in ("queued", "running")


class Scheduler(Protocol):
    """Queues and runs jobs. Every method raises `Refused` where the scheduler does not answer, or
    refuses."""

    kind: str

    def submit(self, job: Job) -> str:
        """The id of a new job."""
        ...

    def find(self, job: Job) -> str | None:
        """The id of a live job of this name and folder."""
        ...

    def look(self, job_id: str) -> Sighting: ...

    def stop(self, job_id: str) -> None:
        """Cancel a queued job; send SIGTERM to every process of a running one."""
        ...

    def kill(self, job_id: str) -> None: ...


@dataclass(frozen=True)
class Ended:
    """A job that is over, and whether somebody else had submitted it."""

    job_id: str
    words: str
    attached: bool


def run_job(
    scheduler: Scheduler,
    job: Job,
    config: ClusterConfig,
    watch: Callable[[], None],
    is_finished: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run a job, following its log. Call from the thread that a stop is raised in.

    watch: called at every look. is_finished: whether the result is there, so that a job that ended
    while nobody looked is not submitted again.
    Raises StageFailure where the job is refused or the scheduler has not answered for too long.
    """
    log = _LogTail(job)
    job_id: str | None = None
    try:
        known = read_job(job.folder)
        seen: Sighting | None = None
        if known.get("scheduler") == scheduler.kind:
            job_id, seen = known["id"], scheduler.look(known["id"])
            if not seen.is_live and is_finished():
                return _over(job, job_id, seen, attached=True)
        if seen is None or not seen.is_live:
            job_id = scheduler.find(job)
        if job_id and (job.folder / STOP_FILE).exists():
            note(f"{job.name}: {scheduler.kind} job {job_id} was told to stop; waiting for its end")
            _follow(scheduler, job, job_id, config, watch, log)
            job_id = None
        attached = job_id is not None
        if job_id is None:
            (job.folder / STOP_FILE).unlink(missing_ok=True)
            job_id = scheduler.submit(job)
        how = "attached to" if attached else "submitted as"
        note(f"{job.name}: {how} {scheduler.kind} job {job_id}; log {job.log}")
        _write(job, scheduler, job_id, Sighting("queued", "is queued"))
        return _over(job, job_id, _follow(scheduler, job, job_id, config, watch, log), attached)
    except Refused as error:
        raise StageFailure(
            f"{scheduler.kind} refused the job {job.name}: {error}; see the settings of cluster"
        ) from error
    except StageFailure:
        raise
    except BaseException:
        _stop(scheduler, job, job_id, config, log)
        raise


def read_job(folder: Path) -> dict[str, Any]:
    """The job of a folder that has not been seen to end; empty without one."""
    with suppress(FileNotFoundError, UnreadableJson):
        return dict(read_json(folder / JOB_FILE))
    return {}


def _over(job: Job, job_id: str, seen: Sighting, attached: bool) -> Ended:
    (job.folder / JOB_FILE).unlink(missing_ok=True)
    return Ended(job_id, seen.words, attached)


def _write(job: Job, scheduler: Scheduler, job_id: str, seen: Sighting) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"scheduler": scheduler.kind, "id": job_id, "name": job.name}
    write_json(
        job.folder / JOB_FILE, facts | {"phase": seen.phase, "words": seen.words, "since": since}
    )


def _follow(
    scheduler: Scheduler,
    job: Job,
    job_id: str,
    config: ClusterConfig,
    watch: Callable[[], None],
    log: _LogTail,
) -> Sighting:
    """Check a job until it is over, and print each change of its state."""
    told: Sighting | None = None
    answered_at = time.monotonic()
    while True:
        try:
            seen = scheduler.look(job_id)
            answered_at = time.monotonic()
        except Refused as error:
            if time.monotonic() - answered_at > config.patience_s:
                raise StageFailure(
                    f"{scheduler.kind} has not answered for {config.patience_s:.0f} s"
                    f" (cluster.patience_s): {error}; job {job_id} continues, run again to attach"
                ) from error
            seen = told or Sighting("queued", "is queued")
        log.show()
        if seen != told:
            note(f"{job.name}: job {job_id} {seen.words}")
            if seen.is_live:
                _write(job, scheduler, job_id, seen)
            told = seen
        if not seen.is_live:
            return seen
        watch()
        time.sleep(config.poll_s)


def _stop(
    scheduler: Scheduler, job: Job, job_id: str | None, config: ClusterConfig, log: _LogTail
) -> None:
    """Let a job save and end; kill it where that takes too long."""
    (job.folder / STOP_FILE).touch()
    try:
        # A stop in the middle of a submission: the job may be there.
        if (job_id := job_id or scheduler.find(job)) is None:
            return
        scheduler.stop(job_id)
        note(f"{job.name}: {scheduler.kind} job {job_id} is asked to save and stop")
        deadline = time.monotonic() + job.grace_s + STOP_EXTRA_S
        while (seen := scheduler.look(job_id)).is_live and time.monotonic() < deadline:
            time.sleep(min(config.poll_s, 1.0))
        if seen.is_live:
            note(
                f"{job.name}: job {job_id} did not stop within {job.grace_s + STOP_EXTRA_S:.0f} s;"
                " killing it"
            )
            scheduler.kill(job_id)
        else:
            (job.folder / JOB_FILE).unlink(missing_ok=True)
    except Refused as error:
        note(f"{job.name}: job {job_id} may still run: {error}; stop it with the scheduler")
    log.show()


class _LogTail:
    """Prints the lines that a file has gained since this object was made."""

    def __init__(self, job: Job) -> None:
        self._name, self._path = job.name, job.log
        self._read_bytes = job.log.stat().st_size if job.log.exists() else 0

    def show(self) -> None:
        """Whole lines only; an unfinished line is printed once it is complete."""
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._read_bytes)
            gained = stream.read()
        whole = gained[: gained.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            note(f"{self._name} | {line[:MAX_LINE_CHARS]}")
