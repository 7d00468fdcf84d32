"""Stages of one file each, in the places of the real ones: small enough to run a whole pipeline in
a moment."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import Part
from tasks.runtime.stage import StageFailure, StageInterrupted

CALLS: list[str] = []
"""Stages that were executed, in order."""

COUNTERS: dict[str, dict[str, Any]] = {
    "ingest": {"read": 10, "kept": 8, "dropped": {"EMPTY": 1}, "quarantined": 1},
    "quality": {"read": 8, "kept": 6, "dropped": {"TOO_FEW_WORDS": 2}, "quarantined": 0},
    "documents": {"read": 8, "kept": 6, "dropped": {"TOO_FEW_WORDS": 2}, "quarantined": 0},
}
TIMING = [{"step": 2, "tokens_per_s": 100.0}, {"step": 3, "tokens_per_s": 120.0}]
METRICS: dict[str, dict[str, Any]] = {
    "documents": {"dropped": {"ingest": {"EMPTY": 1}, "quality": {"TOO_FEW_WORDS": 2}}},
    "tokenizer": {
        "kind": "bpe",
        "vocab_size": 300,
        "bytes_per_token": {"train": 2.0},
        "fertility": 2.0,
        "single_character_frac": 0.5,
        "round_trip_frac": 1.0,
    },
    "shards": {
        "splits": {
            "train": {"tokens": 90, "documents": 5, "bytes": 180},
            "validation": {"tokens": 10, "documents": 1, "bytes": 20},
        }
    },
    "train": {
        "num_steps": 3,
        "final_train_loss": 2.5,
        "val_bpb": 1.5,
        "curve": [{"step": 1, "train_loss": 3.0}],
        "timing": TIMING,
    },
    "evaluate": {
        "val_bpb": {"value": 1.4, "low": 1.3, "high": 1.5, "num_documents": 1, "num_bytes": 40},
        "unigram_bpb": 4.0,
        "bigram_bpb": 3.0,
        "suites": {
            "cloze": {
                "digest": "d" * 64,
                "items": 30,
                "shots": 0,
                "asked": ["acc"],
                "headline": "acc",
                "bootstrap_samples": 100,
            }
        },
        "eval": {"cloze": {"acc": 0.5, "acc_low": 0.4, "acc_high": 0.6}},
        "curves": {
            "cloze": {
                "metric": "acc",
                "points": [
                    {"step": 1, "tokens": 4096, "value": 0.25, "low": None, "high": None},
                    {"step": 2, "tokens": 8192, "value": 0.5, "low": 0.4, "high": 0.6},
                ],
            }
        },
    },
    "bench": {"decode_tok_s": 123.0},
}


def process_part(part: Part, directory: Path, config: Any) -> dict[str, int]:
    (directory / "part.txt").write_text(part.name)
    return {"lines": 1}


def stand_in(name: str) -> Callable[..., Artifact]:
    def stage(*arguments: Any) -> Artifact:
        *parents, out_dir, _, run_parts = arguments
        CALLS.append(name)
        trouble = os.environ.get("STAND_IN_TROUBLE", "")
        if trouble == f"{name}:failure":
            raise StageFailure(f"{name} kept no document; loosen its thresholds")
        if trouble == f"{name}:defect":
            raise KeyError("a defect")
        if trouble == f"{name}:interrupted":
            raise StageInterrupted(f"{name} was stopped at step 2; run again to go on")
        if trouble == f"{name}:ctrl-c":
            raise KeyboardInterrupt
        if trouble == f"{name}:slow":
            (out_dir.parent / "started").touch()
            time.sleep(60)
        if trouble == f"{name}:sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        parts = run_parts(
            process_part, [Part(f"p{i}", f"{name}{i}", {}) for i in range(3)], None, out_dir
        )
        (out_dir / "out.txt").write_text(name + "".join(p.key for p in parents) + str(len(parts)))
        if name == "train":
            rows: list[dict[str, object]] = [
                {"step": s, "train_loss": loss} for s, loss in ((1, 3.0), (2, 1.5), (3, 1.0))
            ]
            rows.append(
                {
                    "at": "2026-01-01T00:00:00",
                    "event": "damaged_checkpoint",
                    "step": 2,
                    "what": "kept as x.damaged",
                }
            )
            lines = [json.dumps(row) for row in (*rows, {"step": 3, "val_loss": 1.25})]
            (out_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
            (out_dir / "profile").mkdir()
            (out_dir / "profile/rank-0.md").write_text("| kind |\n")
        if name in ("analysis", "quality"):
            (out_dir / "scale.parquet").write_text("a table")
        if name == "report":
            (out_dir / "report.html").write_text("<html>report</html>")
        return Artifact(out_dir, name, COUNTERS.get(name, {}), METRICS.get(name, {}))

    return stage


ingest = stand_in("ingest")
language = stand_in("language")
scores = stand_in("scores")
quality = stand_in("quality")
dedup = stand_in("dedup")
pii = stand_in("pii")
contamination = stand_in("contamination")
documents = stand_in("documents")
analysis = stand_in("analysis")
tokenizer = stand_in("tokenizer")
shards = stand_in("shards")
train = stand_in("train")
evaluate = stand_in("evaluate")
bench = stand_in("bench")
report = stand_in("report")
