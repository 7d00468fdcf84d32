"""Zip and tar archives: every member with a reader is read like a file of its own.

A member is named `archive.zip!folder/file.jsonl`, also where the archive calls it
`./folder/file.jsonl`. Members that are archives are read too, a few levels deep. Members without a
reader, hidden ones and links are skipped, as `archive_member`. A member that is damaged is a fault
of that member; a tar archive that ends early, or goes on after its end, is one of the archive.
Encrypted members are faults, and so are members of a zip archive that share bytes, as only bombs
do. Bounds: tasks.readers.recordlimits.
"""

from __future__ import annotations

import copy
import errno
import io
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

from tasks.readers.bytestreams import SoundBytes
from tasks.readers.codecs import MAX_DEFLATE_RATIO, most_bytes
from tasks.readers.formats import BY_NAME, SEEKING, Format, Layout, format_of
from tasks.readers.items import Fault, Skipped, damaged
from tasks.readers.recordlimits import Limits
from tasks.readers.tarheaders import hole_bytes, read_headers

SPOOLED_BYTES = 64_000_000
"""Members that are read from several places are copied, in memory up to this size."""

PIECE_BYTES = 1 << 16
"""Asked of a member at once. What the library then decompresses is unbounded in bzip2 and LZMA."""
MAX_DIRECTORY_BYTES = 1 << 26
"""Of a zip archive: the library reads it at once and holds twenty times as much."""
LZMA_HEADER_BYTES, LZMA_DICTIONARY = 9, slice(5, 9)
"""At the beginning of a member of a zip archive that is in LZMA."""

_CODEC_TROUBLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
ZIP_TROUBLE = (*_CODEC_TROUBLE, EOFError, ValueError, RuntimeError, OSError, OverflowError)
"""What a broken archive makes the library raise, also for passwords and offsets out of range."""

Member = tuple[str, Format, BinaryIO] | Fault | Skipped
SKIPPED = Skipped("archive_member")


class Budget:
    """What all archives within one may still expand to, together."""

    def __init__(self, archive_bytes: int) -> None:
        self.left_bytes = most_bytes(archive_bytes)


def read_members(
    stream: BinaryIO,
    kind: str,
    compression: str,
    limits: Limits,
    budget: Budget | None = None,
    layout: Layout = BY_NAME,
) -> Iterator[Member]:
    """(name, format, stream) of each member with a reader; a stream is valid until the next one.

    budget: for an archive within another. layout: which members are wanted, and their format.
    """
    if kind == "zip":
        return _read_zip(stream, limits, budget, layout)
    return _read_tar(stream, compression, limits, budget, layout)


def _broken(error: str) -> Fault:
    return Fault(1, None, error, ends=True)


def _read_zip(
    stream: BinaryIO, limits: Limits, budget: Budget | None, layout: Layout
) -> Iterator[Member]:
    try:
        archive = zipfile.ZipFile(cast(IO[bytes], ShortReads(stream)))
    except ZIP_TROUBLE as error:
        _require_no_disk_trouble(error)
        yield _broken(f"broken zip: {type(error).__name__}")
        return
    names = _Names()
    with archive:
        overlapping = _overlapping(archive.infolist())
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            form = _member_format(entry.filename, layout)
            # The content of a link is the name of a file.
            if form is None or stat.S_ISLNK(entry.external_attr >> 16):
                yield SKIPPED
                continue
            if entry.header_offset in overlapping:
                yield _broken("broken zip: a member overlaps another")
                continue
            try:
                is_lzma = entry.compress_type == zipfile.ZIP_LZMA
                if is_lzma and _lzma_dictionary_bytes(archive, entry) > limits.window_bytes:
                    yield _broken(limits.over("a window of a member"))
                    continue
                member = archive.open(entry)
            except ZIP_TROUBLE as error:
                _require_no_disk_trouble(error)
                yield _broken(f"broken zip: a member cannot be opened ({type(error).__name__})")
                continue
            with member:
                sound = SoundMember(member, budget, most_bytes(entry.compress_size))
                yield from _as_member(names.name(entry.filename), form, sound, limits)
            if sound.damage:
                yield _broken(f"broken zip: a member is damaged ({sound.damage})")


def _read_tar(
    stream: BinaryIO, compression: str, limits: Limits, budget: Budget | None, layout: Layout
) -> Iterator[Member]:
    sound = SoundBytes(stream, compression, limits)
    buffered = io.BufferedReader(sound, 1 << 16)
    names, left_hole_bytes = _Names(), limits.spooled_bytes
    try:
        for archive, entry in read_headers(buffered):
            if entry.isdir():
                continue
            if not entry.isreg():
                yield SKIPPED
                continue
            form = _member_format(entry.name, layout)
            holes = hole_bytes(entry) if form else 0
            if holes > left_hole_bytes:
                yield _broken(limits.over_spooled("holes in the members of an archive"))
                continue
            left_hole_bytes -= holes
            member = archive.extractfile(entry) if form else None
            if form is None or member is None:
                yield SKIPPED
                continue
            with member:
                part = SoundMember(member, budget)
                yield from _as_member(names.name(entry.name), form, part, limits)
            if part.damage:
                yield _broken(f"broken tar: a member is damaged ({part.damage})")
        if _goes_on(buffered):
            more = (
                "the tar archive continues after its end, like archives that were joined with cat"
            )
            yield _broken(damaged(more))
    except (tarfile.TarError, ValueError, EOFError, OverflowError) as error:
        # Other messages than those of the library quote what is in the file.
        what = error if isinstance(error, tarfile.TarError) else type(error).__name__
        yield _broken(damaged(sound.damage or f"broken tar ({what})"))
        return
    sound.drain()
    if sound.damage:
        yield _broken(damaged(sound.damage))


def _as_member(name: str, form: Format, member: SoundMember, limits: Limits) -> Iterator[Member]:
    """The member as its reader needs it; reads all of it, since checksums are at the end."""
    if form.kind not in SEEKING:
        yield name, form, cast(BinaryIO, member)
        member.drain()
        return
    with tempfile.SpooledTemporaryFile(max_size=SPOOLED_BYTES) as copied:
        left_bytes = limits.spooled_bytes
        while left_bytes >= 0 and (block := member.read(1 << 20)):
            copied.write(block)
            left_bytes -= len(block)
        if left_bytes < 0:
            yield _broken(limits.over_spooled(f"a member in {form.kind}"))
            return
        copied.seek(0)
        yield name, form, cast(BinaryIO, copied)


def _overlapping(entries: list[zipfile.ZipInfo]) -> set[int]:
    """Offsets of members that begin before the one before them ends."""
    found, end = set(), 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            found.add(entry.header_offset)
        end = max(end, entry.header_offset + entry.compress_size)
    return found


def _lzma_dictionary_bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """What a member in LZMA makes its decompressor take before it gives a byte."""
    as_stored = copy.copy(entry)
    as_stored.compress_type, as_stored.file_size = zipfile.ZIP_STORED, entry.compress_size
    # The checksum is that of the decompressed bytes.
    del as_stored.CRC
    with archive.open(as_stored) as member:
        return int.from_bytes(member.read(LZMA_HEADER_BYTES)[LZMA_DICTIONARY], "little")


class ShortReads:
    """A file for the library of zip archives, which reads as much at once as a header says."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a directory of more than {MAX_DIRECTORY_BYTES:,} bytes")
        return self._stream.read(size)


def _goes_on(stream: io.BufferedIOBase) -> bool:
    """Whether more than padding is left. Reads all of it."""
    found = False
    while block := stream.read(1 << 20):
        found = found or bool(block.strip(b"\0"))
    return found


class SoundMember(io.RawIOBase):
    """A member as a stream that ends where it stops being sound."""

    def __init__(
        self, member: IO[bytes], budget: Budget | None = None, max_bytes: int | None = None
    ) -> None:
        self._member, self._budget, self._left_bytes = member, budget, max_bytes
        self.damage: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.damage:
            return 0
        try:
            data = self._member.read(min(len(buffer), PIECE_BYTES))
        except (*ZIP_TROUBLE, tarfile.TarError) as error:
            _require_no_disk_trouble(error)
            self.damage = type(error).__name__
            return 0
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                self.damage = f"it expands by more than {MAX_DEFLATE_RATIO:,} times"
                return 0
        if self._budget is not None:
            self._budget.left_bytes -= len(data)
            if self._budget.left_bytes < 0:
                self.damage = "archives in archives expand to more than they may"
                return 0
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Read what is left: checksums are at the end."""
        while self.read(1 << 20):
            pass


class _Names:
    """Names of members, each once: an archive may hold several members of one name."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def name(self, stored: str) -> str:
        steps = "/".join(_steps(stored))
        name = steps.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}#{self._seen[name]}"


def _require_no_disk_trouble(error: BaseException) -> None:
    """Raise what speaks of the disk and not of the archive."""
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise error


def _steps(name: str) -> list[str]:
    """Folders and name: `tar -c .` and others begin them with `./`. No file is written by them."""
    return [step for step in name.split("/") if step not in ("", ".")]


def _member_format(name: str, layout: Layout) -> Format | None:
    if layout.wanted is None:
        # What has no known name here is rarely text: pictures, models, programs.
        form = format_of(name)
    else:
        form = format_of(name, layout.format) if layout.wanted(name) else None
    hidden = any(step.startswith((".", "__MACOSX")) and step != ".." for step in _steps(name))
    return None if form is None or hidden else form
