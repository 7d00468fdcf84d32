"""Parts of stages on real Ray and Dask clusters of this machine: the same bytes, every part a
Prefect task."""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import distributed
import pytest
from prefect.client.schemas.objects import StateType

from flows.compose import compose
from flows.services.access import answers
from llm_core.config import ConfigError
from tasks.runtime.prefect_tasks import ClusterExecutor
from tests.support.whole_runs import contents, make_corpus, run

CLUSTERS = [
    "dask",
    pytest.param(
        "ray",
        marks=pytest.mark.skipif(
            sys.version_info >= (3, 13), reason="prefect-ray has no release for it"
        ),
    ),
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
    from flows.pipeline import refresh
    from tests.support.whole_runs import SMALL

    places = [
        f"source.paths=['{corpus}']",
        f"store='{place / 'store'}'",
        f"state='{place / 'state'}'",
    ]
    kept = [o for o in SMALL if not o.startswith("orchestrator=")]
    return refresh(overrides=[*kept, *places, "num_workers=2", *overrides], return_state=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_cluster_gives_the_bytes_of_a_serial_run(
    runner: str, corpus: Path, serial_run: Path, tmp_path: Path
) -> None:
    state = refresh(corpus, tmp_path, f"runner={runner}")
    assert state.type is StateType.COMPLETED, state.message
    assert contents(tmp_path) == contents(serial_run)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_what_breaks_a_part_on_a_cluster_is_the_message_of_the_run(
    runner: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": null}\n')
    state = refresh(tmp_path, tmp_path / "place", f"runner={runner}")
    assert state.type is StateType.FAILED
    assert "none of 2 records is left" in str(state.message)


def says_nothing_without_certificate(address: str) -> bool:
    """Whether a server of TLS answers no program that shows none."""
    host, _, port = address.removeprefix("tls://").partition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        try:
            with context.wrap_socket(connection) as wrapped:
                return not wrapped.recv(1)
        except (ssl.SSLError, ConnectionError):
            return True


def test_a_local_dask_scheduler_takes_work_from_its_own_run_only() -> None:
    executor = ClusterExecutor("dask", None, 1)
    with executor, executor._make_task_runner() as runner:
        cluster: Any = runner.client.cluster  # type: ignore[attr-defined]
        address, web = (
            cluster.scheduler_address,
            f"http://127.0.0.1:{cluster.scheduler.http_server.port}",
        )
        with distributed.Client(address, security=cluster.security, timeout=60) as client:
            assert client.submit(abs, -1).result() == 1
        with pytest.raises(OSError):
            distributed.Client(address, security=distributed.Security.temporary(), timeout=3)
        assert says_nothing_without_certificate(address)
        assert answers(f"{web}/health")
        assert not answers(f"{web}/info/main/workers.html") and not answers(
            f"{web}/json/counts.json"
        )


def test_cluster_without_prefect_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="use orchestrator=prefect, or runner=process"):
        compose(["runner=ray", "orchestrator=none"])
    with pytest.raises(ConfigError, match="add runner=ray or runner=dask"):
        compose(["runner_address=tcp://head:8786"])
