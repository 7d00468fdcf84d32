"""Fetches files from s3://, gs://, hf:// and http(s):// into a local cache, each version once.

Listing asks the store for size and version (ETag, content digest or time of the last change). A
file is fetched into the cache under a name made of its address and version, so one that has not
changed is not fetched again, and one that has does not take the place of the old one. Fetching goes
piece by piece into a `.part` file that the next attempt, or the next run, goes on with; servers
without ranges start anew. Whatever goes wrong is one ConfigError with the address and the reason.

Credentials and endpoints come from the environment, as fsspec's file systems find them (AWS_*,
GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST, HF_TOKEN, HF_ENDPOINT, FSSPEC_S3_ENDPOINT_URL
…). Addresses get into records, so those that carry a secret are refused.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from llm_core.config import ConfigError
from llm_core.printing import get_logger
from tasks.ingest.remotesystems import open_system
from tasks.ingest.retries import patiently
from tasks.readers.formats import COMPRESSIONS, format_of, known_formats

logger = get_logger("tasks.ingest.remotefiles")

EXTRAS: Mapping[str, str] = {"s3": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
"""Scheme → extra of this package that brings its file system; http(s) needs none."""
SCHEMES = ("http", "https", *EXTRAS)
WILDCARDS = frozenset("*?[")
VERSION_FIELDS = (
    "ETag",
    "etag",
    "Content-MD5",
    "Digest",
    "md5Hash",
    "blob_id",
    "Last-Modified",
    "LastModified",
    "updated",
    "mtime",
)
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file elsewhere: `address` with its scheme, `place` as a path below the scheme, to be named
    from."""

    address: str
    place: PurePosixPath
    system: Any = field(repr=False, compare=False)
    """The file system that has listed it. That of the hub remembers the listing, so only what was
    listed now may be used."""


def is_remote(path: str) -> bool:
    """Whether an entry is an address rather than a path of this machine."""
    return "://" in path


def base_of(address: str) -> PurePosixPath:
    """The folder an address speaks of: what stands before its first wildcard, else itself where it
    ends in /, else what stands before its last name."""
    steps = _place(address).parts
    end = len(steps) if address.endswith("/") else len(steps) - 1
    return PurePosixPath(
        *steps[: next((i for i, step in enumerate(steps) if WILDCARDS & set(step)), end)]
    )


def list_remote(
    address: str, where: str, form: str | None = None
) -> tuple[list[RemoteFile], list[PurePosixPath]]:
    """The readable files that an address, a folder (ending in /) or a glob names, and the places of
    others. Raises ConfigError.

    form: the ending that names without a known one are taken to have.
    """
    system = _file_system(address, where)
    if WILDCARDS & set(address):
        found = patiently(lambda: _match(system, address), address, where)
    elif address.endswith("/"):
        found = patiently(lambda: _below(system, address), address, where)
    elif patiently(lambda: system.info(address), address, where).get("type") == "directory":
        raise ConfigError(
            f"{where}.paths: {address} is a folder; write {address}/ for the files in it"
        )
    else:
        found = {address: True}
    if list(found) == [address] and format_of(_place(address).name, form) is None:
        raise ConfigError(
            f"{where}.paths: {address} has no reader; say what it is with {where}.format; formats"
            f" are {known_formats()}"
        )
    files = [RemoteFile(name, _place(name), system) for name in found]
    read = {file.address: file for file in files if format_of(file.place.name, form)}
    if not read:
        raise ConfigError(
            f"{where}.paths: {address} names no file with a reader; formats are {known_formats()}"
        )
    return list(read.values()), [file.place for file in files if file.address not in read]


def _match(system: Any, pattern: str) -> dict[str, bool]:
    """{address: whether it is named itself} of files that a glob names, or whose folder it names,
    or that have these very signs.

    As with those here, a wildcard stands for nothing hidden.
    """
    scheme, steps = pattern.partition("://")[0], len(base_of(pattern).parts)
    names_hidden = _is_hidden(_place(pattern), steps)
    entries: Mapping[str, Mapping[str, Any]] = system.glob(pattern, detail=True)
    found: dict[str, bool] = {}
    folders: tuple[str, ...] = ()
    for name in sorted(entries):
        address = name if "://" in name else f"{scheme}://{name}"
        if _is_hidden(_place(address), steps) and not names_hidden:
            continue
        if entries[name].get("type") != "directory":
            found[address] = True
        elif not address.startswith(folders):
            folders += (f"{address.rstrip('/')}/",)
            found = _below(system, folders[-1]) | found
    if not found and pattern.endswith("/"):
        return _below(system, pattern)
    return found or ({pattern: True} if system.isfile(pattern) else {})


def _below(system: Any, folder: str) -> dict[str, bool]:
    """{address: False} of files in a folder and those below it, without hidden ones and those that
    only stand for a folder."""
    scheme, steps = folder.partition("://")[0], len(_place(folder).parts)
    entries: Mapping[str, Mapping[str, Any]] = system.find(folder, detail=True)
    files = [
        name
        for name, info in entries.items()
        if info.get("type") != "directory" and not name.endswith("/")
    ]
    found = [name if "://" in name else f"{scheme}://{name}" for name in files]
    return {name: False for name in found if not _is_hidden(_place(name), steps)}


def _is_hidden(place: PurePosixPath, steps: int) -> bool:
    """Whether its name, or that of a folder after so many steps, begins with a dot."""
    return any(step.startswith(".") for step in place.parts[steps:])


def look(file: RemoteFile, cache: Path, where: str) -> tuple[bool, int | None]:
    """Whether the file has to be fetched, and its bytes as far as its server says them. Raises
    ConfigError."""
    info, target = _look(file, cache, where)
    return not (_version(info) and target.exists()), info.get("size")


def _look(file: RemoteFile, cache: Path, where: str) -> tuple[Mapping[str, Any], Path]:
    """What the server says of the file, and where in the cache it is if it was fetched."""
    info = patiently(lambda: file.system.info(file.address), file.address, where)
    return (
        info,
        cache / f"{_digest(file.address, _version(info))}{''.join(file.place.suffixes[-2:])}",
    )


def fetch(file: RemoteFile, cache: Path, where: str) -> Path:
    """The file as it is in the cache, fetched where it is not. Raises ConfigError."""
    info, target = _look(file, cache, where)
    version = _version(info)
    if version and target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with _alone_with(target.with_name(f"{target.name}.part")) as part:
        if version and target.exists():  # another run has fetched it meanwhile
            part.unlink()
            return target
        _fetch_version(file, info, part, where)
        if info.get("contentEncoding") == "gzip" and file.place.suffix not in COMPRESSIONS:
            _unpack(part, target, file.address, where)
        else:
            os.replace(part, target)
    return target


@contextmanager
def _alone_with(part: Path) -> Iterator[Path]:
    """Waits until no other run fetches into `part`, which is made where it is not."""
    while True:
        with part.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                is_there = os.path.samestat(os.fstat(lock.fileno()), part.stat())
            except FileNotFoundError:
                is_there = False
            if is_there:  # whoever held it may have moved it to its place
                yield part
                return


def _fetch_version(file: RemoteFile, info: Mapping[str, Any], part: Path, where: str) -> None:
    """Fetch what the server said that the file is. Raises ConfigError where it is another by
    now."""
    version, size = _version(info), info.get("size")
    logger.info(
        "fetching %s%s", file.address, f", {size / 1e6:,.1f} MB" if size is not None else ""
    )
    patiently(lambda: _fetch_into(file, info, part), file.address, where)
    if size is not None and part.stat().st_size != size:
        part.unlink()
        raise ConfigError(
            f"{where}.paths: {file.address} has not the {size} bytes that its server says; run"
            " again"
        )
    anew = {"refresh": True, "expand_info": True} if _is_hub(file.address) else {}
    after = patiently(lambda: _version(file.system.info(file.address, **anew)), file.address, where)
    if after != version:
        part.unlink()
        raise ConfigError(
            f"{where}.paths: {file.address} was changed while it was fetched; run again"
        )


def _unpack(part: Path, target: Path, address: str, where: str) -> None:
    """Undo what a store has been told to undo for those who read it (Content-Encoding); pieces come
    as they are stored."""
    plain = part.with_name(f"{part.name}.plain")
    try:
        with gzip.open(part) as packed, plain.open("wb") as stream:
            shutil.copyfileobj(packed, stream, 1 << 20)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        plain.unlink()
        part.unlink()
        raise ConfigError(
            f"{where}.paths: {address} is not valid gzip, although its Content-Encoding says so;"
            " fix it"
        ) from error
    os.replace(plain, target)
    part.unlink()


def _fetch_into(file: RemoteFile, info: Mapping[str, Any], part: Path) -> None:
    """Append what is missing to `part`, or write all of it where the server does not send
    pieces."""
    size = info.get("size")
    if size is None or info.get("partial") is False:
        file.system.get_file(file.address, str(part))
        return
    exactly = (
        {"cache_type": "none"} if _is_hub(file.address) else {}
    )  # else it reads ahead, by five megabytes a piece
    with part.open("ab") as stream:
        while (begin := stream.tell()) < size:
            end = min(begin + PIECE_BYTES, size)
            piece = file.system.cat_file(file.address, start=begin, end=end, **exactly)
            if len(piece) > end - begin:  # the server knows no ranges and has sent everything
                stream.truncate(0)
                stream.seek(0)
            elif len(piece) < end - begin:
                raise ConnectionError("the answer was cut off")
            stream.write(piece)
            stream.flush()
        os.fsync(stream.fileno())


def _version(info: Mapping[str, Any]) -> str:
    """What tells one content of an address from the next; empty where the server says nothing."""
    known = [f"{name}={info[name]}" for name in VERSION_FIELDS if info.get(name)]
    return "\0".join([*known, f"size={info.get('size')}"]) if known else ""


def _digest(address: str, version: str) -> str:
    return hashlib.blake2b(f"{address}\0{version}".encode(), digest_size=16).hexdigest()


def _file_system(address: str, where: str) -> Any:
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{where}.paths: {scheme}:// is not a place to read from; known:"
            f" {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    parts = urlsplit(address)
    if (
        parts.password
        or (parts.username and scheme.startswith("http"))
        or (scheme.startswith("http") and "?" in rest)
    ):
        shown = f"{scheme}://{parts.hostname}{parts.path}"
        raise ConfigError(
            f"{where}.paths: {shown} comes with a user, a password or a query, which would get into"
            " records; give credentials through the environment, or fetch the file yourself"
        )
    try:
        return patiently(lambda: open_system(address), address, where)
    except ImportError as error:
        raise ConfigError(
            f"{where}.paths: {scheme}:// needs a package; pip install 'textmill[{EXTRAS[scheme]}]'"
        ) from error


def _is_hub(address: str) -> bool:
    return address.startswith("hf://")


def _place(address: str) -> PurePosixPath:
    """`/scheme/host/path`, with the escapes of an address undone."""
    scheme, _, rest = address.partition("://")
    path = unquote(rest) if scheme.startswith("http") else rest
    return PurePosixPath("/", scheme, *(step for step in path.split("/") if step))
