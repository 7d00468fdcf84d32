"""Compares finished runs: settings that differ, paired differences of quality, curves over tokens.

Differences are of bits per byte on the documents that both runs scored, resampled together
(`tasks.corpus.statistics.ratio_bootstrap`): two runs whose own intervals overlap may well differ.
Documents of one run alone are left out and counted. The first run is the one to compare with.

In: configurations of artifacts, `eval.json` and rows of evaluate, `metrics.jsonl` of train. Leaves
out: correction for the number of runs; that for the number of suites is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llm_core.json_files import read_json
from llm_core.training.metric_log import METRICS_FILE, read_rows
from tasks.corpus.statistics import ratio_bootstrap
from tasks.evaluation.suite_differences import suite_differences
from tasks.runtime.artifact import Artifact

NUM_SAMPLES = 1000
MAX_CURVE_POINTS = 200
OWN_GROUPS = {"ingest": "source", "train": None}
"""Groups of settings of stages that are not named like their stage; None: it has several."""

Artifacts = Mapping[str, Artifact]


@dataclass(frozen=True)
class Difference:
    """Bits per byte of a run minus those of the first, on the same documents."""

    value: float
    low: float | None
    high: float | None
    documents: int
    documents_of_one: int
    """Scored in one of the two runs only."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def compare_runs(runs: Sequence[Artifacts]) -> dict[str, Any]:
    """What differs between runs, as plain values; lists have an entry for each run."""
    return {
        "settings": differing_settings(runs),
        "differences": [None, *(_plain(paired_difference(runs[0], run)) for run in runs[1:])],
        "suites": [None, *(_suites(runs[0], run) for run in runs[1:])],
        "curves": [curves(run) for run in runs],
    }


def _suites(first: Artifacts, other: Artifacts) -> dict[str, Any] | None:
    if "evaluate" not in first or "evaluate" not in other:
        return None
    return suite_differences(first["evaluate"], other["evaluate"])


def differing_settings(runs: Sequence[Artifacts]) -> dict[str, list[Any]]:
    """{setting: its value in each run}, of those that are not the same everywhere; None where a
    run did not reach the stage."""
    found = [dict(_settings(run)) for run in runs]
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: [each.get(name) for each in found] for name in names}
    return {name: given for name, given in values.items() if any(v != given[0] for v in given[1:])}


def _settings(run: Artifacts) -> Iterator[tuple[str, Any]]:
    for stage, artifact in run.items():
        group = OWN_GROUPS.get(stage, stage)
        yield from _leaves(artifact.config, (group,) if group else ())


def _leaves(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


def paired_difference(first: Artifacts, other: Artifacts) -> Difference | None:
    """None where a run was not evaluated, both scored no document together, or one scored long
    documents by another policy of windows, whose figures do not compare."""
    if "evaluate" not in first or "evaluate" not in other:
        return None
    found = [read_json(run["evaluate"].file("eval.json")) for run in (first, other)]
    # Results from before there was a choice have overlapping windows.
    policies = {each.get("policy", {}).get("windows", "overlapping") for each in found}
    if len(policies) > 1:
        return None
    scored = [{row["id"]: row for row in each["documents"]} for each in found]
    # The same text: an id alone may stand for an edited one.
    shared = [
        id for id, row in scored[0].items() if scored[1].get(id, {}).get("bytes") == row["bytes"]
    ]
    if not shared:
        return None
    bits = [np.array([each[id]["bits"] for id in shared]) for each in scored]
    num_bytes = np.array([scored[0][id]["bytes"] for id in shared])
    interval = ratio_bootstrap(bits[1] - bits[0], num_bytes, NUM_SAMPLES, seed=0)
    alone = sum(len(each) - len(shared) for each in scored)
    return Difference(interval.value, interval.low, interval.high, len(shared), alone)


def _plain(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return asdict(difference) | {"is_clear": difference.is_clear}


def curves(run: Artifacts) -> dict[str, list[list[float]]]:
    """{metric: pairs of trained tokens and value}; empty lists where nothing was trained."""
    rows = read_rows(run["train"].file(METRICS_FILE)) if "train" in run else []
    tokens = {row["step"]: row["tokens"] for row in rows if "tokens" in row}
    found: dict[str, list[list[float]]] = {}
    for name in ("train_loss", "val_loss", "val_bpb"):
        points = [[tokens[r["step"]], r[name]] for r in rows if name in r and r["step"] in tokens]
        # The last one of every stride, so that the end is there.
        stride = -(-len(points) // MAX_CURVE_POINTS) or 1
        found[name] = points[::-1][::stride][::-1]
    return found
