"""Nights over one folder of documents: each a refresh in this process, in one store."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.compose import compose
from flows.run import Run, open_run
from flows.stages import stages
from tasks.corpus.documentset import read_table
from tasks.runtime.artifact import Artifact
from tasks.runtime.execute import make_artifact
from tasks.runtime.plan import Step
from tasks.runtime.store import Store

VOCABULARY = """the of and a to in is that it was for on are as with his they at be this from have
or by one had not but what all were when we there can an your which their said if do will each"""
TINY = [
    "quality=off",
    "tracking=off",
    "orchestrator=none",
    "num_workers=1",
    "tokenizer.vocab_size=300",
    "dedup.method=exact",
    "documents.validation_frac=0.1",
]


def sentences(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(VOCABULARY.split(), k=num_words)).capitalize() + "."


def write_file(
    path: Path, seed: int, num_documents: int = 12, num_words: tuple[int, int] = (20, 60)
) -> Path:
    """Documents of random English words, with an id of their own: `<file>-<number>`."""
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        {"id": f"{path.stem}-{i}", "text": sentences(rng, rng.randint(*num_words))}
        for i in range(num_documents)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@dataclass
class Nights:
    """One source and one store."""

    root: Path
    settings: Sequence[str] = field(default_factory=lambda: TINY)

    @property
    def folder(self) -> Path:
        return self.root / "in"

    @property
    def places(self) -> list[str]:
        return [f"store={self.root / 'store'}", f"state={self.root / 'state'}"]

    def write(self, name: str, seed: int, **more: Any) -> Path:
        return write_file(self.folder / f"{name}.jsonl", seed, **more)

    def overrides(self, *more: str) -> list[str]:
        return [*self.settings, f"source.paths=[{self.folder}]", *self.places, *more]

    def refresh(self, *overrides: str) -> Run:
        given = self.overrides(*overrides)
        with open_run("refresh", "shards", compose(given), given, make_artifact) as run:
            stages(run)
        return run

    def stop_after(self, last: str) -> None:
        """A night that somebody stops when a stage is done. Raises KeyboardInterrupt."""
        given = self.overrides()

        def make(store: Store, step: Step, *more: Any) -> tuple[Artifact, bool]:
            made = make_artifact(store, step, *more)
            if step.node.stage == last:
                raise KeyboardInterrupt
            return made

        with open_run("refresh", "shards", compose(given), given, make) as run:
            stages(run)


def kept(artifacts: Mapping[str, Artifact]) -> dict[bytes, str]:
    """{id: text} of the documents of a run."""
    return {
        row["id"]: row["text"]
        for file in artifacts["documents"].files("part-*.parquet")
        for row in read_table(file, ["id", "text"]).to_pylist()
    }


def token_rows(shards: Artifact, split: str = "train") -> list[tuple[bytes, tuple[int, ...]]]:
    """(id, tokens) of every row, in the order of the shards."""
    rows = []
    for file in shards.files(f"{split}-*.arrow"):
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        rows += [(row["id"], tuple(row["tokens"])) for row in table.to_pylist()]
    return rows


def token_multiset(shards: Artifact) -> Counter[tuple[bytes, tuple[int, ...]]]:
    return Counter(row for split in ("train", "validation") for row in token_rows(shards, split))


def part_names(run: Run, stage: str) -> set[str]:
    """Finished parts that the store has of a stage."""
    return {path.name for path in (run.store.root / ".parts" / stage).glob("*/*")}
