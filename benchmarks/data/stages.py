"""Run stages up to a target outside of any flow, as a benchmark needs them: no tracker, no service,
one store."""

from __future__ import annotations

from pathlib import Path

from llm_core.fingerprint import device_fingerprint
from llm_core.printing import note
from tasks.runtime.artifact import Artifact
from tasks.runtime.execute import make_artifact
from tasks.runtime.graph import STAGES
from tasks.runtime.inputs import InputDigests
from tasks.runtime.parts import PartRunner
from tasks.runtime.plan import make_nodes, make_plan
from tasks.runtime.stage import StageConfigs
from tasks.runtime.store import Store


def make_stages(
    targets: tuple[str, ...], configs: StageConfigs, store_dir: Path, runner: PartRunner
) -> dict[str, Artifact]:
    """The artifacts of `targets` and of all they need, by stage; what the store has is not
    rebuilt."""
    store = Store(store_dir)
    digests = InputDigests(store_dir / ".inputs.json")
    made: dict[str, Artifact] = {}
    for target in targets:
        nodes = make_nodes(target, configs, digests, device_fingerprint())
        for step in make_plan(store, nodes, target).steps:
            name = step.node.stage
            if name in made:
                continue
            parents = {parent: made[parent] for parent in STAGES[name].parents}
            made[name], _ = make_artifact(store, step, parents, configs[name], runner, note)
            note(
                f"{name}: {made[name].record['cpu_s']:.1f} s of CPU in this process,"
                f" {made[name].record['elapsed_s']:.1f} s"
            )
    return made
