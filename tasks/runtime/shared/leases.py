"""Grants leases: all machines know which run works on what, by an object that its holder renews.

A lease is an object made by a conditional put, so only one of several runs gets it. Its holder
replaces it several times before it expires. A run that finds it unchanged for longer takes it over,
by a put over the version that it found, so again only one of several does. Ages are by the server's
clock, so machines may disagree about the time. A lease saves work and guards nothing: a holder that
was suspended and has lost it may continue, and its result meets the conditional put of the record
(`tasks.runtime.shared.store`).
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llm_core.config import ConfigError
from llm_core.printing import get_logger
from tasks.runtime.shared.bucket import Bucket, Head

logger = get_logger("tasks.runtime.shared.leases")

LEASE_S = 90.0
"""Time without renewal after which a lease expires."""
RENEWALS = 4
"""Renewals within that time."""


@contextmanager
def held(
    bucket: Bucket, name: str, waiting: Callable[[str], None], lease_s: float = LEASE_S
) -> Iterator[None]:
    """Hold the lease `name` while the block runs. Waits for its holder; `waiting` is told its
    name, once."""
    lease = _Lease(bucket, name, lease_s)
    told = False
    while (holder := lease.take()) is not None:
        if not told:
            waiting(holder)
            told = True
        time.sleep(lease_s / RENEWALS / 4)
    with lease.renewed():
        yield


@contextmanager
def held_if_free(bucket: Bucket, name: str, lease_s: float = LEASE_S) -> Iterator[bool]:
    """Hold the lease `name` while the block runs, where nobody else does; whether that is so."""
    lease = _Lease(bucket, name, lease_s)
    if lease.take() is not None:
        yield False
        return
    with lease.renewed():
        yield True


class _Lease:
    """A lease as one holder sees it."""

    def __init__(self, bucket: Bucket, name: str, lease_s: float) -> None:
        self._bucket, self._name, self._lease_s = bucket, name, lease_s
        self._token, self._etag, self._beat = uuid.uuid4().hex, "", 0
        self._owner = f"process {os.getpid()} on {platform.node()}"

    def take(self) -> str | None:
        """Become the holder. Returns the name of the current one where that is not possible."""
        found = self._bucket.head(self._name)
        if found and not _has_ended(found):
            return found.said.get("owner", "another run")
        etag = self._put(over=found.etag if found else None)
        if etag is None:
            return "another run"
        self._etag = etag
        return None

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease while the block runs, then release it."""
        done = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            if self._etag:
                try:
                    self._bucket.remove_version(self._name, self._etag)
                except ConfigError as error:
                    # It expires by itself; what was done under it is complete.
                    logger.warning("the lease on %s was not released: %s", self._name, error)

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(self._lease_s / RENEWALS):
            try:
                etag = self._put(over=self._etag)
            except ConfigError as error:
                # Tried again: the network may be back before the lease expires.
                logger.warning("the lease on %s was not renewed: %s", self._name, error)
                continue
            self._etag = etag or ""
            if etag is None:
                logger.warning("the lease on %s was taken over by another run", self._name)
                return

    def _put(self, over: str | None) -> str | None:
        # Content that never repeats: the ETag of equal content would be equal too.
        self._beat += 1
        body = f"{self._owner} {self._token} {self._beat}\n".encode()
        said = {"owner": self._owner, "token": self._token, "lease-s": str(self._lease_s)}
        if (etag := self._bucket.put(self._name, body, over, said)) is not None:
            return etag
        # A request that is sent again after its answer was lost meets its own object.
        found = self._bucket.head(self._name)
        return found.etag if found and found.said.get("token") == self._token else None


def _has_ended(found: Head) -> bool:
    return found.age_s > float(found.said.get("lease-s", LEASE_S))
