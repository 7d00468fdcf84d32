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
from tasks.parts import PartRunner
from tasks.plan import Step
from tasks.stage import run_stage
from tasks.store import Store, now


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
        made = run_stage(stage, parents, out_dir, config, parts)
        return store.publish(node, made, time.perf_counter() - wall, time.process_time() - cpu, started_at), True
