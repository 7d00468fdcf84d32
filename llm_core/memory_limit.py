"""Reads how much memory this process's container may use. Standard library only."""

from __future__ import annotations

import contextlib
from pathlib import Path


def memory_limit_bytes(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Of this control group, version 2 or 1; None: the machine's memory is the limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError):
            text = (folder / name).read_text("ascii").strip()
            # Version 1 says no limit with a number near 2 ** 63.
            if text.isdecimal() and int(text) < 1 << 60:
                return int(text)
    return None
