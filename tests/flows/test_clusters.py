"""Parts of stages on real Ray and Dask clusters of this machine: the same bytes, every part a Prefect task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType

from flows.config import compose
from llm_core.config import ConfigError
from tests.whole_runs import contents, make_corpus, run

CLUSTERS = [
    "dask",
    pytest.param("ray", marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="prefect-ray has no release for it")),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("clusters") / "corpus")


@pytest.fixture(scope="module")
def serial_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("serial")
    run("refresh", corpus, place, "num_workers=1")
    return place


def refresh(corpus: Path, place: Path, *overrides: str) -> Any:
    from flows.refresh import refresh
    from tests.whole_runs import SMALL

    places = [f"source.paths=['{corpus}']", f"store='{place / 'store'}'", f"state='{place / 'state'}'"]
    kept = [o for o in SMALL if not o.startswith("orchestrator=")]
    return refresh(overrides=[*kept, *places, "num_workers=2", *overrides], return_state=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_cluster_gives_the_bytes_of_a_serial_run(runner: str, corpus: Path, serial_run: Path, tmp_path: Path) -> None:
    state = refresh(corpus, tmp_path, f"runner={runner}")
    assert state.type is StateType.COMPLETED, state.message
    assert contents(tmp_path) == contents(serial_run)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_what_breaks_a_part_on_a_cluster_is_the_message_of_the_run(runner: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": null}\n')
    state = refresh(tmp_path, tmp_path / "place", f"runner={runner}")
    assert state.type is StateType.FAILED
    assert "none of 2 records is left" in str(state.message)


def test_cluster_without_prefect_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="use orchestrator=prefect, or runner=process"):
        compose(["runner=ray", "orchestrator=none"])
    with pytest.raises(ConfigError, match="add runner=ray or runner=dask"):
        compose(["runner_address=tcp://head:8786"])
