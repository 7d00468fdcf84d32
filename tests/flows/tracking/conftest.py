"""One tracking database for the tests of a process, and an experiment for each test."""

from __future__ import annotations

import pytest

from flows.tracking.runs import default_uri
from tests.support.tracked_runs import Tracked


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shared, because the migrations of a new one take seconds."""
    return default_uri(tmp_path_factory.mktemp("tracking"))


@pytest.fixture
def tracked(database: str, request: pytest.FixtureRequest) -> Tracked:
    return Tracked(database, request.node.name)


@pytest.fixture
def overrides(tracked: Tracked, database: str) -> list[str]:
    return [f"tracking.uri={database}", f"tracking.experiment='{tracked.experiment}'"]
