"""Which run used which artifacts: one JSON file per run in `<store>/.runs`, and what no recent run needs.

A record is written when a run has its plan and again when it ends, so a run in progress protects what it
will read. `unused` answers what may be deleted; it never looks at access times.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flows.processes import is_running, start_time
from tasks.artifact import ArtifactMismatch, write_json
from tasks.inputs import InputDigests
from tasks.plan import Plan
from tasks.store import Store, now

RECENT_S = 3600.0
"""Age from which a fetched file that no run refers to is one that nobody is about to use."""


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
    """running, completed, failed or interrupted."""
    finished_at: str | None = None
    error: str | None = None
    mlflow_run_id: str | None = None
    process: dict[str, Any] = field(default_factory=dict)
    chain: dict[str, str] | None = None
    """`name` of the chain this run is of, and digest of its `inputs`."""

    def is_alive(self) -> bool:
        """Whether the run may still be going on; one on another host cannot be asked."""
        if self.outcome != "running":
            return False
        return self.process.get("host") != platform.node() or is_running(self.process["pid"], self.process["started"])


def new_record(flow: str, plan: Plan, overrides: Sequence[str], chain: dict[str, str] | None = None) -> RunRecord:
    started_at = now()
    run_id = f"{started_at[:10].replace('-', '')}-{started_at[11:19].replace(':', '')}-{uuid.uuid4().hex[:6]}"
    return RunRecord(
        run_id,
        flow,
        plan.target,
        list(overrides),
        started_at,
        stages={step.node.stage: step.node.key for step in plan.steps},
        parts={step.node.stage: step.node.part_key for step in plan.steps},
        process={"host": platform.node(), "pid": os.getpid(), "started": start_time(os.getpid())},
        chain=chain,
    )


def runs_dir(store: Store) -> Path:
    """Where the records of runs are."""
    return store.root / ".runs"


def write_record(store: Store, record: RunRecord) -> Path:
    directory = runs_dir(store)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record.run_id}.json"
    write_json(path, asdict(record))
    return path


def read_records(store: Store) -> list[RunRecord]:
    """Newest first. A record that cannot be read is an error: what it protected is unknown."""
    records = []
    for path in runs_dir(store).glob("*.json"):
        try:
            records.append(RunRecord(**json.loads(path.read_text("utf-8"))))
        except (ValueError, TypeError) as error:
            raise ArtifactMismatch(f"{path} is not a readable run record ({error}); delete it to go on without it") from error
    return sorted(records, key=lambda r: (r.started_at, r.run_id), reverse=True)


def chain_places(records: Sequence[RunRecord], name: str) -> dict[str, RunRecord]:
    """{digest of an input: its last completed run} of a chain, in the order in which inputs came to it."""
    places = {}
    for record in sorted(records, key=lambda r: (r.started_at, r.run_id)):
        if record.chain and record.chain["name"] == name and record.outcome == "completed" and "dedup" in record.stages:
            places[record.chain["inputs"]] = record  # a key keeps the place it was first given
    return places


def chain_ends(records: Sequence[RunRecord], name: str) -> list[str]:
    """Keys of the dedup artifacts that the next run of a chain goes on from: with new input the last, with the last one's the one
    before it."""
    return [record.stages["dedup"] for record in list(chain_places(records, name).values())[-2:]]


@dataclass(frozen=True)
class Unused:
    """Something in the store that no recent run refers to."""

    kind: str
    """artifact, parts, work, or remote: a file that was fetched from elsewhere."""
    path: Path
    size_bytes: int
    lock_file: Path | None


def unused(store: Store, keep: int) -> list[Unused]:
    """What neither the last `keep` runs nor a live one refers to, nor the next run of a chain will, largest first. Held keys are
    left out.

    With `keep` above 0 nor what the last completed run with any stage refers to: nightly refreshes, however many, leave the
    last trained model.
    """
    records = read_records(store)
    kept = [r for i, r in enumerate(records) if i < keep or r.is_alive()]
    if keep:
        last: dict[str, RunRecord] = {}
        for record in records:
            if record.outcome == "completed":
                last = dict.fromkeys(record.stages, record) | last
        kept += last.values()
    keys = {(stage, key) for r in kept for stage, key in r.stages.items()}
    keys |= {("dedup", key) for name in {r.chain["name"] for r in records if r.chain} for key in chain_ends(records, name)}
    part_keys = {(stage, key) for r in kept for stage, key in r.parts.items()}
    found = []
    for kind, root, known in (
        ("artifact", store.root, keys),
        ("parts", store.root / ".parts", part_keys),
        ("work", store.root / ".work", keys),
    ):
        for path in sorted(root.glob("[!.]*/*")) if kind == "artifact" else sorted(root.glob("*/*")):
            stage, key = path.parent.name, path.name
            if not path.is_dir() or (stage, key) in known:
                continue
            lock = None if kind == "parts" else store.work_dir(stage, key).with_name(f"{key}.lock")
            with _free(lock) as free:
                if free:
                    found.append(Unused(kind, path, _size_bytes(path), lock))
    found += _unused_remote_files(store, keys)
    for path in sorted((store.root / ".work").glob("replaced-*")):
        found.append(Unused("work", path, _size_bytes(path), None))
    return sorted(found, key=lambda u: (-u.size_bytes, str(u.path)))


def _unused_remote_files(store: Store, keys: Collection[tuple[str, str]]) -> list[Unused]:
    """Files in `<store>/.remote` that the ingest artifacts of `keys` were not made of, fetches that were not finished among them.

    A run that is fetching now has no record yet, so what was written in the last hour stays.
    """
    used: set[str] = set()
    for stage, key in keys:
        artifact = store.find(stage, key) if stage == "ingest" else None
        used |= set(artifact.record["identity"]["inputs"].values()) if artifact else set()
    digests = InputDigests(store.root / ".inputs.json")
    files = [path for path in sorted((store.root / ".remote").glob("*")) if path.is_file()]
    files = [path for path in files if time.time() - path.stat().st_mtime > RECENT_S and digests.remembered(path) not in used]
    return [Unused("remote", path, path.stat().st_size, None) for path in files]


def remove(items: Sequence[Unused]) -> int:
    """Delete `items`, except keys that somebody took hold of meanwhile; the bytes given back."""
    freed = 0
    for item in items:
        with _free(item.lock_file) as free:
            if free:
                # Out of the store by one rename, so that no reader finds half an artifact.
                trash = item.path.with_name(f".{item.path.name}.{os.getpid()}.tmp")
                os.rename(item.path, trash)
                shutil.rmtree(trash) if trash.is_dir() else trash.unlink()
                freed += item.size_bytes
    return freed


@contextmanager
def _free(lock_file: Path | None) -> Iterator[bool]:
    """Whether nobody holds the key, and nobody can while the block runs."""
    if lock_file is None or not lock_file.exists():
        yield True
        return
    with lock_file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _size_bytes(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):  # somebody else's temporary file
            total += file.lstat().st_size if not file.is_dir() else 0
    return total
