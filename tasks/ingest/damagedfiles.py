"""Estimates how many records are missing from files that can only be read in part.

Damage is one fault, whatever it cost; the bytes on disk that no record was read from tell more.
Their number times the records per byte is what they held. The density is that of the file itself
where it has sound records, else of the undamaged files of its format, else of all undamaged files.
Where it is not known how far a file was read, as for Parquet, its whole size counts, less the
records that it gave. Files that were never fetched are in no estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.runtime.stage import StageFailure


class TooManyFaults(StageFailure):
    """More of the source could not be read than `source.max_bad_frac` allows."""


@dataclass(frozen=True)
class FileExtent:
    """What was read of a file."""

    format: str
    size_bytes: int
    records: int
    """Faults among them."""
    breaks: int
    """Faults that may have cost more than one record."""
    lost_bytes: int | None
    """Bytes on disk that those faults stand for; None where it is not known how far the file was
    read."""


def estimate_lost(files: Sequence[FileExtent]) -> int:
    """Records that are in no count because their file is damaged; each fault itself counts as
    one."""
    whole = [file for file in files if not file.breaks]
    lost = 0
    for file in files:
        if not file.breaks:
            continue
        alike = [other for other in whole if other.format == file.format]
        density = _own_density(file) or _density(alike or whole)
        held_bytes, counted = file.lost_bytes, file.breaks
        if held_bytes is None:  # how far it was read is unknown
            held_bytes, counted = file.size_bytes, file.records
        lost += max(0, int(held_bytes * density) - counted)
    return lost


def _own_density(file: FileExtent) -> float:
    """Records per byte of what was read; 0 where that is not known."""
    taken_bytes = 0 if file.lost_bytes is None else file.size_bytes - file.lost_bytes
    return max(0, file.records - file.breaks) / taken_bytes if taken_bytes > 0 else 0.0


def _density(whole: Sequence[FileExtent]) -> float:
    num_bytes = sum(file.size_bytes for file in whole)
    return sum(file.records for file in whole) / num_bytes if num_bytes else 0.0
