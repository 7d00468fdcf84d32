from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.shared.store import SharedStore
from tests.support.buckets import BUCKET, served_bucket

Machine = Callable[..., SharedStore]
NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def bucket() -> Iterator[Any]:
    with served_bucket() as client:
        yield client


@pytest.fixture
def url(bucket: Any) -> str:
    """Of a store of the test's own."""
    return f"s3://{BUCKET}/team/{next(NUMBERS)}"


@pytest.fixture
def machine(url: str, tmp_path: Path) -> Machine:
    """The store as a machine of this name sees it."""
    return lambda name, lease_s=90.0: SharedStore(tmp_path / name, url, lease_s)
