"""How does a file on s3://, gs://, hf:// or http(s):// become a local one, once?

Listing asks the store for size and version (ETag, content digest or time of the last change). A file is fetched into the cache
under a name made of its address and version, so one that has not changed is not fetched again, and one that has does not take
the place of the old one. Fetching goes piece by piece into a `.part` file that the next attempt, or the next run, goes on with;
servers without ranges start anew. Whatever goes wrong is one ConfigError with the address and the reason.

Credentials and endpoints come from the environment, as fsspec's file systems find them (AWS_*, GOOGLE_APPLICATION_CREDENTIALS,
HF_TOKEN, FSSPEC_S3_ENDPOINT_URL …). Addresses get into records, so those that carry a secret are refused.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from llm_core.config import ConfigError
from tasks.readers.formats import format_of, known_formats

logger = logging.getLogger("tasks.remotefiles")
T = TypeVar("T")

EXTRAS: Mapping[str, str] = {"s3": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
"""Scheme → extra of this package that brings its file system; http(s) needs none."""
SCHEMES = ("http", "https", *EXTRAS)
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
ATTEMPTS = 4
FIRST_WAIT_S = 0.5


@dataclass(frozen=True)
class RemoteFile:
    """A file elsewhere: `address` with its scheme, `place` as a path below the scheme, to be named from."""

    address: str
    place: PurePosixPath


def is_remote(path: str) -> bool:
    """Whether an entry is an address rather than a path of this machine."""
    return "://" in path


def base_of(address: str) -> PurePosixPath:
    """The folder an address speaks of: itself where it ends in /, else what stands before its last name or first wildcard."""
    place = _place(address)
    if address.endswith("/"):
        return place
    steps = place.parts
    magic = next((i for i, step in enumerate(steps) if "*" in step or "[" in step), len(steps) - 1)
    return PurePosixPath(*steps[:magic])


def list_remote(address: str, where: str, form: str | None = None) -> tuple[list[RemoteFile], list[PurePosixPath]]:
    """The readable files that an address, a folder (ending in /) or a glob names, and the places of others. Raises ConfigError.

    form: the ending that names without a known one are taken to have.
    """
    system = _file_system(address, where)
    scheme = address.partition("://")[0]

    def look() -> list[str]:
        if "*" in address or "[" in address:
            return [str(p) for p in system.glob(address)]
        if address.endswith("/"):
            return [str(p) for p in system.find(address)]
        system.info(address)
        return [address]

    found = _patiently(look, address, where)
    named = [name if "://" in name else f"{scheme}://{name}" for name in found]
    if named == [address] and format_of(_place(address).name, form) is None:
        raise ConfigError(
            f"{where}.paths: {address} has no reader; say what it is with {where}.format; formats are {known_formats()}"
        )
    files = [RemoteFile(name, _place(name)) for name in named]
    read = [file for file in files if format_of(file.place.name, form)]
    if not read:
        raise ConfigError(f"{where}.paths: {address} names no file with a reader; formats are {known_formats()}")
    return read, [file.place for file in files if file not in read and not file.place.name.startswith(".")]


def look(file: RemoteFile, cache: Path, where: str) -> tuple[bool, int | None]:
    """Whether the file has to be fetched, and its bytes as far as its server says them. Raises ConfigError."""
    info, target = _look(_file_system(file.address, where), file, cache, where)
    return not (_version(info) and target.exists()), info.get("size")


def _look(system: Any, file: RemoteFile, cache: Path, where: str) -> tuple[Mapping[str, Any], Path]:
    """What the server says of the file, and where in the cache it is if it was fetched."""
    info = _patiently(lambda: system.info(file.address), file.address, where)
    return info, cache / f"{_digest(file.address, _version(info))}{''.join(file.place.suffixes[-2:])}"


def fetch(file: RemoteFile, cache: Path, where: str) -> Path:
    """The file as it is in the cache, fetched where it is not. Raises ConfigError."""
    system = _file_system(file.address, where)
    info, target = _look(system, file, cache, where)
    version = _version(info)
    if version and target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    size = info.get("size")
    logger.info("fetching %s%s", file.address, f", {size / 1e6:,.1f} MB" if size is not None else "")
    _patiently(lambda: _fetch_into(system, file.address, info, part), file.address, where)
    if size is not None and part.stat().st_size != size:
        part.unlink()
        raise ConfigError(f"{where}.paths: {file.address} has not the {size} bytes that its server says; run again")
    after = _patiently(lambda: _version(system.info(file.address)), file.address, where)
    if after != version:
        part.unlink()
        raise ConfigError(f"{where}.paths: {file.address} was changed while it was fetched; run again")
    os.replace(part, target)
    return target


def _fetch_into(system: Any, address: str, info: Mapping[str, Any], part: Path) -> None:
    """Append what is missing to `part`, or write all of it where it cannot be had in pieces."""
    size = info.get("size")
    if size is None or info.get("partial") is False:
        system.get_file(address, str(part))
        return
    with part.open("ab") as stream:
        while (begin := stream.tell()) < size:
            end = min(begin + PIECE_BYTES, size)
            piece = system.cat_file(address, start=begin, end=end)
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
            f"{where}.paths: {scheme}:// is not a place to read from; known: {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    parts = urlsplit(address)
    if parts.password or (parts.username and scheme.startswith("http")) or (scheme.startswith("http") and "?" in rest):
        shown = f"{scheme}://{parts.hostname}{parts.path}"
        raise ConfigError(
            f"{where}.paths: {shown} comes with a user, a password or a query, which would get into records; "
            "give credentials through the environment, or fetch the file yourself"
        )
    import fsspec

    try:
        # Listings must be of now: a process may outlive what it has once seen.
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        raise ConfigError(f"{where}.paths: {scheme}:// needs a package; pip install 'textmill[{EXTRAS[scheme]}]'") from error


def _place(address: str) -> PurePosixPath:
    """`/scheme/host/path`, with the escapes of an address undone."""
    scheme, _, rest = address.partition("://")
    path = unquote(rest) if scheme.startswith("http") else rest
    return PurePosixPath("/", scheme, *(step for step in path.split("/") if step))


def _patiently(action: Callable[[], T], address: str, where: str) -> T:
    """Do it, again after a while where the trouble may pass. Raises ConfigError of one line."""
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except _trouble() as error:
            reason, passes = _reason(error)
            if not passes or attempt == ATTEMPTS - 1:
                raise ConfigError(
                    f"{where}.paths: {address} cannot be read ({reason}); check the address and your credentials, "
                    "what is fetched is kept, run again"
                ) from error
            time.sleep(FIRST_WAIT_S * 2**attempt)
    raise AssertionError("unreachable")


def _trouble() -> tuple[type[BaseException], ...]:
    """What file systems raise; the packages behind them have their own families, met only where they are loaded."""
    kinds: list[type[BaseException]] = [OSError, TimeoutError]
    for module, names in (
        ("aiohttp", ("ClientError",)),
        ("botocore.exceptions", ("BotoCoreError", "ClientError")),
        ("gcsfs.retry", ("HttpError",)),
        ("google.auth.exceptions", ("GoogleAuthError",)),
        ("httpx", ("HTTPError",)),
        ("huggingface_hub.errors", ("HfHubHTTPError", "HFValidationError")),
    ):
        kinds += [getattr(sys.modules[module], name) for name in names if module in sys.modules]
    return tuple(kinds)


def _reason(error: BaseException) -> tuple[str, bool]:
    """What went wrong, in words that hold no address and no secret; and whether it may pass by itself."""
    causes = list(_causes(error))
    for cause in causes:
        status = getattr(cause, "status", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return f"HTTP status {status}", status >= 500 or status == 429
    for cause in causes:
        if isinstance(cause, (PermissionError, FileNotFoundError)) and cause is causes[-1]:
            return ("access is denied" if isinstance(cause, PermissionError) else "it is not there"), False
    last = causes[-1]
    if isinstance(last, OSError) and last.errno is not None and last.strerror:
        return os.strerror(last.errno) if last.errno > 0 else last.strerror, True
    return type(last).__name__, type(last).__name__ not in ("NoCredentialsError", "ClientError")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
