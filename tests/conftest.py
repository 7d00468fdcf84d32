"""Groups the tests that share a process: those of a file, and those that would compile the same
kernels or make the same runs twice. No test has a time limit of milliseconds: on a busy machine any
example takes longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.whole_runs import make_corpus, run

hypothesis.settings.register_profile("busy machines", deadline=None)
hypothesis.settings.load_profile("busy machines")

SHARE = {
    "whole runs": ("test_determinism", "test_kill_and_resume", "test_readme", "test_damaged_runs"),
    "pii": (
        "test_pii",
        "test_scrub",
        "test_documents",
        "test_edits",
        "test_evaluate",
        "test_phones",
        "test_hostile.",
    ),
    "features": ("test_quality", "test_replay", "test_features", "test_scan", "test_analysis"),
    "dedup": (
        "test_dedup",
        "test_cuts",
        "test_repeated_pieces",
        "test_near_duplicates",
        "test_minhash",
        "test_datasketch",
        "test_planted",
    ),
}


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "corpus")


@pytest.fixture(scope="session")
def plain_run(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run up to training, by one worker, that nothing disturbs: others are held against it."""
    place = tmp_path_factory.mktemp("plain")
    run("train", small_corpus, place, "num_workers=1", PYTHONHASHSEED="0")
    return place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: a long one at the end would leave the other processes without work."""
    items.sort(key=lambda item: len(item.path.parts))


# pytest-xdist's own groups are written into the names of tests, which pytest 9.2 no longer lets it
# do.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def group(nodeid: str) -> str:
    file = nodeid.split("::", 1)[0]
    groups = [name for name, files in SHARE.items() if Path(file).name.startswith(files)]
    return groups[0] if groups else file
