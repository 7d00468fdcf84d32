"""Keeps events for MLflow on disk until they are sent.

`<state>/mlflow/unsent/<place>/<id>.jsonl` has one line per event, written when it happens.
`<id>.sent.json` says how many of them MLflow has, and which of its runs belong to this one. Both
are removed at the end. A journal is left over if the server did not answer or the run died. Its
lock ends with its process, which distinguishes it from that of a run in progress.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from flows.console import warn
from llm_core.printing import printable
from llm_core.secrets import mask_secrets, mask_values
from tasks.runtime.artifact import write_json

if TYPE_CHECKING:
    from flows.tracking.curves import Curves

Event = Mapping[str, Any]


def unsent_dir(state: Path, uri: str, experiment: str) -> Path:
    """The folder of the journals for an experiment on a server. The server's password is not in the
    name."""
    place = hashlib.blake2b(f"{mask_secrets(uri)} {experiment}".encode(), digest_size=8).hexdigest()
    return state.resolve() / "mlflow" / "unsent" / place


class Journal:
    """The events of one run or sweep, in order, and how many of them are sent. Locked while it is
    open."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self._path, self._stream = path, stream
        self.events: list[Event] = []
        self._sent_file = path.with_suffix(".sent.json")
        known = json.loads(self._sent_file.read_text("utf-8")) if self._sent_file.exists() else {}
        self.num_sent: int = known.get("num_sent", 0)
        self.steps: dict[str, dict[str, int]] = known.get("steps", {})
        """{stage: {kind of row: last step that MLflow has}}."""
        self.curves: dict[str, Curves] = {}
        self._appending = threading.Lock()
        self.runs: dict[str, str | None] = known.get("runs", {})
        """{what: its run in MLflow}; None if its creation began and the outcome is unknown."""

    @classmethod
    def create(cls, directory: Path, name: str) -> Journal:
        """An empty journal. A sweep that is given again has the name of the one that died, of which
        nothing but its begin can be unsent."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.jsonl"
        while True:
            stream = path.open("a+", encoding="utf-8")
            fcntl.flock(stream, fcntl.LOCK_EX)
            if path.exists():
                stream.truncate(0)
                path.with_suffix(".sent.json").unlink(missing_ok=True)
                return cls(path, stream)
            stream.close()  # another process took it for an empty left-over before it was locked

    @classmethod
    def left_over(cls, directory: Path) -> Iterator[Journal]:
        """Each journal that no live process holds; closed when the next one is asked for. Damaged
        ones are set aside."""
        for path in sorted(directory.glob("*.jsonl")):
            with path.open("a+", encoding="utf-8") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                if not path.exists():  # another process has sent it meanwhile
                    continue
                try:
                    journal = cls(path, stream)
                    stream.seek(0)
                    # A line without an end was being written when the process died.
                    journal.events = [json.loads(line) for line in stream if line.endswith("\n")]
                except ValueError as error:
                    aside = path.with_suffix(".damaged")
                    path.replace(aside)
                    warn(
                        f"what a run has not sent to MLflow cannot be read ({error}); it is now in"
                        f" {aside}"
                    )
                    continue
                yield journal

    def append(self, event: Event) -> None:
        # Names of files may contain bytes that are not UTF-8; databases refuse them.
        text = (
            json.dumps(mask_values(event), ensure_ascii=False)
            .encode("utf-8", "replace")
            .decode("utf-8")
        )
        with self._appending:
            if self.has_ended:  # a sample of the machine that came too late
                return
            self._stream.write(printable(text) + "\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self.events.append(json.loads(text))

    @property
    def has_ended(self) -> bool:
        return bool(self.events) and self.events[-1]["kind"] == "end"

    def open_stages(self) -> dict[str, Event]:
        """{stage: its `started` event} of those that have not ended."""
        found = {event["stage"]: event for event in self.events if event["kind"] == "started"}
        ended = {event["stage"] for event in self.events if event["kind"] in ("stage", "failure")}
        return {stage: event for stage, event in found.items() if stage not in ended}

    def keep(self) -> None:
        """Remember what has been sent."""
        write_json(
            self._sent_file,
            {"num_sent": self.num_sent, "runs": self.runs, "steps": self.steps},
        )

    def close(self) -> None:
        self._stream.close()

    def remove(self) -> None:
        """Everything has been sent."""
        self._path.unlink(missing_ok=True)
        self._sent_file.unlink(missing_ok=True)
        self.close()
