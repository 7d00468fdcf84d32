"""Defines what is fuzzed: sound files, and the code that reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Read = Callable[[bytes, Path], object]


class Target(NamedTuple):
    seeds: Sequence[bytes]
    read: Read
    refusals: tuple[type[Exception], ...] = ()
