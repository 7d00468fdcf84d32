"""Zip and tar archives: every member with a reader is read like a file of its own.

A member is named `archive.zip!folder/file.jsonl`, also where the archive calls it `./folder/file.jsonl`. Members without a
reader, hidden ones and archives in archives are skipped, as `archive_member`. A member that is damaged is a fault of that
member; a tar archive that ends early, or goes on after its end, is one of the archive. Encrypted members are faults.
"""

from __future__ import annotations

import errno
import io
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO, BinaryIO, cast

from tasks.bytestreams import SoundBytes
from tasks.readers.formats import ARCHIVES, SEEKING, Format, format_of
from tasks.readers.items import Fault, Skipped, damaged

SPOOLED_BYTES = 64_000_000
"""Members that are read from several places are copied, in memory up to this size."""

ZIP_TROUBLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError, OSError)
"""What a broken archive makes the library raise: also for offsets before its beginning, and passwords."""

Member = tuple[str, Format, BinaryIO] | Fault | Skipped
SKIPPED = Skipped("archive_member")


def read_members(stream: BinaryIO, kind: str, compression: str) -> Iterator[Member]:
    """(name, format, stream) of each member that has a reader; the stream is valid until the next one is asked for."""
    yield from _read_zip(stream) if kind == "zip" else _read_tar(stream, compression)


def _read_zip(stream: BinaryIO) -> Iterator[Member]:
    try:
        archive = zipfile.ZipFile(stream)
    except ZIP_TROUBLE as error:
        _require_no_disk_trouble(error)
        yield Fault(1, None, f"broken zip: {type(error).__name__}", ends=True)
        return
    names = _Names()
    with archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            form = _member_format(entry.filename)
            if form is None:
                yield SKIPPED
                continue
            try:
                member = archive.open(entry)
            except ZIP_TROUBLE as error:
                _require_no_disk_trouble(error)
                yield Fault(1, None, f"broken zip: a member cannot be opened ({type(error).__name__})", ends=True)
                continue
            with member:
                sound = SoundMember(member)
                yield names.name(entry.filename), form, _seekable(sound, form)
                sound.drain()
            if sound.damage:
                yield Fault(1, None, f"broken zip: a member is damaged ({sound.damage})", ends=True)


def _read_tar(stream: BinaryIO, compression: str) -> Iterator[Member]:
    sound = SoundBytes(stream, compression)
    names = _Names()
    try:
        with tarfile.open(fileobj=cast(IO[bytes], io.BufferedReader(sound, 1 << 16)), mode="r|", tarinfo=_Header) as archive:
            for entry in archive:
                if not entry.isreg():
                    continue
                form = _member_format(entry.name)
                member = archive.extractfile(entry) if form else None
                if form is None or member is None:
                    yield SKIPPED
                    continue
                with member:
                    part = SoundMember(member)
                    yield names.name(entry.name), form, _seekable(part, form)
                    part.drain()
                if part.damage:
                    yield Fault(1, None, f"broken tar: a member is damaged ({part.damage})", ends=True)
            if _goes_on(cast(IO[bytes], archive.fileobj)):
                more = "the tar archive goes on after its end, as archives do that are appended with cat"
                yield Fault(1, None, damaged(more), ends=True)
    except (tarfile.TarError, ValueError, EOFError, OverflowError) as error:
        yield Fault(1, None, damaged(sound.damage or f"broken tar ({type(error).__name__})"), ends=True)
        return
    sound.drain()
    if sound.damage:
        yield Fault(1, None, damaged(sound.damage), ends=True)


def _goes_on(stream: IO[bytes]) -> bool:
    """Whether more than padding is left. Reads all of it."""
    found = False
    while block := stream.read(1 << 20):
        found = found or bool(block.strip(b"\0"))
    return found


class _Header(tarfile.TarInfo):
    """The library takes a header it cannot read, or the want of one, for the end of the archive; only the mark of the end is
    that."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("no header where one should be") from error


class SoundMember(io.RawIOBase):
    """A member as a stream that ends where it stops being sound."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member
        self.damage: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.damage:
            return 0
        try:
            data = self._member.read(len(buffer))
        except (*ZIP_TROUBLE, tarfile.TarError) as error:
            _require_no_disk_trouble(error)
            self.damage = type(error).__name__
            return 0
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Read what is left: checksums are at the end."""
        while self.read(1 << 20):
            pass


class _Names:
    """Names of members, each once: an archive may hold several of one name, and their records are not the same."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def name(self, stored: str) -> str:
        name = "/".join(_steps(stored)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}#{self._seen[name]}"


def _require_no_disk_trouble(error: BaseException) -> None:
    """Raise what speaks of the disk and not of the archive."""
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise error


def _steps(name: str) -> list[str]:
    """Folders and name: `tar -c .` and others begin them with `./`. No file is ever written by them."""
    return [step for step in name.split("/") if step not in ("", ".")]


def _member_format(name: str) -> Format | None:
    form = format_of(name)
    hidden = any(step.startswith((".", "__MACOSX")) and step != ".." for step in _steps(name))
    return None if form is None or hidden or form.kind in ARCHIVES else form


def _seekable(member: SoundMember, form: Format) -> BinaryIO:
    if form.kind not in SEEKING:
        return cast(BinaryIO, member)
    copy = tempfile.SpooledTemporaryFile(max_size=SPOOLED_BYTES)  # noqa: SIM115 - it lives as long as its reader
    while block := member.read(1 << 20):
        copy.write(block)
    copy.seek(0)
    return cast(BinaryIO, copy)
