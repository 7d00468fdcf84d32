"""The key of an artifact: a digest of everything that decides its bytes.

Keys hash canonical JSON of the stage, its code, the libraries it declares, its own config, its parents'
keys and its input files. Hosts, paths, worker counts, log levels, the runner and the parallel layout
stay out: config fields marked with `field(metadata=NOT_IN_KEY)` are left out of the key.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_core.config import key_config as key_config

ROOT = Path(__file__).resolve().parent.parent
FIRST_PARTY = ("tasks", "llm_core")


def canonical_json(value: Any) -> str:
    """One text for one value, whatever the key order. Raises TypeError on types whose text could vary."""
    return json.dumps(_checked(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """64-bit BLAKE2b of the canonical JSON of `value`, in hex."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=8).hexdigest()


def code_digest(modules: Iterable[str], root: Path = ROOT) -> str:
    """Digest of the sources of `modules` and of every first-party module they import, directly or not."""
    sources = {name: _source_digest(path) for name, path in sorted(import_closure(modules, root).items())}
    return digest(sources)


def import_closure(modules: Iterable[str], root: Path = ROOT) -> dict[str, Path]:
    """First-party modules reachable from `modules` by import statements anywhere in a file."""
    found: dict[str, Path] = {}
    pending = list(modules)
    while pending:
        name = pending.pop()
        path = _module_path(name, root)
        if path is None or name in found:
            continue
        found[name] = path
        pending.extend(_imports(path, name, path.stat().st_mtime_ns))
        if "." in name:
            pending.append(name.rpartition(".")[0])
    return found


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions without local tags: the same release built for CPU or GPU is the same library."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in sorted(names)}


def explain_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first differences between two identities in words, e.g. `changed optim.lr: 0.001 → 0.003`."""
    if old.get("code") != new.get("code"):
        code = ["code changed"]
    else:
        code = []
    before, after = _flatten(old, skip="code"), _flatten(new, skip="code")
    changes = [
        f"{name}: {_difference(name, before.get(name, '∅'), after.get(name, '∅'))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, "∅") != after.get(name, "∅")
    ]
    own = [c for c in changes if not c.startswith("parents.")]
    parents = sorted({c.split(":")[0].removeprefix("parents.") for c in changes if c.startswith("parents.")})
    reasons = code + ([f"changed {'; '.join(own[:3])}" + (f" and {len(own) - 3} more" if len(own) > 3 else "")] if own else [])
    if parents and not reasons:
        reasons = [f"after {', '.join(parents)}"]
    return "; ".join(reasons) or "missing"


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


def _flatten(value: Any, prefix: str = "", skip: str = "") -> dict[str, str]:
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for k, v in value.items():
            if k != skip or prefix:
                flat |= _flatten(v, f"{prefix}.{k}" if prefix else str(k))
        return flat
    # A record read back from JSON has lists where a config has tuples.
    return {prefix.removeprefix("config."): str(list(value) if isinstance(value, tuple) else value)}


def _module_path(name: str, root: Path) -> Path | None:
    if name.split(".")[0] not in FIRST_PARTY:
        return None
    base = root.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.exists():
            return candidate
    return None


@functools.lru_cache(maxsize=1024)
def _imports(path: Path, name: str, _mtime_ns: int) -> tuple[str, ...]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names.append(base)
            names.extend(f"{base}.{alias.name}" for alias in node.names)
    return tuple(n for n in names if n.split(".")[0] in FIRST_PARTY)


def _source_digest(path: Path) -> str:
    source = path.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.blake2b(source, digest_size=8).hexdigest()


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))
