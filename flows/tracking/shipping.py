"""Sends the events of journals to MLflow from a thread of their own, so that a server never delays
a run.

While a stage works, the thread also tells MLflow what it measures and how the machine is, every few
seconds. A failure costs one warning; the journal stays, and is sent when the server answers again,
at the latest by the next run.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import sys
import threading
import time

from flows.console import warn
from flows.tracking.events import ITSELF, tell, tell_curves
from flows.tracking.journal import Event, Journal
from flows.tracking.machine import EVERY_S, Machine
from flows.tracking.mlflow_log import MlflowLog, is_refusal, reason_of
from llm_core.config import ConfigError
from tasks.runtime.artifact import ArtifactMismatch
from tasks.runtime.store import now

RETRY_AFTER_S = 15.0
LOOK_EVERY_S = 5.0
"""How often it is looked what a stage has measured meanwhile."""
FIRST_WAIT_S = 20.0
"""How long a run waits at its start, so that its page in MLflow is known from then on."""
LAST_WAIT_S = 60.0
"""How long a run waits at its end for a server that is slow."""
NICENESS = 10
"""Of the thread: training on the same cores goes before."""

UNSENDABLE = (ArtifactMismatch, ConfigError, FileNotFoundError)
"""Faults of the event itself, such as an artifact that is damaged or gone: sending it again cannot
succeed."""


class Shipper:
    """Sends the events of a journal as they come, and at the end those that earlier runs left."""

    def __init__(self, log: MlflowLog, journal: Journal) -> None:
        self._log, self._journal = log, journal
        self._wake, self._begun, self._closing = (threading.Event() for _ in range(3))
        self._warned = False
        self._machine: Machine | None = None
        self._sampled_at, self._num_samples = -EVERY_S, 0
        self.run_id: str | None = None
        self.link = ""
        # The context goes along: it says which flow run a warning belongs to.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name="mlflow", daemon=True
        )

    def start(self) -> None:
        """Start, and wait a little: packages imported by two threads at once can find each other
        half loaded."""
        self._wake.set()
        self._thread.start()
        self._begun.wait(FIRST_WAIT_S)

    def tell(self, event: Event) -> None:
        self._journal.append(event)
        self._wake.set()

    def finish(self) -> None:
        """Send the rest, as far as the server takes it in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(LAST_WAIT_S)
        if self._thread.is_alive():
            self._warn("is slow")

    def _work(self) -> None:
        while True:
            is_live = bool(self._journal.open_stages())
            self._wake.wait(LOOK_EVERY_S if is_live else None)
            self._wake.clear()
            # Looked at before sending: once it is set, the journal has every event.
            closing, failed, ended = self._closing.is_set(), False, False
            self._sample()
            try:
                ended = send(self._log, self._journal)
                self._note_run()
                if ended:
                    self._journal.remove()
                    send_left_over(self._log)
                else:
                    tell_curves(self._log, self._journal)
            except Exception as error:  # noqa: BLE001 - tracking never costs a run
                failed = True
                self._note_run()
                self._warn(f"does not take this run ({reason_of(error)})")
            if not self._begun.is_set():
                self._begun.set()
                _yield_to_others()
            if ended:
                return
            if closing:
                self._journal.close()
                return
            if failed:
                self._closing.wait(RETRY_AFTER_S)
                self._wake.set()

    def _sample(self) -> None:
        """Record how the machine is, now and then while a stage works. If that fails, it costs one
        warning; all else is still sent."""
        stages = list(self._journal.open_stages())
        if not stages or time.monotonic() - self._sampled_at < EVERY_S:
            return
        self._sampled_at = time.monotonic()
        try:
            self._machine = self._machine or Machine()
            event = {"kind": "machine", "stage": stages[-1], "values": self._machine.sample()}
            self._journal.append({**event, "number": self._num_samples, "at": now()})
        except Exception as error:  # noqa: BLE001 - tracking never costs a run
            self._sampled_at = math.inf
            warn(f"system metrics of this run are not recorded ({reason_of(error)})")
        self._num_samples += 1

    def _note_run(self) -> None:
        if self.run_id is None and (run_id := self._journal.runs.get(ITSELF)):
            begin = self._journal.events[0]
            self.run_id = run_id
            self.link = self._log.link(run_id, None if begin["swept"] is None else begin["id"])

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"MLflow at {self._log.name} {what}; the run continues, and the next one sends what"
                f" is kept in {self._log.unsent}"
            )


def send_left_over(log: MlflowLog) -> int:
    """Send what earlier runs left that died or did not reach the server; how many there were.
    Raises what the client raises."""
    count = 0
    for journal in Journal.left_over(log.unsent):
        if not journal.events:
            journal.remove()
            continue
        if not journal.has_ended:
            _end_dead(journal)
        send(log, journal)
        journal.remove()
        count += 1
    return count


def _end_dead(journal: Journal) -> None:
    """Add how a run ended whose process could not: it failed, and so did the stage it was at."""
    begin = journal.events[0]
    error = f"process {begin.get('process', '')} ended unexpectedly".replace("  ", " ")
    how = {"status": "FAILED", "at": now(), "error": error}
    for event in journal.open_stages().values():
        journal.append({**event, **how, "kind": "failure"})
    journal.append({**how, "kind": "end"})


def send(log: MlflowLog, journal: Journal) -> bool:
    """Send the events that have not been; whether the last one was the end.

    What the server refuses for good, and what is damaged here, is left out with a warning.
    """
    while journal.num_sent < len(journal.events):
        event = journal.events[journal.num_sent]
        try:
            log.require_listener()
            tell(log, journal, event)
        except Exception as error:
            refused = is_refusal(error)
            if not (refused or isinstance(error, UNSENDABLE)) or not journal.runs.get(ITSELF):
                raise
            what = (
                "refuses a part of this run, which is left out"
                if refused
                else "lacks a part of this run"
            )
            warn(f"MLflow at {log.name} {what}: {reason_of(error)}")
        journal.num_sent += 1
        journal.keep()
    # By what has been sent: another event may have come since the last look.
    return journal.num_sent > 0 and journal.events[journal.num_sent - 1]["kind"] == "end"


def _yield_to_others() -> None:
    """Lower the priority of this thread, where the system has one for each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it is as low already
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
