"""Shares with their intervals, and the files that say what is true: what checks against a known truth have in common."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from tasks.artifact import ArtifactMismatch


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float] | None:
    """The interval of a share, None where there were no trials."""
    if trials == 0:
        return None
    share = successes / trials
    middle = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At the ends the formula gives 0 and 1 up to rounding.
    low = (middle - spread) / scale if successes else 0.0
    return low, (middle + spread) / scale if successes < trials else 1.0


def share(name: str, successes: int, trials: int, suffix: str = "_frac") -> dict[str, Any]:
    """A share by name, with its counts and its interval; None for both where there were no trials."""
    return {
        f"{name}{suffix}": successes / trials if trials else None,
        f"{name}_count": [successes, trials],
        f"{name}_interval": wilson_interval(successes, trials),
    }


def records(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file, or of the same with `.zst`."""
    packed = file.with_name(file.name + ".zst")
    if file.exists():
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)
    elif packed.exists():
        with packed.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as plain:
            yield from map(json.loads, io.TextIOWrapper(plain, encoding="utf-8"))
    else:
        raise ArtifactMismatch(f"{file} is not there, nor with .zst; give the folder of the truth")
