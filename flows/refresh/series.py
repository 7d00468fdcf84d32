"""Finds the runs that belong together, and the tokenizer that they share.

A series is named by `refresh.series`, by `dedup.chain`, or by the names and paths of the source as
they are given, so that a source that grows stays one series. Records of runs carry the name; those
of sweeps carry none, since their points are alternatives and not nights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from flows.compose import RunConfig
from flows.records import RunRecord, read_records
from flows.refresh.config import FIRST
from flows.tracking.described import SWEEP_VARIABLE
from llm_core.config import ConfigError, key_config
from llm_core.secrets import mask_values
from tasks.ingest.remotefiles import is_remote
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import BUILDING, digest, explain_change
from tasks.runtime.plan import Plan
from tasks.runtime.store import Store


def series_of(config: RunConfig) -> str:
    """The series of a run: the name it is given, or one made of its source."""
    if named := config.refresh.series or config.dedup.chain:
        return named
    places = {
        name: [path if is_remote(path) else os.path.abspath(path) for path in one.paths]
        for name, one in config.source.inputs.items()
    }
    return f"source {digest(places)}"


def recorded_series(config: RunConfig) -> str | None:
    """What the record of a run has as its series; None for a point of a sweep."""
    return None if os.environ.get(SWEEP_VARIABLE) else series_of(config)


def completed_runs(records: Sequence[RunRecord], series: str, stage: str) -> list[RunRecord]:
    """Completed runs of a series that reached a stage, oldest first."""
    runs = [
        record
        for record in records
        if record.series == series and record.outcome == "completed" and stage in record.stages
    ]
    return sorted(runs, key=lambda record: (record.started_at, record.run_id))


def pinned_artifacts(config: RunConfig, store: Store) -> Mapping[str, Artifact]:
    """{"tokenizer": the one that `refresh.tokenizer` keeps}; empty where the run trains its own.

    Raises ConfigError where that tokenizer is gone, damaged, or of other settings.
    """
    wanted = config.refresh.tokenizer
    if wanted is None:
        return {}
    if "tokenizer" in config.force:
        raise ConfigError(
            f"refresh.tokenizer ({wanted}) keeps a tokenizer, and force rebuilds it; leave one of"
            " them out"
        )
    if wanted != FIRST:
        return {"tokenizer": _tokenizer(store, wanted, config, f"refresh.tokenizer ({wanted})")}
    for record in completed_runs(read_records(store), series_of(config), "tokenizer"):
        key = record.stages["tokenizer"]
        name = f"refresh.tokenizer (first) is tokenizer {key} of run {record.run_id}, which"
        found = _tokenizer(store, key, None, name)
        if _difference(found, config) is None:
            return {"tokenizer": found}
    return {}


def has_nothing_new(config: RunConfig, store: Store, plan: Plan) -> bool:
    """Whether the last completed run of the series stands on the very artifacts of a plan, so that
    there is nothing to make and nothing to compare."""
    chosen = config.start or config.only or config.force
    series = recorded_series(config)
    if chosen or series is None or any(step.runs for step in plan.steps):
        return False
    runs = completed_runs(read_records(store), series, plan.target)
    keys = {step.node.stage: step.node.key for step in plan.steps}
    return bool(runs) and runs[-1].stages == keys


def require_kept(plan: Plan, pinned: Mapping[str, Artifact]) -> None:
    """Raise ConfigError where a plan would rebuild what is pinned, which other documents cannot
    give again."""
    for step in plan.steps:
        if step.node.stage in pinned and step.runs:
            raise ConfigError(
                f"{step.node.stage} {step.node.key} is kept by refresh.tokenizer and is {step.why};"
                " name another one, or begin anew with refresh.tokenizer=null"
            )


def _tokenizer(store: Store, key: str, config: RunConfig | None, what: str) -> Artifact:
    found = store.find("tokenizer", key)
    if found is None:
        raise ConfigError(
            f"{what} is {store.damage('tokenizer', key)} in {store.root}; name the key of another"
            " tokenizer there, or begin anew with refresh.tokenizer=null"
        )
    if config is not None and (difference := _difference(found, config)):
        raise ConfigError(
            f"{what} was made with other settings ({difference}); give the settings it was made"
            " with, or leave refresh.tokenizer out"
        )
    return found


def _difference(tokenizer: Artifact, config: RunConfig) -> str | None:
    """The first settings in which a tokenizer differs from a configuration."""
    wanted = mask_values(key_config(config.tokenizer))
    change = explain_change({"config": tokenizer.config}, {"config": wanted})
    return None if change == BUILDING else change
