"""The key of an artifact: a digest of everything that decides its bytes.

Keys hash canonical JSON of the stage, its code, the libraries it declares, its own config, its
parents' keys and its input files. Hosts, paths, worker counts, log levels, the runner and the
parallel layout stay out: config fields marked with `field(metadata=NOT_IN_KEY)` are left out of the
key.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from typing import Any

from llm_core.config import key_config as key_config

BUILDING = "building"
"""The reason to make what was never made, or is gone: nothing of it has changed."""


def canonical_json(value: Any) -> str:
    """One text per value, whatever the key order. Raises TypeError on types without one."""
    return json.dumps(
        _checked(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Any) -> str:
    """64-bit BLAKE2b of the canonical JSON of `value`, in hex."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=8).hexdigest()


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions without local tags: builds for CPU and GPU are the same library."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in sorted(names)}


def explain_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first differences of two identities, e.g. `changed optim.lr: 0.001 → 0.003`."""
    before, after = _flatten({**old, "code": None}), _flatten({**new, "code": None})
    changed = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
    reasons = ["code changed"] if old.get("code") != new.get("code") else []
    if own := [n for n in changed if not n.startswith("parents.")]:
        shown = [f"{n}: {_difference(n, before.get(n, '∅'), after.get(n, '∅'))}" for n in own[:3]]
        more = f" and {len(own) - 3} more" if own[3:] else ""
        reasons.append(f"changed {'; '.join(shown)}{more}")
    # A parent that changed is the reason only where nothing of this stage itself did.
    if changed and not reasons:
        reasons = [f"after {', '.join(n.removeprefix('parents.') for n in changed)}"]
    return "; ".join(reasons) or BUILDING


def _difference(name: str, before: str, after: str) -> str:
    if not name.startswith("inputs."):
        return f"{before} → {after}"
    # Digests of files tell a reader nothing.
    return "new" if before == "∅" else "gone" if after == "∅" else "other content"


def _checked(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # repr is the shortest text that reads back to the same double, on every platform.
        return {"float": repr(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise TypeError(f"keys must be text, got {sorted(map(repr, value))}")
        return {k: _checked(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_checked(v) for v in value]
    raise TypeError(f"{value!r} of type {type(value).__name__} has no canonical form")


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for k, v in value.items():
            flat |= _flatten(v, f"{prefix}.{k}" if prefix else str(k))
        return flat
    # A record read back from JSON has lists where a config has tuples.
    return {prefix.removeprefix("config."): str(list(value) if isinstance(value, tuple) else value)}
