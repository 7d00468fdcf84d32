"""Bounds the memory and disk that a record, a member or a stream may take, before any of it is
taken.

Three megabytes of gzip can hold a line of three gigabytes, and three kilobytes of tar a member of
four exabytes. One number says what a record may take; the other bounds follow from it. What is over
a bound is quarantined, and reading continues.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_RECORD_BYTES = 1 << 28
"""A record is held about six times at once, as bytes, parsed and in a table: within 2 GiB."""
LEAST_WINDOW_BYTES = 1 << 27
"""What `zstd --long` and `xz -9` need, whatever records may take."""
SPOOLED_RECORDS = 16


class Limits(NamedTuple):
    """What one record may take, and what follows from that."""

    record_bytes: int = DEFAULT_RECORD_BYTES

    @property
    def window_bytes(self) -> int:
        """Of earlier content that a decompressor may keep. With records of 1 GiB, that of `zstd
        --long=31`."""
        return max(LEAST_WINDOW_BYTES, 2 * self.record_bytes)

    @property
    def spooled_bytes(self) -> int:
        """Of a member of an archive that is copied to disk, and of the holes of a sparse one."""
        return SPOOLED_RECORDS * self.record_bytes

    def over(self, what: str) -> str:
        """The error of a fault: `what` is larger than a record may be."""
        return _over(what, self.record_bytes)

    def over_spooled(self, what: str) -> str:
        """The error of a fault: `what` is larger than a copy on disk may be."""
        return _over(what, self.spooled_bytes, f", {SPOOLED_RECORDS} times")


USUAL = Limits()


def _over(what: str, num_bytes: int, which: str = ",") -> str:
    return f"over the limit: {what} of more than {num_bytes:,} bytes{which} source.max_record_bytes"
