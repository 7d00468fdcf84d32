"""Decides which stages would run, and why: a walk backwards from the target over keys alone.

Keys are functions of configs, code, inputs and parent keys, never of results, so the whole plan is
known before anything runs, and an intermediate artifact that was deleted is rebuilt only if
something needs it. A damaged one is rebuilt in any case. The bytes of artifacts that a stage of the
plan will read are looked at; of others, whether anything wrote to them since they were last found
sound (`tasks.runtime.soundness`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from llm_core.config import ConfigError, nearest
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT, Sources, code_digest
from tasks.runtime.graph import STAGES, ancestors, descendants
from tasks.runtime.inputs import InputDigests
from tasks.runtime.keys import BUILDING, digest, explain_change, key_config, library_versions
from tasks.runtime.stage import StageConfigs
from tasks.runtime.store import Node, Store, readable_identity

INTERRUPTED = "interrupted"
"""Why a stage runs whose unfinished work is there and in nobody's hands."""


@dataclass(frozen=True)
class Step:
    """One stage of a plan. `why` is `cached` or the reason to run it; `needed` is False where
    nothing asks for it.

    `again`: it runs although its artifact is sound.
    """

    node: Node
    why: str
    needed: bool = True
    again: bool = False

    @property
    def is_damaged(self) -> bool:
        return self.why.startswith("damaged")

    @property
    def because(self) -> str:
        """Why its artifact is not there, in brackets where there is more to say than that."""
        return "" if self.why == BUILDING else f" ({self.why})"

    @property
    def runs(self) -> bool:
        return self.needed and self.why != "cached"


@dataclass(frozen=True)
class Plan:
    """Steps in run order, the target last."""

    target: str
    steps: Sequence[Step]

    def __getitem__(self, stage: str) -> Step:
        return next(step for step in self.steps if step.node.stage == stage)


def make_nodes(
    target: str,
    configs: StageConfigs,
    digests: InputDigests,
    device: str,
    pinned: Mapping[str, Artifact] = MappingProxyType({}),
) -> dict[str, Node]:
    """The key of every stage up to `target`; measured stages carry the fingerprint `device`, others
    what their config says of it.

    pinned: artifacts that stand for their stage whatever its parents are; only what follows them
    gets a new key.
    """
    nodes: dict[str, Node] = {}
    sources = Sources(ROOT)
    for name in ancestors(target):
        if kept := pinned.get(name):
            record = kept.record
            identity, config = record["identity"], record["config"]
            nodes[name] = Node(name, kept.key, record["part_key"], identity, config)
            continue
        stage = STAGES[name]
        config = key_config(configs[name])
        files = configs[name].input_files() if hasattr(configs[name], "input_files") else {}
        libraries = (*stage.libraries, *getattr(configs[name], "libraries", ()))
        own = {
            "stage": name,
            "code": code_digest(
                (stage.module, *stage.entry_points), stage.data_files, sources=sources
            ),
            "libraries": library_versions(libraries),
            "config": config,
        } | ({"device": device} if stage.measured else {})
        if hasattr(configs[name], "key_of_device"):
            own |= configs[name].key_of_device(device)
        parents = {p: nodes[p].key for p in stage.parents}
        identity = own | {"parents": parents, "inputs": digests.of(files)}
        of_parts = own | {"config": key_config(configs[name], of_parts=True)}
        nodes[name] = Node(name, digest(identity), digest(of_parts), identity, config, files)
    return nodes


def make_plan(
    store: Store,
    nodes: Mapping[str, Node],
    target: str,
    start: str | None = None,
    only: str | None = None,
    force: Collection[str] = (),
) -> Plan:
    """Decide each stage up to `target`.

    start: nothing before this stage may run; what it needs must be in the store.
    only: the same for one stage, which becomes the target.
    force: stages to rebuild although they are there; the report is rebuilt with them.
    Raises ConfigError for unknown stages and for parents that `start`/`only` leave unbuilt.
    """
    for name in filter(None, (start, only, *force)):
        if name not in STAGES:
            raise ConfigError(f"{name} is not a stage; {nearest(name, list(STAGES))}")
        if name not in nodes:
            raise ConfigError(
                f"{name} is not a step towards {target}; stages on the way: {', '.join(nodes)}"
            )
    target = only or target
    forced = set(force) | ({"report"} if force else set())
    may_run = {only} if only else descendants(start) if start else set(nodes)
    steps: dict[str, Step] = {}
    wanted = {target}
    read: set[str] = set()
    # Another measurement has the same key, so the key of what shows the lost one does not change.
    measured_anew = {
        name
        for name, node in nodes.items()
        if STAGES[name].measured and name in may_run and _is_damaged(store, node)
    }
    # Backwards, so that it is known of each stage whether one that runs needs or reads it.
    for name in reversed(ancestors(target)):
        stage, node = STAGES[name], nodes[name]
        again = name in forced
        why = "forced" if again else _why(store, node, to_be_read=name in read)
        lost = sorted(measured_anew & set(stage.parents)) if name in may_run else []
        if lost and why == "cached":
            why, again = f"after {', '.join(lost)}, measured again", True
        step = Step(node, why, name in wanted, again)
        if step.is_damaged and name in may_run:
            step = replace(step, needed=True)
        elif step.runs and name not in may_run:
            missing = f"is not in the store{step.because}"
            state = f"{node.key} is {why}" if step.is_damaged else missing
            raise ConfigError(
                f"{name} {state}, and start/only leave it out; run without them first"
            )
        steps[name] = step
        if step.runs:
            wanted |= set(stage.parents)
            read |= set() if stage.reads_records else set(stage.parents)
    return Plan(target, tuple(steps[name] for name in ancestors(target)))


def _is_damaged(store: Store, node: Node) -> bool:
    return (store.damage(node.stage, node.key) or "").startswith("damaged")


def _why(store: Store, node: Node, to_be_read: bool) -> str:
    state = store.damage(node.stage, node.key, check_digests=to_be_read)
    if state is None:
        return "cached"
    if state != "missing":
        return state
    begun = [INTERRUPTED] if store.is_interrupted(node.stage, node.key) else []
    earlier = store.artifacts(node.stage)
    if not earlier:
        return begun[0] if begun else BUILDING
    changed = explain_change(earlier[0].record["identity"], readable_identity(node))
    if changed != BUILDING and not changed.startswith("after "):
        changed += f" (against {earlier[0].key})"
    return "; ".join([*begun, changed])


def plan_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """(stage, key, why it runs or cached or not needed) for each step, to be shown."""

    def shown(step: Step) -> str:
        if step.needed:
            return step.why
        return f"{step.why}; left as it is" if step.is_damaged else "not needed"

    return [(s.node.stage, s.node.key, shown(s)) for s in plan.steps]
