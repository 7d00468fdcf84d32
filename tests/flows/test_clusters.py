"""Parts of stages on real Ray and Dask clusters of this machine: the same bytes, every part a
Prefect task."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import distributed
import pytest
from prefect import flow
from prefect.client.schemas.objects import StateType

from flows.compose import compose
from flows.services.access import answers
from flows.services.processes import descendants
from llm_core.config import ConfigError
from tasks.runtime.local_cluster import RAY, local_cluster
from tasks.runtime.prefect_tasks import ClusterExecutor
from tasks.runtime.stage import StageFailure
from tests.support.cluster_runs import CLUSTERS, refresh
from tests.support.whole_runs import contents, make_corpus, run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("clusters") / "corpus")


@pytest.fixture(scope="module")
def serial_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("serial")
    run("refresh", corpus, place, "num_workers=1")
    return place


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-9f2c",
    "HF_TOKEN": "planted-hub-9f2c",
    "MLFLOW_TRACKING_PASSWORD": "planted-tracking-9f2c",
    "PREFECT_API_KEY": "planted-cloud-9f2c",
    "https_proxy": "http://me:planted-proxy-9f2c@proxy:3128",
}


@contextmanager
def watched_environments() -> Iterator[dict[int, str]]:
    """{process: its environment} of all that this process starts meanwhile, as the system shows it
    to others."""
    seen: dict[int, str] = {}
    ended = threading.Event()
    before = descendants([os.getpid()])

    def watch() -> None:
        while not ended.wait(0.2):
            for pid in set(descendants([os.getpid()])).difference(before):
                try:
                    seen[pid] = Path(f"/proc/{pid}/environ").read_text("utf-8", "replace")
                except OSError:  # ended meanwhile
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_cluster_gives_the_bytes_of_a_serial_run_and_no_worker_has_a_secret(
    runner: str,
    corpus: Path,
    serial_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with watched_environments() as seen:
        state = refresh(corpus, tmp_path, f"runner={runner}")
    assert state.type is StateType.COMPLETED, state.message
    assert contents(tmp_path) == contents(serial_run)
    assert len(seen) > 3, "a host, and at least two workers"
    assert {pid: shown for pid, shown in seen.items() if "9f2c" in shown} == {}


def own_environment() -> str:
    return Path("/proc/self/environ").read_text("utf-8", "replace")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_workers_of_a_cluster_have_the_variables_that_parts_name_while_they_are_needed(
    runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    shown = []

    @flow
    def ask() -> None:
        with ClusterExecutor(runner, None, 1) as cluster:
            for names in ((), ("HF_TOKEN",), ()):
                with cluster.executor(*names) as executor:
                    shown.append(executor.submit(own_environment).result())

    ask()
    planted = [[line for line in text.split("\0") if "9f2c" in line] for text in shown]
    assert planted == [[], [f"HF_TOKEN={SECRETS['HF_TOKEN']}"], []]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system lists no sockets")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_a_local_cluster_listens_on_loopback_only(
    runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RAY.items():
        monkeypatch.setenv(name, value)
    before = set(descendants([os.getpid()]))
    with local_cluster(runner, 1) as (address, _):
        assert "127.0.0.1:" in address
        started = set(descendants([os.getpid()])) - before
        addresses = {place for pid in started for place in listening(pid)}
    assert addresses and addresses <= {LOOPBACK, LOOPBACK_IN_IPV6}
    assert set(descendants([os.getpid()])) <= before, "nothing is left"


def test_a_cluster_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.runtime.local_cluster.sys.executable", "/bin/false")
    with (
        pytest.raises(StageFailure, match="ended with code 1 .*; use runner=process"),
        local_cluster("dask", 1),
    ):
        pass


LOOPBACK, LOOPBACK_IN_IPV6 = "0100007F", "0000000000000000FFFF00000100007F"
"""As the kernel writes 127.0.0.1 and ::ffff:127.0.0.1."""


def listening(pid: int) -> Iterator[str]:
    """Addresses on which a process listens, as the kernel writes them."""
    try:
        own = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # ended meanwhile
        return
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                yield fields[1].rpartition(":")[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("runner", CLUSTERS)
def test_what_breaks_a_part_on_a_cluster_is_the_message_of_the_run(
    runner: str, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("a", "b"):
        (corpus / f"{name}.jsonl").write_text('{"text": null}\n')
    state = refresh(corpus, tmp_path / "place", f"runner={runner}")
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
    with local_cluster("dask", 1) as (address, security):
        with distributed.Client(address, security=security, timeout=60) as client:
            assert client.submit(abs, -1).result() == 1
            port = client.scheduler_info()["services"]["dashboard"]
        web = f"http://127.0.0.1:{port}"
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
