"""Repeats what a remote file system may manage later, and puts its errors into words.

The words hold no address and no secret: they get into logs and records.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

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
    "PartialCredentialsError": "a part of the credentials is missing",
    "ProfileNotFound": "AWS_PROFILE names no profile",
    "DefaultCredentialsError": "the credentials in GOOGLE_APPLICATION_CREDENTIALS are invalid",
    "NonRetryableError": "the credentials lack what is needed to renew them",
    "JSONDecodeError": "the answer is not that of a store",
    "RepositoryNotFoundError": "no such repository, or none that HF_TOKEN may see",
    "RevisionNotFoundError": "the repository has no such revision",
    "GatedRepoError": "its owner lets in those who asked on its page, with HF_TOKEN",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
    "SSLCertVerificationError": "its certificate is not trusted here",
}
"""Name of an error or its family → what it means; none of these passes by itself."""

PASSING_OF_BOTOCORE = frozenset(
    {
        "ChecksumError",
        "ConnectionError",
        "FlexibleChecksumError",
        "HTTPClientError",
        "IncompleteReadError",
        "MetadataRetrievalError",
    }
)
"""Families of errors on the way. All others come from credentials or settings, and do not pass."""

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

AGAIN_LATER = (408, 429)
"""Of the HTTP statuses below 500, those that ask for another attempt."""


def patiently(action: Callable[[], T], address: str, where: str) -> T:
    """Do it, again after a while where the trouble may pass. Raises ConfigError of one line, and
    OSError as it is where the cache cannot be written."""
    attempts = ATTEMPTS_OF_PATIENT if address.partition("://")[0] in PATIENT else ATTEMPTS
    for attempt in range(attempts):
        try:
            return action()
        except _trouble() as error:
            if _is_own_mistake(error) or _is_of_cache(error):
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


def _is_of_cache(error: BaseException) -> bool:
    """Whether the disk of the cache refused: only errors of this machine name a file."""
    return isinstance(error, OSError) and (
        (error.filename is not None and not isinstance(error, FileNotFoundError))
        or error.errno in DISK_IS_FULL
    )


def _reason(error: BaseException) -> tuple[str, bool]:
    """What went wrong, in words that hold no address and no secret; and whether it may pass by
    itself."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, (RefusedConnection, EndlessFolders)):
            return str(cause), False
        names = [kind.__name__ for kind in type(cause).__mro__]
        if words := next(filter(None, map(REASONS.get, names)), None):
            return words, False
        if "RefreshError" in names:
            return "Google does not renew the credentials", bool(getattr(cause, "retryable", False))
        if "BotoCoreError" in names and PASSING_OF_BOTOCORE.isdisjoint(names):
            return f"credentials, settings or address do not work: {names[0]}", False
    if "requester pays" in str(error):
        return "its readers pay; set FSSPEC_GS_REQUESTER_PAYS to your project", False
    # s3fs tells kinds of trouble apart, botocore has one kind for all.
    last = next((cause for cause in reversed(causes) if not _answer_of_botocore(cause)), error)
    if isinstance(last, PermissionError) or (
        type(last) is OSError and str(last).startswith("Forbidden")
    ):
        return f"access is denied{_code(causes)}", False
    if isinstance(last, FileNotFoundError):
        return "it is not there", False
    for status in map(_status, causes):
        if status is not None:
            passes = status >= 500 or status in AGAIN_LATER or isinstance(last, TimeoutError)
            return f"HTTP status {status}{_code(causes)}", passes
    if isinstance(last, OSError) and last.errno is not None and last.strerror:
        return os.strerror(last.errno) if last.errno > 0 else last.strerror, True
    # Complaints of headers quote them, and a header is where the secret is.
    if isinstance(last, (ValueError, NotImplementedError)) and "header" not in str(last).lower():
        return f"refused: {' '.join(str(last).split())[:200].rstrip('.')}", False
    return type(last).__name__, not isinstance(last, ValueError)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error tells of: aiohttp, gcsfs, httpx and botocore keep it in places
    of their own."""
    answer = getattr(error, "response", None)
    found = (
        getattr(error, "status", None),
        getattr(error, "code", None),
        getattr(answer, "status_code", None),
        _answer_of_botocore(error).get("HTTPStatusCode"),
    )
    return next((status for status in found if isinstance(status, int)), None)


def _code(causes: Iterable[BaseException]) -> str:
    """What S3 calls its refusal, such as InvalidAccessKeyId, in brackets; else nothing."""
    for cause in causes:
        if _answer_of_botocore(cause):
            code = str(cause.response.get("Error", {}).get("Code", ""))  # type: ignore[attr-defined]
            # A server may send anything for it.
            return f" ({code[:40]})" if code.isascii() and code.isalpha() else ""
    return ""


def _answer_of_botocore(error: BaseException) -> Mapping[str, Any]:
    answer = getattr(error, "response", None)
    return answer.get("ResponseMetadata", {}) if isinstance(answer, Mapping) else {}


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        # httpx does not say what it raises from.
        behind = seen.__context__ if isinstance(seen.__context__, OSError) else None
        seen = seen.__cause__ or behind
