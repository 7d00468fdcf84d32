"""Repeats what a remote file system may manage later, and puts its errors into words.

The words hold no address and no secret: they get into logs and records.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from llm_core.config import ConfigError
from tasks.ingest.remotesystems import EndlessFolders, RefusedConnection

T = TypeVar("T")

ATTEMPTS = 4

PATIENT = ("gs", "gcs")
"""Schemes whose file system tries everything six times itself, for half a minute."""

ATTEMPTS_OF_PATIENT = 2

FIRST_WAIT_S = 0.5

REASONS: Mapping[str, str] = {
    "NoCredentialsError": "no credentials were found",
    "JSONDecodeError": "the answer is not that of a store",
    "RepositoryNotFoundError": "no such repository, or none that HF_TOKEN may see",
    "RevisionNotFoundError": "the repository has no such revision",
    "GatedRepoError": "its owner lets in those who asked on its page, with HF_TOKEN",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
}
"""Name of an error → what it means; none of these passes by itself."""


def patiently(action: Callable[[], T], address: str, where: str) -> T:
    """Do it, again after a while where the trouble may pass. Raises ConfigError of one line."""
    attempts = ATTEMPTS_OF_PATIENT if address.partition("://")[0] in PATIENT else ATTEMPTS
    for attempt in range(attempts):
        try:
            return action()
        except _trouble() as error:
            if _is_own_mistake(error):
                raise
            reason, passes = _reason(error)
            if not passes or attempt == attempts - 1:
                raise ConfigError(
                    f"{where}.paths: {address} cannot be read ({reason}); check the address and"
                    " your credentials, what is fetched is kept, run again"
                ) from error
            time.sleep(FIRST_WAIT_S * 2**attempt)
    raise AssertionError("unreachable")


def _trouble() -> tuple[type[BaseException], ...]:
    """What file systems raise; the packages behind them have their own families, met only where
    they are loaded."""
    kinds: list[type[BaseException]] = [OSError, ValueError, NotImplementedError, EndlessFolders]
    for module, names in (
        ("aiohttp", ("ClientError",)),
        ("botocore.exceptions", ("BotoCoreError", "ClientError")),
        ("gcsfs.retry", ("HttpError", "ChecksumError", "NonRetryableError")),
        ("google.auth.exceptions", ("GoogleAuthError",)),
        ("httpx", ("HTTPError",)),
        ("httpx2", ("HTTPError",)),
    ):
        kinds += [
            kind for name in names if (kind := getattr(sys.modules.get(module), name, None))
        ]  # not all versions have all
    return tuple(kinds)


def _is_own_mistake(error: BaseException) -> bool:
    """Whether a refusal of values, which some file systems say so, comes from this package's own
    code."""
    if isinstance(error, OSError) or not isinstance(error, (ValueError, NotImplementedError)):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("tasks.")


def _reason(error: BaseException) -> tuple[str, bool]:
    """What went wrong, in words that hold no address and no secret; and whether it may pass by
    itself."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, (RefusedConnection, EndlessFolders)):
            return str(cause), False
        if words := REASONS.get(type(cause).__name__):
            return words, False
    if "requester pays" in str(error):
        return "its readers pay; set FSSPEC_GS_REQUESTER_PAYS to your project", False
    for cause in causes:
        answer = getattr(cause, "response", None)
        for status in (
            getattr(cause, "status", None),
            getattr(cause, "code", None),
            getattr(answer, "status_code", None),
        ):
            if isinstance(status, int):
                return f"HTTP status {status}", status >= 500 or status == 429
    last = causes[-1]
    if isinstance(last, PermissionError) or (
        type(last) is OSError and str(last).startswith("Forbidden")
    ):
        return "access is denied", False
    if isinstance(last, FileNotFoundError):
        return "it is not there", False
    if isinstance(last, OSError) and last.errno is not None and last.strerror:
        return os.strerror(last.errno) if last.errno > 0 else last.strerror, True
    # Complaints of headers quote them, and a header is where the secret is.
    if isinstance(last, (ValueError, NotImplementedError)) and "header" not in str(last).lower():
        return f"refused: {' '.join(str(last).split())[:200].rstrip('.')}", False
    return (
        type(last).__name__,
        not isinstance(last, ValueError) and type(last).__name__ != "ClientError",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        behind = (
            seen.__context__ if isinstance(seen.__context__, OSError) else None
        )  # httpx does not say what it raises from
        seen = seen.__cause__ or behind
