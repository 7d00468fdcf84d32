"""A folder of suites, and a small run to score them with."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.data import written_suites
from tests.support.data.trained_run import Run, make_run

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("small_run"))


@pytest.fixture
def write_suite(tmp_path: Path) -> Write:
    """(name, records, **lines of suite.yaml) → the folder."""
    return partial(written_suites.write_suite, tmp_path / "suites")
