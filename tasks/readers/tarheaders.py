"""Reads the headers of a tar archive, within what headers may claim.

The standard library believes a header: a size of 2^62 is skipped block by block long after the end
of the file, a name of a gigabyte is read whole, and every extension header is a call within a call.
Here a stream ends where its bytes do, all that belongs to one header has a bound, and sizes are not
negative. Members without their holes (GNU tar --sparse) are read as far as the map of their holes
is sound.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import IO, Any, cast

SKIPPED_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 20
"""Of one header with its extensions: long names, attributes, the map of holes."""
MAX_EXTENSIONS = 16
"""Headers before the one of a member; writers need four."""
LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
EXTENSIONS = (*LONG_NAMES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
LONG_NUMBER = re.compile(rb"\d{100}")
"""No number of a header has so many digits; the library looks at a run of them from each of its
digits on."""


def read_headers(stream: io.BufferedIOBase) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """(archive, header) of each member. Raises tarfile.TarError and others for a broken header."""
    file = cast(IO[bytes], _Forward(stream))
    with _Archive.open(fileobj=file, mode="r:", tarinfo=_Header) as archive:
        while (entry := archive.next()) is not None:
            # The library would keep them all.
            archive.members = []  # type: ignore[attr-defined]
            yield archive, entry


def hole_bytes(entry: tarfile.TarInfo) -> int:
    """Bytes of a member that are not stored. Raises ReadError for an impossible map of holes."""
    spans = cast("list[tuple[int, int]] | None", entry.sparse)
    if spans is None:
        return 0
    stored = end = 0
    for begin, length in spans:
        if not length:
            continue
        if begin < end or length < 0:
            raise tarfile.ReadError("holes that overlap")
        stored, end = stored + length, begin + length
    if end > entry.size:
        raise tarfile.ReadError("holes beyond the end of a member")
    return entry.size - stored


class _Forward:
    """A stream as a file that can be read and skipped forwards, to its end and not beyond."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream, self._place, self._returned = stream, 0, b""
        self.left_bytes: int | None = None
        """How much of a header may still be read; None outside of headers."""

    def tell(self) -> int:
        return self._place

    def read(self, size: int) -> bytes:
        if self.left_bytes is not None:
            if size > self.left_bytes:
                raise tarfile.ReadError(f"a header of more than {MAX_HEADER_BYTES:,} bytes")
            self.left_bytes -= size
        data = self._returned[:size] + self._stream.read(max(0, size - len(self._returned)))
        self._returned = self._returned[size:]
        self._place += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        """Let `data` be what is read next."""
        self._returned, self._place = data + self._returned, self._place - len(data)
        if self.left_bytes is not None:
            self.left_bytes += len(data)

    def seek(self, place: int) -> int:
        if place < self._place:
            raise tarfile.StreamError("seeking backwards is not allowed")
        held, self.left_bytes = self.left_bytes, None
        while self._place < place:
            if not self.read(min(SKIPPED_BYTES, place - self._place)):
                raise tarfile.ReadError("unexpected end of data")
        self.left_bytes = held
        return place

    def seekable(self) -> bool:
        return True


class _Archive(tarfile.TarFile):
    num_extensions = 0
    """Before the header of the next member."""
    global_bytes = 0
    """Of headers that speak of all members behind them, which are kept."""

    def next(self) -> tarfile.TarInfo | None:
        stream = cast(_Forward, self.fileobj)
        stream.left_bytes, self.num_extensions = MAX_HEADER_BYTES, 0
        try:
            return super().next()
        finally:
            stream.left_bytes = None


class _Header(tarfile.TarInfo):
    """The library takes a header it cannot read, or the want of one, for the end of the archive;
    only the mark of the end is that."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("no header where one should be") from error

    def _proc_member(self, archive: Any) -> tarfile.TarInfo:
        if self.size < 0:
            raise tarfile.ReadError("a size below zero")
        if self.type in EXTENSIONS:
            archive.num_extensions += 1
            if archive.num_extensions > MAX_EXTENSIONS:
                raise tarfile.ReadError(f"more than {MAX_EXTENSIONS} headers for one member")
            # Looked at before the library parses it, which then reads it again.
            data = archive.fileobj.read(self._block(self.size))  # type: ignore[attr-defined]
            archive.fileobj.give_back(data)
            if self.type not in LONG_NAMES and LONG_NUMBER.search(data):
                raise tarfile.ReadError("a number of too many digits")
            if self.type == tarfile.XGLTYPE:
                archive.global_bytes += self.size
                if archive.global_bytes > MAX_HEADER_BYTES:
                    more = f"global headers of more than {MAX_HEADER_BYTES:,} bytes"
                    raise tarfile.ReadError(more)
        entry: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        if entry.size < 0:
            raise tarfile.ReadError("a size below zero")
        return entry
