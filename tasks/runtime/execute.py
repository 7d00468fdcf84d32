"""Make one artifact: hold its key, look once more, run the stage, publish. The same for every
orchestrator.

What the plan found in the store is taken from there without holding its key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact, ArtifactMismatch, load_artifact
from tasks.runtime.graph import STAGES
from tasks.runtime.inputs import InputDigests
from tasks.runtime.parts import PartRunner
from tasks.runtime.plan import Step
from tasks.runtime.soundness import damage
from tasks.runtime.stage import StageFailure, StageInterrupted, run_stage
from tasks.runtime.store import Node, Store, now


def make_artifact(
    store: Store,
    step: Step,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    say: Callable[[str], None],
) -> tuple[Artifact, bool]:
    """The artifact of a step, and whether this call made it (another run may have, while we
    waited).

    Raises StageFailure where the stage has nothing to give, or does not accept what it gave.
    """
    found = _find_or_make(store, step, parents, config, runner, say)
    STAGES[step.node.stage].require_acceptable(found[0], config)
    return found


def _find_or_make(
    store: Store,
    step: Step,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    say: Callable[[str], None],
) -> tuple[Artifact, bool]:
    stage, node = STAGES[step.node.stage], step.node
    if not step.runs and (found := store.find(node.stage, node.key)):
        return found, False
    with store.hold(node, say) as out_dir:
        if not step.again and (found := store.find(node.stage, node.key)):
            return found, False
        if lost := [name for name in stage.parents if name not in parents]:
            raise StageFailure(
                f"{node.stage}: {', '.join(lost)} or its own artifact disappeared since the run"
                " began; run again"
            )
        before = _recorded_digests(store, node) if step.is_damaged else {}
        parent_bytes = sum(f["size"] for p in parents.values() for f in p.record["files"])
        store.require_free_disk(stage.name, int(stage.disk_factor * parent_bytes) + 50_000_000)
        started_at, wall, cpu = now(), time.perf_counter(), time.process_time()
        parts = replace(runner, parts_dir=store.parts_dir(node))
        try:
            made = run_stage(stage, parents, out_dir, config, parts)
            _require_unchanged(store, node)
        except FileNotFoundError as error:
            if str(error.filename) not in map(str, node.input_files.values()):
                raise
            raise StageFailure(
                f"{node.stage}: {error.filename} was removed since the run began; run again"
            ) from error
        except (StageFailure, StageInterrupted, ConfigError):
            raise
        except Exception as error:
            _blame_parents(store, node, parents, error)
            raise
        artifact = store.publish(
            node, made, time.perf_counter() - wall, time.process_time() - cpu, started_at
        )
        if not stage.measured and (other := _first_difference(before, artifact)):
            kept = "results made from the lost one are kept; rebuild them with force"
            say(f"{node.stage} {node.key}: {other} is not the bytes it was; {kept}")
        return artifact, True


def _recorded_digests(store: Store, node: Node) -> dict[str, str]:
    """What the files of an artifact should be, as far as its record can be read."""
    with contextlib.suppress(ArtifactMismatch):
        if artifact := load_artifact(store.path(node.stage, node.key)):
            return {file["path"]: file["digest"] for file in artifact.record["files"]}
    return {}


def _first_difference(before: Mapping[str, str], rebuilt: Artifact) -> str | None:
    after = {file["path"]: file["digest"] for file in rebuilt.record["files"]}
    return next((name for name in sorted(before) if before[name] != after.get(name)), None)


def _blame_parents(
    store: Store, node: Node, parents: Mapping[str, Artifact], error: Exception
) -> None:
    """Raise StageFailure where what a stage broke on is an artifact that was damaged after the plan
    looked at it."""
    for name, parent in parents.items():
        if found := next(damage(parent.path, parent.record["files"]), None):
            raise StageFailure(
                f"{node.stage}: {name} {parent.key} is damaged: {found}; run again, it is rebuilt"
            ) from error


def _require_unchanged(store: Store, node: Node) -> None:
    """Raise StageFailure where inputs are no longer what the key says: a key must never name what
    was made of something else."""
    found = InputDigests(store.digests_file).of(node.input_files)
    if changed := [
        name for name, content in found.items() if content != node.identity["inputs"][name]
    ]:
        others = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise StageFailure(
            f"{node.stage}: {changed[0]}{others} changed since the run began; run again, results"
            " for unchanged files are kept"
        )
