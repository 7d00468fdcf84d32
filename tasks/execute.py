"""Make one artifact: hold its key, look once more, run the stage, publish. The same for every orchestrator.

What the plan found in the store is taken from there without holding its key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tasks.artifact import Artifact
from tasks.graph import STAGES
from tasks.inputs import InputDigests
from tasks.parts import PartRunner
from tasks.plan import Step
from tasks.stage import StageFailure, run_stage
from tasks.store import Node, Store, now


def make_artifact(
    store: Store,
    step: Step,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    say: Callable[[str], None],
) -> tuple[Artifact, bool]:
    """The artifact of a step, and whether this call made it (another run may have, while we waited).

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
        if step.why != "forced" and (found := store.find(node.stage, node.key)):
            return found, False
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
            raise StageFailure(f"{node.stage}: {error.filename} was taken away since the run began; run again") from error
        return store.publish(node, made, time.perf_counter() - wall, time.process_time() - cpu, started_at), True


def _require_unchanged(store: Store, node: Node) -> None:
    """Raise StageFailure where inputs are no longer what the key says: a key must never name what was made of something else."""
    found = InputDigests(store.digests_file).of(node.input_files)
    if changed := [name for name, content in found.items() if content != node.identity["inputs"][name]]:
        others = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise StageFailure(
            f"{node.stage}: {changed[0]}{others} changed since the run began; run again, what comes of unchanged files is kept"
        )
