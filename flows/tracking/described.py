"""Describes a run for people who look at many: a name, tags of origin, the settings that matter.

A run is named after what its user typed, a point of a sweep after what distinguishes it from the
other points. MLflow compares the first three parameters that differ, so a point has those of the
sweep, and none that only follow from them: `model=small` stands for its ten dimensions, which are
on the MLflow run of the stage and in `config/resolved.yaml`.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flows.tracking.mlflow_names import leaves, params
from llm_core.secrets import mask_secrets, mask_values
from tasks.runtime.code import ROOT

SWEEP_VARIABLE = "TEXTMILL_SWEEP"
"""Environment variable that holds, as JSON, the `PointOfSweep` that a process runs."""

NOT_NAMED = (
    *("store", "state", "tracking", "orchestrator", "runner", "runner_address", "num_workers"),
    *("force", "start", "only", "sweep"),
)
"""Where and how a run works, which changes nothing of its results."""

MAIN = (
    *("model.dim", "model.num_layers", "optim.kind", "optim.lr", "train.num_steps"),
    *("train.seq_len", "train.global_batch_sequences", "train.dtype", "train.seed"),
    *("tokenizer.kind", "tokenizer.vocab_size", "dedup.method", "source.name"),
)
"""Settings that every run has as parameters, whether or not they are the defaults."""


@dataclass(frozen=True)
class PointOfSweep:
    """What the run of one point knows of its sweep."""

    sweep_id: str
    name: str
    """What distinguishes the point: `optim.lr=1e-3 model=small`."""
    swept: Mapping[str, str] = field(default_factory=dict)
    """{setting or group: value or choice of this point}."""
    dependent: Sequence[str] = ()
    """Settings that differ among the points because of choices."""
    study: str | None = None
    """Folder of the search that judges the point while it trains."""
    number: int = 0
    """Of the point in that search."""

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_environment(cls) -> PointOfSweep | None:
        text = os.environ.get(SWEEP_VARIABLE)
        return cls(**json.loads(text)) if text else None


def describe_points(
    sweep_id: str, points: Sequence[Sequence[str]], resolved: Sequence[Mapping[str, Any]]
) -> list[PointOfSweep]:
    """The points of a sweep. resolved: the whole configuration of each."""
    given = [dict(_split(override) for override in point) for point in points]
    names = list(dict.fromkeys(name for each in given for name in each))
    swept = [name for name in names if len({each.get(name) for each in given}) > 1]
    flat = [dict(leaves(config)) for config in resolved]
    paths = list(dict.fromkeys(path for each in flat for path in each))
    differing = [p for p in paths if any(each.get(p) != flat[0].get(p) for each in flat[1:])]
    dependent = [name for name in map(".".join, differing) if name not in swept]
    return [
        PointOfSweep(
            sweep_id,
            " ".join(f"{name}={each[name]}" for name in swept if name in each) or f"run {number}",
            {name: each[name] for name in swept if name in each},
            dependent,
        )
        for number, each in enumerate(given, 1)
    ]


def name_of_sweep(flow: str, points: Sequence[PointOfSweep]) -> str:
    """`train sweep optim.lr=1e-3,3e-3`."""
    values: dict[str, list[str]] = {}
    for point in points:
        for name, value in point.swept.items():
            values.setdefault(name, []).append(value)
    swept = (f"{name}={','.join(dict.fromkeys(given))}" for name, given in values.items())
    return " ".join([flow, "sweep", *swept])


def name_of_run(flow: str, run_id: str, overrides: Sequence[str]) -> str:
    """The flow and what was typed, `pipeline run=demo optim.lr=2e-3`; its id where nothing was."""
    named = [
        mask_secrets(override.lstrip("+"))
        for override in overrides
        if _split(override)[0].split(".")[0] not in NOT_NAMED
    ]
    return " ".join([flow, *(named or [run_id])])


def main_settings(
    resolved: Mapping[str, Any], defaults: Mapping[str, Any], point: PointOfSweep | None
) -> dict[str, str]:
    """{parameter: value} of what was swept, of the main settings, and of what differs
    from its default."""
    values, usual = params(mask_values(resolved)), params(defaults)
    swept = dict(point.swept) if point else {}
    left_out = set(point.dependent) if point else set()
    chosen = {
        name: value
        for name, value in values.items()
        if name.split(".")[0] not in NOT_NAMED
        and name not in left_out
        and (name in MAIN or name in swept or value != usual.get(name))
    }
    # The value of a setting as it was understood, the name of a choice as it was typed.
    return swept | {name: chosen[name] for name in MAIN if name in chosen} | chosen


def tags_of_origin(flow: str) -> dict[str, str]:
    """Who ran what, from which code, under the names that MLflow shows."""
    return {
        "mlflow.source.name": f"textmill {flow}",
        # What Prefect's worker runs has no terminal that somebody sits at.
        "mlflow.source.type": "JOB" if os.environ.get("PREFECT__FLOW_RUN_ID") else "LOCAL",
        **_user(),
        **_git_tags(),
    }


def _user() -> dict[str, str]:
    try:
        return {"mlflow.user": getpass.getuser()}
    except (KeyError, OSError):  # a container whose user id has no name
        return {}


def _git_tags() -> dict[str, str]:
    """The commit of this code, where it is a clone."""
    # An installed package may lie in a clone of something else.
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return {}
    options = ("--always", "--dirty", "--abbrev=40", "--exclude=*")
    command = ["git", "-C", str(ROOT), "describe", *options]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    commit, _, dirty = shown.stdout.strip().partition("-")
    if not commit:
        return {}
    return {"mlflow.source.git.commit": commit, "git.dirty": str(bool(dirty)).lower()}


def _split(override: str) -> tuple[str, str]:
    name, _, value = override.partition("=")
    return name.strip("+"), value
