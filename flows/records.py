"""Keeps which run used which artifacts: one JSON file per run in `<store>/.runs`.

A record is written when a run has its plan and again when it ends, so a run in progress protects
what it will read. The first one marks the folder as a store, without which nothing in it is ever
removed.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.services.processes import may_be_alive, own_identity
from llm_core.config import ConfigError
from llm_core.json_files import read_json
from llm_core.secrets import mask_values
from tasks.runtime.artifact import ArtifactMismatch, write_json
from tasks.runtime.graph import STAGES
from tasks.runtime.plan import Plan
from tasks.runtime.shared.store import SharedStore
from tasks.runtime.store import MARKER_FILE, Store, now

MARKER_TEXT = (
    "This folder is a store of textmill: `textmill gc --yes` removes artifacts here that no recent"
    " run refers to.\n"
)
KEY = re.compile(r"[0-9a-f]{16}")
OWN_NAMES = re.compile(r"\.(runs|work|parts|remote)|\.{1,2}(inputs|sound)\.json(\..*)?")
"""Names that the store and its records have in the store's folder, beside stages."""


@dataclass
class RunRecord:
    """What a run was asked, which artifacts it stands on, and how it ended."""

    run_id: str
    flow: str
    target: str
    overrides: Sequence[str]
    started_at: str
    stages: dict[str, str]
    parts: dict[str, str]
    outcome: str = "running"
    """running, completed, failed, interrupted, pruned: its sweep stopped it, or died: its process
    ended unexpectedly."""
    finished_at: str | None = None
    error: str | None = None
    mlflow_run_id: str | None = None
    process: dict[str, Any] = field(default_factory=dict)
    chain: dict[str, str] | None = None
    """`name` of the chain this run is of, and digest of its `inputs`."""
    series: str | None = None
    """Name of the runs over the same source that this one is compared with."""
    sweep: str | None = None
    """Id of the sweep of which this run is a point."""

    def is_alive(self) -> bool:
        """Whether the run may still be going on; one on another host cannot be asked."""
        return self.outcome == "running" and may_be_alive(self.process)


def new_record(
    flow: str, plan: Plan, overrides: Sequence[str], chain: dict[str, str] | None = None
) -> RunRecord:
    started_at = now()
    moment = datetime.fromisoformat(started_at)
    return RunRecord(
        f"{moment:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
        flow,
        plan.target,
        list(overrides),
        started_at,
        stages={step.node.stage: step.node.key for step in plan.steps},
        parts={step.node.stage: step.node.part_key for step in plan.steps},
        process=own_identity(),
        chain=chain,
    )


def runs_dir(store: Store) -> Path:
    """Where the records of runs are."""
    return store.root / ".runs"


def mark_store(store: Store) -> None:
    """Say in a file that this folder is a store, unless it holds anything else: what is not ours
    must never count as ours."""
    marker = store.root / MARKER_FILE
    store.root.mkdir(parents=True, exist_ok=True)
    if not marker.exists() and all(map(_is_own, os.scandir(store.root))):
        marker.write_text(MARKER_TEXT, "utf-8")


def require_store(store: Store) -> None:
    """Raise ConfigError where there is no such folder; that of a shared store is made."""
    if isinstance(store, SharedStore):
        mark_store(store)
    if not store.root.is_dir():
        raise ConfigError(f"store ({store.root}) does not exist; name one with store=DIR")


def require_marked(store: Store) -> None:
    """Raise ConfigError where a folder holds something and nobody has said that it is a store."""
    if (
        store.root.is_dir()
        and any(store.root.iterdir())
        and not (store.root / MARKER_FILE).is_file()
    ):
        raise ConfigError(
            f"{store.root} has no {MARKER_FILE}, so nothing in it is removed; name a store with"
            " store=DIR, or create that file if this folder holds a store and nothing else"
        )


def _is_own(entry: os.DirEntry[str]) -> bool:
    if entry.name in STAGES and entry.is_dir(follow_symlinks=False):
        return all(KEY.fullmatch(name.lstrip(".").partition(".")[0]) for name in os.listdir(entry))
    return OWN_NAMES.fullmatch(entry.name) is not None and not entry.is_symlink()


def write_record(store: Store, record: RunRecord) -> Path:
    mark_store(store)
    directory = runs_dir(store)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record.run_id}.json"
    write_json(path, mask_values(asdict(record)))
    store.share_file(path)
    return path


def read_records(store: Store) -> list[RunRecord]:
    """Newest first. A record that cannot be read is an error: what it protected is unknown."""
    records = []
    store.receive_files(runs_dir(store))
    for path in runs_dir(store).glob("*.json"):
        try:
            records.append(RunRecord(**read_json(path)))
        except (ValueError, TypeError) as error:
            raise ArtifactMismatch(
                f"{path} is not a readable run record ({error}); delete it to continue without it"
            ) from error
    return sorted(records, key=lambda r: (r.started_at, r.run_id), reverse=True)


def chain_places(records: Sequence[RunRecord], name: str) -> dict[str, RunRecord]:
    """{digest of an input: its last completed run} of a chain, in the order in which inputs came to
    it."""
    places = {}
    for record in sorted(records, key=lambda r: (r.started_at, r.run_id)):
        if (
            record.chain
            and record.chain["name"] == name
            and record.outcome == "completed"
            and "dedup" in record.stages
        ):
            places[record.chain["inputs"]] = record  # a key keeps the place it was first given
    return places


def chain_ends(records: Sequence[RunRecord], name: str) -> list[tuple[str, str]]:
    """(stage, key) of the artifacts that the next run of a chain continues from: with new input the
    last, with the last one's the one before it."""
    ends = list(chain_places(records, name).values())[-2:]
    return [
        (stage, record.stages[stage])
        for record in ends
        for stage in ("dedup", "shards")
        if stage in record.stages
    ]
