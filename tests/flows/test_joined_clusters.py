"""Ray and Dask clusters that their own tools have started: joined, and never a run's to lose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.schemas.objects import StateType

from flows.services.access import HOST_NAMES
from flows.services.processes import descendants, free_port, start_time, stop
from tasks.runtime.code import ROOT
from tasks.runtime.prefect_tasks import ClusterExecutor
from tasks.runtime.stage import StageFailure
from tests.support.cluster_runs import CLUSTERS, refresh
from tests.support.whole_runs import contents, run

HOST = HOST_NAMES[0]
TOOLS = Path(sys.executable).parent


@contextmanager
def tool(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of Ray or Dask; whatever is left of it at the end is stopped."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}
    with log.open("ab") as stream:
        command = [str(TOOLS / words[0]), *words[1:]]
        process = subprocess.Popen(command, env=env, stdout=stream, stderr=stream, cwd=log.parent)
    try:
        yield process
    finally:
        stop(descendants([process.pid]), 10.0)
        process.wait()


def wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    from tasks.runtime.local_cluster import require_listener

    until = time.monotonic() + 240
    while True:
        try:
            return require_listener(f"{HOST}:{port}")
        except OSError:
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.2)


@contextmanager
def started(kind: str, folder: Path) -> Iterator[str]:
    """The address of a cluster of two workers."""
    port, log = free_port(), folder / f"{kind}.log"
    with ExitStack() as open_:
        if kind == "ray":
            words = ["start", "--head", "--block", f"--node-ip-address={HOST}", f"--port={port}"]
            words += ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
            words += ["--object-store-memory=80000000"]
            process = open_.enter_context(tool(log, "ray", *words))
            wait_until_listening(port, process, log)
            yield f"{HOST}:{port}"
            return
        words = ["scheduler", f"--host={HOST}", f"--port={port}", "--no-dashboard"]
        process = open_.enter_context(tool(log, "dask", *words))
        wait_until_listening(port, process, log)
        for _ in range(2):
            own = ["worker", f"tcp://{HOST}:{port}", "--no-nanny", "--nthreads=1", f"--host={HOST}"]
            open_.enter_context(tool(log, "dask", *own, "--no-dashboard"))
        yield f"tcp://{HOST}:{port}"


def log_and_die_once(number: int, folder: Path) -> int:
    """A part; the worker that has number 1 first is killed, as the system kills for memory."""
    first = folder / "died"
    if number == 1 and not first.exists():
        first.write_text(str(os.getpid()))
        time.sleep(1.0)  # until what this worker has done is fetched
        os.kill(os.getpid(), signal.SIGKILL)
    with (folder / "log").open("a") as log:
        log.write(f"{number}\n")
    return number * number


@pytest.fixture(scope="module")
def serial_run(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("serial")
    run("refresh", small_corpus, place, "num_workers=1")
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("kind", CLUSTERS)
def test_a_joined_cluster_gives_the_bytes_of_a_serial_run_and_a_killed_worker_costs_its_part(
    kind: str, small_corpus: Path, serial_run: Path, tmp_path: Path
) -> None:
    found = []

    @flow
    def parts(address: str) -> None:
        with ClusterExecutor(kind, address, 1) as cluster, cluster.executor() as executor:
            futures = [executor.submit(log_and_die_once, n, tmp_path) for n in range(6)]
            found.extend(future.result() for future in futures)

    with started(kind, tmp_path) as address:
        parts(address)
        assert found == [n * n for n in range(6)]
        assert start_time(int((tmp_path / "died").read_text())) is None
        done = (tmp_path / "log").read_text().split()
        assert sorted(done) == [str(n) for n in range(6)], "no other part was done again"
        state = refresh(
            small_corpus, tmp_path / "run", f"runner={kind}", f"runner_address={address}"
        )
        assert state.type is StateType.COMPLETED, state.message
        assert contents(tmp_path / "run") == contents(serial_run)


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("kind", CLUSTERS)
def test_a_cluster_that_is_away_is_one_line(kind: str) -> None:
    address = f"tcp://{HOST}:{free_port()}"

    @flow
    def part() -> None:
        with (
            ClusterExecutor(kind, address, 1) as cluster,
            cluster.executor() as executor,
            pytest.raises(StageFailure, match=f"{kind} cluster at {address} has failed .*refused"),
        ):
            executor.submit(abs, -1).result()

    began = time.monotonic()
    part()
    assert time.monotonic() - began < 20
