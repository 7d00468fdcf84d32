"""How many records would files have held that can only be read in part, or not at all?

A file that breaks off is one fault, whatever it held. Its size tells more: as many records are expected of it as whole files of
its format hold in so many bytes, or whole files of any format where none of its own is beside it. Where no file is whole, its
own beginning says it, if it is read from front to back. Bytes are those on disk: what was never fetched is in no estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FileExtent:
    """What was read of a file. `taken_bytes`: how far it was read when it broke off; 0 where that is not known."""

    format: str
    size_bytes: int
    records: int
    damaged: bool
    taken_bytes: int


def estimate_lost(files: Sequence[FileExtent]) -> int:
    """Records that are in no count because their file broke off; the fault itself counts as one."""
    whole = [file for file in files if not file.damaged]
    lost = 0
    for file in files:
        if file.damaged:
            alike = [other for other in whole if other.format == file.format]
            lost += max(0, int(file.size_bytes * _density(alike or whole, file)) - file.records)
    return lost


def _density(whole: Sequence[FileExtent], file: FileExtent) -> float:
    """Records for each byte."""
    if num_bytes := sum(other.size_bytes for other in whole):
        return sum(other.records for other in whole) / num_bytes
    return (file.records - 1) / file.taken_bytes if file.taken_bytes else 0.0
