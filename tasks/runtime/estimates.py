"""Estimates how long the stages of a plan take, and what they leave on disk, from earlier artifacts
that this machine made.

Time and bytes of an artifact are scaled by the bytes that its stage read; those of a model by its
weights, and its time by tokens too. Of the last artifacts of a stage the nearest in size count,
those of the same settings first: their median. How time grows with size is read off runs of
different sizes. Where there is one size alone, all of it is taken to grow in proportion, starting
included, so an estimate for much more is too high. Reads the records of a few artifacts a stage.
"""

from __future__ import annotations

import contextlib
import math
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError, build
from llm_core.data.ramp import BatchSizes
from llm_core.model.config import ModelConfig
from llm_core.secrets import mask_values
from tasks.runtime.artifact import ARTIFACT_FILE, Artifact, ArtifactMismatch, load_artifact
from tasks.runtime.plan import Plan, Step
from tasks.runtime.store import Store

MAX_EARLIER, MAX_COUNTED = 20, 3
"""Newest artifacts of a stage that are looked at, and those of them that count."""
LEAST_SPREAD = 2.0
"""The largest size of earlier runs over the smallest, from which on they tell how time grows."""
_Point = tuple[float | None, float]
"""Size, and time or bytes."""


@dataclass(frozen=True)
class Estimate:
    """Of one stage that would run; None where no earlier run here says so."""

    elapsed_s: float | None = None
    num_bytes: float | None = None
    num_runs: int = 0
    """Earlier artifacts that it rests on."""


@dataclass(frozen=True)
class _Size:
    """What time and bytes of an artifact grow with; None: not known."""

    for_time: float | None
    for_bytes: float | None


def estimate_stages(store: Store, plan: Plan) -> dict[str, Estimate]:
    """{stage that would run: what it takes}."""
    found: dict[str, Estimate] = {}
    num_bytes: dict[str, float | None] = {}
    for step in plan.steps:
        node = step.node
        if not step.runs:
            made = _load(store.path(node.stage, node.key))
            num_bytes[node.stage] = None if made is None else size_of(made.record)
            continue
        parents = [num_bytes.get(name) for name in node.identity["parents"]]
        own = [path.stat().st_size for path in node.input_files.values()]
        input_bytes = None if None in parents else sum(filter(None, parents)) + sum(own)
        estimate = _estimate(_earlier(store, step), _size(node.stage, node.config, input_bytes))
        found[node.stage], num_bytes[node.stage] = estimate, estimate.num_bytes
    return found


def size_of(record: Mapping[str, Any]) -> int:
    """Bytes of the files of an artifact."""
    return sum(file["size"] for file in record["files"])


def _size(stage: str, config: Mapping[str, Any], input_bytes: float | None) -> _Size:
    if stage != "train":
        return _Size(input_bytes, input_bytes)
    train = config["train"]
    tokens = BatchSizes.of(train).before(train["num_steps"]) * train["seq_len"]
    # The size of the vocabulary is that of the tokenizer, in most configs: blocks alone count.
    try:
        model = build(ModelConfig, {**config["model"], "vocab_size": 0})
    except ConfigError:  # settings of an earlier version
        return _Size(None, None)
    weights = model.matmul_parameters()
    return _Size(tokens * weights, weights)


def _estimate(earlier: Iterable[Artifact], size: _Size) -> Estimate:
    times: list[_Point] = []
    sizes: list[_Point] = []
    for artifact in earlier:
        record = artifact.record
        theirs = _size(artifact.stage, record["config"], record.get("input_bytes"))
        times.append((theirs.for_time, record["elapsed_s"]))
        sizes.append((theirs.for_bytes, size_of(record)))
    if not times:
        return Estimate()
    elapsed_s = _scaled(times, size.for_time, _power(times))
    return Estimate(elapsed_s, _scaled(sizes, size.for_bytes), min(len(times), MAX_COUNTED))


def _power(times: Iterable[_Point]) -> float:
    """By how much time grows with size: the slope of their logarithms, from 0, where starting is
    all that takes time, to 1. Sizes that are alike say nothing: 1."""
    known = [(size, elapsed_s) for size, elapsed_s in times if size and elapsed_s]
    sizes = [math.log(size) for size, _ in known]
    if not sizes or max(sizes) - min(sizes) < math.log(LEAST_SPREAD):
        return 1.0
    slope = statistics.linear_regression(sizes, [math.log(each) for _, each in known]).slope
    return min(max(slope, 0.0), 1.0)


def _scaled(points: Iterable[_Point], size: float | None, power: float = 1.0) -> float:
    """Median of the values whose sizes are nearest, each scaled; as it is where a size is not
    known."""
    ratios = [(size / theirs if size and theirs else 1.0, value) for theirs, value in points]
    nearest = sorted(ratios, key=lambda each: abs(math.log(each[0])))[:MAX_COUNTED]
    return statistics.median(ratio**power * value for ratio, value in nearest)


def _earlier(store: Store, step: Step) -> list[Artifact]:
    """Artifacts of the stage that this machine made, of the same settings where there are any."""
    files = (store.root / step.node.stage).glob(f"*/{ARTIFACT_FILE}")
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:MAX_EARLIER]
    loaded = [artifact for file in newest if (artifact := _load(file.parent))]
    here = [each for each in loaded if each.record["host"]["name"] == platform.node()]
    same = [each for each in here if each.config == mask_values(step.node.config)]
    return same or here


def _load(folder: Path) -> Artifact | None:
    """An artifact that cannot be read says nothing of the next one."""
    with contextlib.suppress(ArtifactMismatch):
        return load_artifact(folder)
    return None
