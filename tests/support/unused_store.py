"""A store in which no run refers to anything."""

from __future__ import annotations

import os
from pathlib import Path

from flows.records import mark_store
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import Part, PartRunner
from tasks.runtime.store import Node, Store

KEYS = [f"{number:016x}" for number in (1, 0xABCD)]


def process_part(part: Part, directory: Path, config: object) -> dict[str, int]:
    (directory / "rows.txt").write_text(part.name)
    return {}


def make_store(root: Path) -> Store:
    """Two artifacts of two stages, with parts, unfinished work and a fetched file, which no run
    refers to."""
    store = Store(root)
    mark_store(store)
    for stage in ("ingest", "train"):
        for key in KEYS:
            node = Node(stage, key, key, {"stage": stage, "inputs": {}}, {})
            with store.hold(node, print) as out:
                (out / "model").mkdir()
                (out / "model" / "weights.txt").write_text("weights")
                PartRunner(store.parts_dir(node))(
                    process_part, [Part("a", f"{key}{key}", {})], None, out
                )
                store.publish(node, Artifact(out, stage), 0, 0, "2026-01-01")
            work = store.work_dir(stage, key) / "out.work" / "checkpoints"
            work.mkdir(parents=True)
            (work / "step.txt").write_text("step")
    (store.root / ".remote").mkdir()
    fetched = store.root / ".remote" / f"{KEYS[0] * 2}.jsonl.gz"
    fetched.write_text("fetched")
    os.utime(fetched, (0, 0))
    return store
