"""Made-up artifacts of a whole run: one like a real one, one with hostile names and texts, one with
hardly anything."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tasks.runtime.artifact import Artifact
from tasks.runtime.graph import STAGES
from tests.support.data.report_numbers import run_counters, run_metrics

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
LONG_NAME = "an-extremely-long-name-that-nobody-would-give-" + "x" * 300
UNTOUCHED = ("cached", "uncached", "min", "max")
"""Values a stage chooses from a fixed list, which steer the page."""
STARTED_AT = "2026-03-01T10:00:00.000+00:00"


def realistic(root: Path) -> list[Artifact]:
    """Artifacts like those of a run over a small mixed corpus."""
    return published(root, run_metrics(), run_counters())


def bare(root: Path) -> list[Artifact]:
    """Artifacts that measured nothing and were never published."""
    return [Artifact(root / stage, stage) for stage in _names()]


def single(root: Path) -> list[Artifact]:
    """A run in which every distribution has one element, or none."""
    metrics, counters = run_metrics(), run_counters()
    metrics["ingest"] |= {
        "by_source": {"only": {"documents": 1, "bytes": 10}},
        "length_histogram": {"edges_bytes": [8, 16], "counts": [1]},
        "licenses": {"MIT": 1},
        "quarantine_examples": [],
    }
    metrics["language"] = {"languages": {"en": {"documents": 1, "bytes": 10}}}
    metrics["quality"] = {
        "rules": metrics["quality"]["rules"][:1],
        "funnel": [],
        "overlap": [[0]],
        "dropped_by_language": {},
    }
    metrics["dedup"] |= {
        "clusters": [],
        "cluster_size_histogram": {},
        "candidate_pairs": 0,
        "verified_pairs": 0,
    }
    metrics["analysis"] = {
        "states": {"ingest": {"documents": 1, "words": 3}},
        "growth_curves": {"ingest": [[3, 2]]},
    }
    metrics["pii"] = {"types": {"EMAIL": {"spans": 0, "documents": 0}}}
    metrics["documents"] |= {
        "by_source": {},
        "by_language": {},
        "duplicate_examples": [],
        "dropped": {},
    }
    metrics["documents"]["funnel"] = [{"stage": "read", "documents": 1}]
    metrics["train"] |= {
        "curve": [{"step": 0, "train_loss": 9.0}],
        "val_curve": [{"step": 0, "val_loss": 9.0, "val_bpb": 3.0}],
    }
    metrics["evaluate"] |= {
        "by_source": {
            "only": {"value": 3.0, "low": None, "high": None, "documents": 1, "bytes": 10}
        },
        "samples": [],
    }
    metrics["bench"]["cells"] = metrics["bench"]["cells"][:1]
    counters["ingest"] = {"read": 1, "kept": 1, "dropped": {}, "quarantined": 0}
    return published(root, metrics, counters)


def hostile(root: Path) -> list[Artifact]:
    """Every name and text is an attack on the page, or absurdly long, or not quite Unicode."""
    return published(
        root,
        poison(run_metrics()),
        poison(run_counters()),
        config={HOSTILE: HOSTILE, "long": LONG_NAME},
    )


def poison(value: Any) -> Any:
    """The same structure with hostile texts, and hostile names added to every group that has free
    names."""
    if isinstance(value, dict):
        poisoned = {k: poison(v) for k, v in value.items()}
        if value and all(isinstance(v, dict) for v in value.values()) and "batch" not in value:
            poisoned |= {
                HOSTILE: copy.deepcopy(next(iter(poisoned.values()))),
                LONG_NAME: copy.deepcopy(next(iter(poisoned.values()))),
            }
        return poisoned
    if isinstance(value, list):
        return [poison(v) for v in value]
    if isinstance(value, str) and value not in UNTOUCHED:
        return f"{value}{HOSTILE}\u202e\x00\ud800漢字"
    return value


def published(
    root: Path,
    metrics: dict[str, Any],
    counters: dict[str, Any],
    config: dict[str, Any] | None = None,
) -> list[Artifact]:
    """Artifacts with the record that the store would give them."""
    artifacts = []
    for i, stage in enumerate(_names()):
        parents = {
            parent: f"{STAGES[parent].name:.4}{'0123456789ab'}" for parent in STAGES[stage].parents
        }
        record = {
            "schema_version": 1,
            "stage": stage,
            "key": f"{stage:.4}0123456789ab",
            "identity": {
                "stage": stage,
                "code": f"c0de{i:012x}",
                "libraries": {"pyarrow": "22.0.0"},
                "parents": parents,
                "inputs": {"sample.jsonl": "5f" * 16} if stage == "ingest" else {},
            }
            | ({"device": "AMD EPYC 9B14, 2 threads"} if stage == "bench" else {}),
            "config": config
            or {
                "seed": 17,
                "rules": ["gopher", "c4"],
                "model": {"num_layers": 6, "dim": 256, "tied": True, "dropout": None},
            },
            "files": [
                {
                    "path": f"part-{j:05d}.parquet",
                    "size": 812_345 + j,
                    "digest": f"{i:02x}{j:02x}" * 8,
                }
                for j in range(3)
            ],
            "host": {"name": "mill-01", "machine": "x86_64", "python": "3.11.9", "cpus": 8},
            "started_at": STARTED_AT,
            "finished_at": "2026-03-01T10:03:20.000+00:00",
            "elapsed_s": round(1.7 + i**2.2, 3),
            "cpu_s": round(1.2 + i**2.1, 3),
            "peak_memory_bytes": 412_000_000 + i * 31_000_000,
        }
        artifacts.append(
            Artifact(root / stage, stage, counters.get(stage, {}), metrics.get(stage, {}), record)
        )
    return artifacts


def _names() -> tuple[str, ...]:
    return STAGES["report"].parents
