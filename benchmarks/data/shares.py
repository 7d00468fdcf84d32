"""Shares with their intervals, and the files that say what is true: what checks against a known
truth have in common."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from llm_core.printing import note
from tasks.corpus.statistics import wilson_interval
from tasks.runtime.artifact import Artifact, ArtifactMismatch, load_artifact


def share(name: str, successes: int, trials: int, suffix: str = "_frac") -> dict[str, Any]:
    """A share by name, with its counts and its interval; None for both where there were no
    trials."""
    return {
        f"{name}{suffix}": successes / trials if trials else None,
        f"{name}_count": [successes, trials],
        f"{name}_interval": wilson_interval(successes, trials),
    }


def records(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file, or of the same with `.zst`."""
    packed = file.with_name(file.name + ".zst")
    if not (file.exists() or packed.exists()):
        raise ArtifactMismatch(f"{file} is not there, nor with .zst; give the folder of the truth")
    with pa.input_stream(str(file if file.exists() else packed)) as stream:
        yield from map(json.loads, io.TextIOWrapper(stream, "utf-8"))


def finished_pair(folders: list[str]) -> tuple[Artifact, Artifact] | None:
    """The two artifacts in these folders; a note and None where one is not finished."""
    first, second = (load_artifact(Path(folder)) for folder in folders)
    if first is None or second is None:
        note(f"{folders[0]} or {folders[1]} is not a finished artifact; give folders of the store")
        return None
    return first, second
