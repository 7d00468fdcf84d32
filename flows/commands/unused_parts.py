"""Finds finished parts that no artifact in use was made of, beside parts that are in use.

An artifact records its parts. Where one of a folder's artifacts is missing, damaged, still being
made, or of a version that did not record them, all of the folder stays. What a document was in
before it was withdrawn, or a file before it changed, leaves the store so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.commands.store_folders import names_in
from flows.records import KEY, RunRecord
from tasks.runtime.artifact import ArtifactMismatch, load_artifact
from tasks.runtime.store import Store


def unused_parts(store: Store, kept: Sequence[RunRecord]) -> Iterator[tuple[str, Path]]:
    """("part", folder) of every part that the artifacts of these runs do not need."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in kept:
        for stage, part_key in record.parts.items():
            keys[stage, part_key].add(record.stages[stage])
    in_progress = {place for r in kept if r.is_alive() for place in r.parts.items()}
    for (stage, part_key), of_stage in keys.items():
        used = _parts_of(store, stage, of_stage)
        if used is None or (stage, part_key) in in_progress:
            continue
        folder = Path(".parts", stage, part_key)
        for name in names_in(store.root, folder):
            if KEY.fullmatch(name) and name not in used:
                yield "part", store.root / folder / name


def _parts_of(store: Store, stage: str, keys: set[str]) -> set[str] | None:
    """Digests of the parts of these artifacts; None where they are not all known."""
    used: set[str] = set()
    for key in keys:
        try:
            artifact = load_artifact(store.path(stage, key))
        except ArtifactMismatch:
            return None
        if artifact is None or "parts" not in artifact.record:
            return None
        used |= set(artifact.record["parts"])
    return used
