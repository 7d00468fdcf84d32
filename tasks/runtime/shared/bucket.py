"""Reads and writes objects below one address, s3://bucket/prefix, with conditional puts.

A put may name what it replaces: nothing, or the version with a certain ETag. The server decides
among several writers, so neither a lock nor a rename is needed. Credentials and endpoint come from
the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL …), as s3fs finds them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError

URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]+)(/[^\s?#@]+)?/?")
NUM_TRANSFERS = 8
"""Files that are transferred at once."""
LOST = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "404", "409", "412"}
"""Answers to a conditional request whose condition does not hold."""
MOST_REMOVED = 1000
"""Objects that one request can remove."""


@dataclass(frozen=True)
class Head:
    """What a server says about one object."""

    etag: str
    size: int
    modified: datetime
    age_s: float
    """By the server's clock."""
    said: Mapping[str, str]
    """Texts that were put with it."""


class Bucket:
    """Objects below an address; names are relative to it. Raises ConfigError, with the address and
    the reason, where the server cannot be used."""

    def __init__(self, url: str) -> None:
        match = URL.fullmatch(url)
        if match is None:
            raise ConfigError(
                f"shared ({url}) must be an address such as s3://bucket/prefix; other object stores"
                " are not supported"
            )
        self.url = url.rstrip("/")
        self._bucket, self._prefix = match[1], f"{(match[2] or '').strip('/')}/".lstrip("/")

    @cached_property
    def _system(self) -> Any:
        try:
            from s3fs import S3FileSystem
        except ImportError as error:
            raise ConfigError(f"{self.url} needs s3fs; install textmill[s3]") from error
        return S3FileSystem(use_listings_cache=False)

    def head(self, name: str) -> Head | None:
        with self._explained():
            try:
                found = self._call("head_object", name)
            except FileNotFoundError:
                return None
            now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
            modified = found["LastModified"]
            age_s = (now - modified).total_seconds()
            return Head(
                found["ETag"], found["ContentLength"], modified, age_s, found.get("Metadata", {})
            )

    def read(self, name: str) -> bytes | None:
        with self._explained():
            try:
                return bytes(self._system.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def put(
        self, name: str, data: bytes, over: str | None, said: Mapping[str, str] | None = None
    ) -> str | None:
        """The ETag of the new object; None where what is there is not what it may replace.

        over: ETag of what it replaces; None where nothing may be there.
        said: texts in ASCII that `head` gives back.
        """
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        with self._explained():
            try:
                made = self._call(
                    "put_object", name, Body=data, Metadata=dict(said or {}), **condition
                )
            except OSError as error:
                if _code(error) in LOST:
                    return None
                raise
            return str(made["ETag"])

    def overwrite(self, name: str, data: bytes) -> None:
        with self._explained():
            self._call("put_object", name, Body=data)

    def send(self, files: Mapping[str, Path]) -> None:
        """Put files, by the names of their objects."""
        with self._explained(), ThreadPoolExecutor(NUM_TRANSFERS) as pool:
            put = self._system.put_file
            list(pool.map(lambda name: put(str(files[name]), self._path(name)), files))

    def fetch(self, files: Mapping[str, Path]) -> None:
        """Write objects into files, by their names; one that is gone leaves no file."""

        def get(name: str) -> None:
            with suppress(FileNotFoundError):
                self._system.get_file(self._path(name), str(files[name]))

        with self._explained(), ThreadPoolExecutor(NUM_TRANSFERS) as pool:
            list(pool.map(get, files))

    def below(self, folder: str) -> dict[str, int]:
        """{name: bytes} of every object whose name begins with a folder and a slash."""
        with self._explained():
            found = self._system.find(self._path(folder), detail=True)
        return {self._name(path): entry["size"] for path, entry in found.items()}

    def listed(self, folder: str) -> dict[str, datetime]:
        """{name: time of the last change} of the objects right in a folder."""
        with self._explained():
            try:
                found = self._system.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {self._name(e["name"]): e["LastModified"] for e in found if e["type"] != "directory"}

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; those that are gone already do not count as errors."""
        with self._explained():
            for first in range(0, len(names), MOST_REMOVED):
                some = [{"Key": self._prefix + n} for n in names[first : first + MOST_REMOVED]]
                answer = self._system.call_s3(
                    "delete_objects", Bucket=self._bucket, Delete={"Objects": some, "Quiet": True}
                )
                # The request succeeds although single objects may be refused.
                for refused in answer.get("Errors", ()):
                    raise ConfigError(
                        f"{self.url}: {refused.get('Key')} was not removed"
                        f" ({refused.get('Code')}); check that the credentials may delete objects"
                    )

    def remove_version(self, name: str, etag: str) -> None:
        """Remove an object unless it was replaced or is gone."""
        with self._explained():
            try:
                self._call("delete_object", name, IfMatch=etag)
            except OSError as error:
                if _code(error) not in LOST:
                    raise

    def _call(self, method: str, name: str, **arguments: Any) -> Any:
        key = self._prefix + name
        return self._system.call_s3(method, Bucket=self._bucket, Key=key, **arguments)

    def _path(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{name}"

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._bucket}/{self._prefix}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the server or the network raises into one ConfigError."""
        try:
            yield
        except FileNotFoundError as error:
            if _code(error) != "NoSuchBucket":
                raise
            raise ConfigError(f"{self.url}: there is no such bucket; create it first") from error
        except Exception as error:
            # Botocore's own errors share no base with those that s3fs makes of answers.
            if not (isinstance(error, OSError) or type(error).__module__.startswith("botocore")):
                raise
            if isinstance(error, OSError) and error.filename and os.path.exists(error.filename):
                raise  # a file of this machine
            raise ConfigError(
                f"{self.url} cannot be used ({type(error).__name__}: {error}); check the address,"
                " the credentials and the network; finished work is kept, run again"
            ) from error


def _code(error: BaseException) -> str:
    """What the server called an error; empty where no server did."""
    answer: Mapping[str, Any] = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
