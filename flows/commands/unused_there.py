"""Finds artifacts in the bucket of a shared store that no run in use refers to, and removes them.

Records of all machines count, and a run that has not ended on another machine counts as alive.
Only objects below the names of stages and keys are looked at, and only in a bucket that bears the
marker of a store.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flows.records import KEY
from llm_core.config import ConfigError
from tasks.runtime.graph import STAGES
from tasks.runtime.shared.store import SharedStore
from tasks.runtime.store import MARKER_FILE


@dataclass(frozen=True)
class UnusedThere:
    """An artifact in the bucket, or what is left of one."""

    store: SharedStore
    stage: str
    key: str
    size_bytes: int
    kind: str = "shared"

    @property
    def path(self) -> str:
        return f"{self.store.bucket.url}/{self.stage}/{self.key}"


def unused_there(store: SharedStore, keys: Collection[tuple[str, str]]) -> list[UnusedThere]:
    """Largest first. Raises ConfigError where the bucket is not marked as a store."""
    sizes = store.keys_there()
    if sizes and store.bucket.head(MARKER_FILE) is None:
        raise ConfigError(
            f"{store.bucket.url} has no {MARKER_FILE}, so nothing in it is removed; put an object"
            " of that name there if it is a store and nothing else"
        )
    found = [
        UnusedThere(store, stage, key, size)
        for (stage, key), size in sizes.items()
        if stage in STAGES and KEY.fullmatch(key) and (stage, key) not in keys
    ]
    return sorted(found, key=lambda u: (-u.size_bytes, u.path))


def remove_there(items: Sequence[UnusedThere]) -> int:
    """Delete what nobody is making; the bytes freed."""
    return sum(u.size_bytes for u in items if u.store.remove_there(u.stage, u.key))
