"""Reads every byte of the artifacts and parts in a store, names each damaged file, and repairs what
can be repaired.

A run checks only what it uses. This checks everything, for example after a disk fault or a copy of
the store to another place. Exit code 1 means that damage is left.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from flows.commands.command import command
from flows.compose import RunConfig, compose
from flows.console import say, table
from flows.records import KEY, require_marked, require_store
from flows.run import decide, open_run
from llm_core.locks import lock_if_free
from llm_core.printing import show
from tasks.runtime.artifact import (
    ARTIFACT_FILE,
    ArtifactMismatch,
    DamagedRecord,
    load_artifact,
    read_sealed,
)
from tasks.runtime.graph import STAGES
from tasks.runtime.parts import PART_FILE
from tasks.runtime.plan import Plan
from tasks.runtime.shared.store import SharedStore
from tasks.runtime.soundness import Files, damage
from tasks.runtime.store import Store

SAYS_NO_RUN = {
    "store",
    "shared",
    "state",
    "tracking",
    "orchestrator",
    "runner",
    "runner_address",
    "num_workers",
    "start",
    "only",
    "force",
}
"""Overrides that say where and how a run works, not what it makes."""


@dataclass(frozen=True)
class Damaged:
    """An artifact or part that is not what its record says."""

    kind: str
    """artifact, part, or shared: an artifact in the bucket of a shared store."""
    stage: str
    key: str
    path: str
    wrong: Sequence[str]
    """A phrase for each file."""


@dataclass
class Seen:
    """What was looked at."""

    artifacts: int = 0
    parts: int = 0
    bytes: int = 0

    def count(self, files: Files) -> None:
        self.bytes += sum(file["size"] for file in files)


REPAIR = click.Option(["--repair"], is_flag=True, help="Rebuild what the overrides name.")


@command(options=[REPAIR])
def verify(words: Sequence[str], repair: bool) -> int:
    """Check the whole store; with --repair rebuild what the configuration names, and set the rest
    aside."""
    config, started, seen = compose(words), time.perf_counter(), Seen()
    store = config.open_store()
    require_store(store)
    if repair:
        require_marked(store)
    damaged = [*_damaged_artifacts(store, seen), *_damaged_parts(store, seen)]
    damaged += _damaged_there(store) if isinstance(store, SharedStore) else ()
    elapsed_s = time.perf_counter() - started
    if damaged:
        show(
            table(
                ("kind", "stage", "key", "what is wrong"),
                [[d.kind, d.stage, d.key, w] for d in damaged for w in d.wrong],
            )
            + "\n"
        )
    left = _repair(store, config, words, damaged) if repair else damaged
    way_out = "; runs that use them rebuild them, --repair does now" if left else ""
    show(
        f"{seen.artifacts:,} artifacts and {seen.parts:,} parts, {seen.bytes / 1e6:,.1f} MB:"
        f" {len(damaged)} damaged{way_out}"
    )
    show(
        json.dumps(
            asdict(seen)
            | {
                "elapsed_s": round(elapsed_s, 3),
                "damaged": [asdict(d) for d in damaged],
                "left": len(left),
            }
        )
    )
    return 1 if left else 0


def _damaged_artifacts(store: Store, seen: Seen) -> Iterator[Damaged]:
    for path in _keys(store.root, "*"):
        stage, key = path.parent.name, path.name
        seen.artifacts += 1
        try:
            artifact = load_artifact(path)
            wrong = store.check(artifact) if artifact else [f"{ARTIFACT_FILE} is gone"]
            seen.count(artifact.record["files"] if artifact else [])
        except ArtifactMismatch as error:
            wrong = [str(error)]
        if wrong:
            yield Damaged("artifact", stage, key, str(path), wrong)


def _damaged_parts(store: Store, seen: Seen) -> Iterator[Damaged]:
    for path in _keys(store.root / ".parts", "*/[!.]*"):
        seen.parts += 1
        try:
            files = read_sealed(path / PART_FILE)["files"]
            wrong = list(damage(path, files))
            seen.count(files)
        except FileNotFoundError:
            wrong = [f"{PART_FILE} is gone"]
        except (DamagedRecord, KeyError, TypeError) as error:
            wrong = [f"{PART_FILE} cannot be read ({error})"]
        if wrong:
            yield Damaged("part", path.parent.parent.name, path.name, str(path), wrong)


def _damaged_there(store: SharedStore) -> Iterator[Damaged]:
    for stage, key in sorted(store.keys_there()):
        if stage in STAGES and KEY.fullmatch(key) and (wrong := store.check_there(stage, key)):
            yield Damaged("shared", stage, key, f"{store.bucket.url}/{stage}/{key}", wrong)


def _keys(root: Path, pattern: str) -> list[Path]:
    """Folders named by a key below those of stages, by a pattern that begins with the key; others
    are not the store's."""
    found = (path for stage in STAGES for path in (root / stage).glob(pattern))
    return sorted(
        path for path in found if KEY.fullmatch(path.relative_to(root).parts[1]) and path.is_dir()
    )


def _repair(
    store: Store, config: RunConfig, overrides: Sequence[str], damaged: Sequence[Damaged]
) -> list[Damaged]:
    """Rebuild artifacts that the configuration names, set others aside, remove parts; what could
    not be repaired."""
    parts, artifacts, shared = (
        [d for d in damaged if d.kind == kind] for kind in ("part", "artifact", "shared")
    )
    left = [part for part in parts if not _remove_part(store, part)]
    if isinstance(store, SharedStore):  # the next run rebuilds it, or sends what is here
        left += [d for d in shared if not store.remove_there(d.stage, d.key)]
    named = _named(config, overrides) if artifacts else {}
    others = [d for d in artifacts if named.get(d.stage) != d.key]
    left += [other for other in others if not _set_aside(store, other)]
    ours = {d.stage for d in artifacts if named.get(d.stage) == d.key}
    if (
        any(STAGES[stage].measured for stage in ours)
        and Path(store.path("report", named["report"])).exists()
    ):
        ours.add("report")
    # From the last: a plan rebuilds what is damaged on the way to its target.
    for stage in (stage for stage in reversed(STAGES) if stage in ours):
        if stage == "report" or store.damage(stage, named[stage]):
            _rebuild(stage, config, overrides)
    return left + [
        d for d in artifacts if named.get(d.stage) == d.key and store.damage(d.stage, d.key)
    ]


def _remove_part(store: Store, part: Damaged) -> bool:
    """Remove a part, unless its stage is at work, which shares the lock of its folder; whether that
    was possible."""
    path = Path(part.path)
    lock = store.parts_lock_file(part.stage, path.parent.name)
    with lock_if_free(lock) as free:
        if not free:
            _tell_busy(f"part {part.key} of {part.stage}", part.stage, "another run")
            return False
        # First one rename, to a name that `gc` knows, so that nobody finds half a part.
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        with suppress(FileNotFoundError):  # removed meanwhile
            os.rename(path, aside)
            shutil.rmtree(aside)
    say(f"part {part.key} of {part.stage}: removed; rebuilt when it is needed")
    return True


def _set_aside(store: Store, artifact: Damaged) -> bool:
    """Move an artifact out of the way, unless its key is being made; whether that was possible."""
    stage, key = artifact.stage, artifact.key
    with store.try_hold(stage, key) as holder:
        if holder:
            _tell_busy(f"{stage} {key}", "it", holder)
            return False
        here = store.damage_of(store.path(stage, key), check_digests=True)
        if here in (None, "missing"):
            say(f"{stage} {key}: rebuilt or removed by another run meanwhile")
            return True
        aside = store.set_aside(stage, key)
    say(f"{stage} {key}: set aside as {aside}; a run that needs it rebuilds it")
    return True


def _tell_busy(what: str, busy: str, holder: str) -> None:
    say(f"{what}: left as it is, {busy} is being made by {holder}; repair again when that ends")


def _named(config: RunConfig, overrides: Sequence[str]) -> dict[str, str]:
    """{stage: key} of the configuration, where the overrides describe a run rather than a place
    alone."""
    if all(
        override.lstrip("+").split("=")[0].split(".")[0] in SAYS_NO_RUN for override in overrides
    ):
        return {}
    plan: Plan = decide(replace(config, start=None, only=None, force=()), "report")[1]
    return {step.node.stage: step.node.key for step in plan.steps}


def _rebuild(stage: str, config: RunConfig, overrides: Sequence[str]) -> None:
    from flows.stages import stages
    from tasks.runtime.execute import make_artifact

    config = replace(
        config, start=None, only=None, force=(), tracking=replace(config.tracking, enabled=False)
    )
    with open_run("verify", stage, config, overrides, make_artifact) as run:
        stages(run)
