"""Keeps which processes work on runs: one file per run in `<state>/live`, removed when it ends.

A file that is left over names a run whose process has died, where it was, and the flow run that a
Prefect server still takes for alive (`flows.services.dead_runs`). `textmill status` reads the rest:
it needs no server.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.conf_files import PLACES
from flows.console import warn
from flows.notifications.config import without_notify
from flows.services.processes import may_be_alive, own_identity
from llm_core.durable import write_durably
from llm_core.json_files import UnreadableJson, read_json
from llm_core.printing import shortened
from llm_core.secrets import mask_secrets
from tasks.runtime.store import now

if TYPE_CHECKING:
    from flows.run_config import RunConfig

MAX_NAME_CHARS = 120
SAVE_EVERY_S = 2.0
"""How often the file is written while parts finish."""


@dataclass
class LiveRun:
    """What a process says of the run it works on."""

    file: Path
    flow: str
    overrides: list[str]
    """As they may be shown."""
    store: str
    process: dict[str, Any]
    started_at: str
    server: str | None = None
    """API of the Prefect server that has the flow run; `local` for the one of this state."""
    flow_run_id: str | None = None
    tracking: dict[str, str | None] | None = None
    """`experiment` and `uri` in MLflow, and the `state` folder with what is unsent; None where the
    run is not tracked, or the address holds a secret."""
    run_id: str | None = None
    """Of its record in the store, once there is one."""
    stage: str | None = None
    key: str | None = None
    stage_started_at: str | None = None
    parts: list[int] | None = None
    """Parts of the stage: finished, and all."""
    _saved_at: float = 0.0
    _has_warned: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended, on this host."""
        return not may_be_alive(self.process)

    @property
    def name(self) -> str:
        return run_name(self.flow, self.overrides)

    def note_flow_run(self, server: str, flow_run_id: str) -> None:
        self.server, self.flow_run_id = server, flow_run_id
        self.save(durable=True)

    def note_record(self, run_id: str) -> None:
        self.run_id = run_id
        self.save(durable=True)

    def note_stage(self, stage: str, key: str) -> None:
        self.stage, self.key, self.stage_started_at, self.parts = stage, key, now(), None
        self._update()

    def note_parts(self, finished: int, total: int) -> None:
        self.parts = [finished, total]
        if time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self._update()

    def _update(self) -> None:
        """`save` what is only shown: a full disk costs one warning, and not the run."""
        try:
            self.save()
        except OSError as error:
            if not self._has_warned:
                warn(
                    f"{self.file.parent} cannot be written ({error}); status shows less of this run"
                )
            self._has_warned = True

    def save(self, durable: bool = False) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name in _STORED}
        write_durably(self.file, json.dumps(values, sort_keys=True) + "\n", synced=durable)
        self._saved_at = time.monotonic()


_STORED = {f.name for f in fields(LiveRun)} - {"file", "_saved_at", "_has_warned"}


@contextmanager
def announced(
    flow: str, overrides: Sequence[str], config: RunConfig, state: Path | None = None
) -> Iterator[LiveRun]:
    """Say that this process works on a run, for as long as the block runs.

    state: folder of those who look for it, where that is another than the run's.
    """
    folder = live_dir(state or config.state)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    uri, experiment = config.tracking.uri, config.tracking.experiment
    told = config.tracking.enabled and mask_secrets(uri or "") == (uri or "")
    run = LiveRun(
        folder / f"{uuid.uuid4().hex}.json",
        flow,
        [mask_secrets(override) for override in without_notify(overrides)],
        str(config.store.resolve()),
        own_identity(),
        now(),
        tracking={"experiment": experiment, "uri": uri, "state": str(config.state.resolve())}
        if told
        else None,
    )
    run.save(durable=True)
    try:
        yield run
    finally:
        run.file.unlink(missing_ok=True)


def live_dir(state: Path) -> Path:
    return state.resolve() / "live"


def read_live(state: Path) -> list[LiveRun]:
    """Every run that has been announced and has not said that it ended, oldest first; those of
    processes that have died among them. Of an announcement by another version, the known fields are
    read."""
    found = []
    for file in live_dir(state).glob("*.json"):
        try:
            values = read_json(file)
            known = {name: values[name] for name in _STORED & values.keys()}
            found.append(LiveRun(file, **known))
        except FileNotFoundError:  # it ended meanwhile
            continue
        except UnreadableJson:
            # A power cut may leave a file without content; what it named is found by the server.
            file.unlink(missing_ok=True)
        except (AttributeError, TypeError):  # of a version that names a run otherwise
            continue
    return sorted(found, key=lambda run: run.started_at)


def run_name(flow: str, overrides: Sequence[str]) -> str:
    """What a run is called in lists: its flow and overrides, without places, secrets and whom it
    tells."""
    kept = without_notify(overrides)
    said = [o for o in kept if o.lstrip("+").partition("=")[0] not in PLACES]
    words = " ".join([flow, *map(mask_secrets, said)])
    return shortened(words, MAX_NAME_CHARS)
