"""Defines documents as other engines hold them, and opens their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


class ExchangeError(ValueError):
    """Files of another engine that are damaged or of another kind; the message names the file."""


@dataclass(frozen=True)
class ForeignDocument:
    """A document as another engine holds it; what it does not know is None."""

    tokens: np.ndarray
    id: bytes | None = None
    source: str | None = None
    language: str | None = None
    loss_mask: np.ndarray | None = None
    """As long as `tokens`; not 0 where a token is to be learnt."""


def mapped_bytes(path: Path) -> Any:
    """A file as a memory map. Raises ExchangeError where it is missing."""
    if not path.exists():
        raise ExchangeError(f"{path} is missing; a split has an .idx and a .bin file")
    return np.memmap(path, np.uint8, "r").data if path.stat().st_size else b""
