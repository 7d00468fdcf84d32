"""Make one artifact: hold its key, look once more, run the stage, publish. The same for every
orchestrator.

What the plan found in the store is taken from there without holding its key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError
from llm_core.process import return_free_memory
from tasks.runtime.artifact import Artifact, ArtifactMismatch, load_artifact
from tasks.runtime.graph import STAGES
from tasks.runtime.inputs import InputDigests
from tasks.runtime.parts import PartRunner
from tasks.runtime.plan import Step
from tasks.runtime.soundness import damage
from tasks.runtime.stage import StageFailure, StageInterrupted
from tasks.runtime.store import Node, Store, now

DISK_FACTOR = 2
"""Free bytes that a stage needs per byte of its parents."""
LEAST_FREE_BYTES = 50_000_000


def make_artifact(
    store: Store,
    step: Step,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    say: Callable[[str], None],
    begun: Callable[[Path], None] = lambda out_dir: None,
) -> tuple[Artifact, bool]:
    """The artifact of a step, and whether this call made it: another run may have, meanwhile.
    begun: told the folder in which the stage works, once this call is sure to make it.

    Raises StageFailure where the stage has nothing to give, or does not accept what it gave.
    """
    stage, node = STAGES[step.node.stage], step.node
    built = False
    artifact = None if step.runs else store.find(node.stage, node.key)
    if artifact is not None:
        store.share(artifact)
    else:
        with store.hold(node, say) as out_dir:
            # Looked up once more: another run may have held the key and made it.
            artifact = None if step.again else store.find(node.stage, node.key)
            if artifact is None:
                before = _recorded_digests(store, node) if step.is_damaged else {}
                begun(out_dir)
                artifact, built = _build(store, node, parents, config, runner, out_dir), True
                # Measurements differ from run to run; all other stages give the same bytes again.
                if not stage.measured and (file := _first_difference(before, artifact)):
                    say(
                        f"{node.stage} {node.key}: the rebuilt {file} is not what it was before"
                        " the damage; results made from the old one are kept, rebuild them with"
                        " force"
                    )
    stage.require_acceptable(artifact, config)
    return artifact, built


def _build(
    store: Store,
    node: Node,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    out_dir: Path,
) -> Artifact:
    stage = STAGES[node.stage]
    if lost := [name for name in stage.parents if name not in parents]:
        raise StageFailure(
            f"{node.stage}: {', '.join(lost)} or its own artifact disappeared since the run began;"
            " run again"
        )
    parent_bytes = sum(f["size"] for p in parents.values() for f in p.record["files"])
    store.require_free_disk(stage.name, DISK_FACTOR * parent_bytes + LEAST_FREE_BYTES)
    started_at, wall, cpu = now(), time.perf_counter(), time.process_time()
    parts = replace(runner, parts_dir=store.parts_dir(node), used=set())
    try:
        own_bytes = sum(path.stat().st_size for path in node.input_files.values())
        made = stage.run(parents, out_dir, config, parts)
        return_free_memory()
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
    elapsed_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    used, input_bytes = sorted(parts.used), parent_bytes + own_bytes
    return store.publish(node, made, elapsed_s, cpu_s, started_at, used, input_bytes)


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
    """Raise StageFailure where a parent was damaged after the plan had looked at it."""
    for name, parent in parents.items():
        if found := next(damage(parent.path, parent.record["files"]), None):
            raise StageFailure(
                f"{node.stage}: {name} {parent.key} is damaged: {found}; run again to rebuild it"
            ) from error


def _require_unchanged(store: Store, node: Node) -> None:
    """Raise StageFailure where inputs changed: a key must never name what other inputs gave."""
    found = InputDigests(store.digests_file).of(node.input_files)
    if changed := [
        name for name, content in found.items() if content != node.identity["inputs"][name]
    ]:
        others = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise StageFailure(
            f"{node.stage}: {changed[0]}{others} changed since the run began; run again. Results"
            " for unchanged files are kept"
        )
