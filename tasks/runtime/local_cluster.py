"""Runs a Ray or Dask cluster on this machine, whose processes have no secrets in their environment.

Both libraries give workers the environment of the process that starts them, also when one that died
is replaced much later. So a process of its own starts the cluster, with the minimal environment and
the settings of Prefect and the libraries. It ends with the process that uses the cluster. Prefect
itself sends its settings, with its password, along with every task.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_core.process import describe_end
from tasks.runtime.environment import CONNECTION, minimal_environment
from tasks.runtime.stage import StageFailure

START_LIMIT_S = 300.0
STOP_LIMIT_S = 30.0
CONNECT_LIMIT_S = 10.0
LOOPBACK = "127.0.0.1"

CERTIFICATES = (
    "tls_ca_file",
    *(
        f"tls_{role}_{part}"
        for role in ("client", "scheduler", "worker")
        for part in ("key", "cert")
    ),
)
"""Fields of Dask's `Security` that hold a key or a certificate."""

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A cluster runs any code for whoever reaches it, so a token is required.
    "RAY_AUTH_MODE": "token",
    # Otherwise a local cluster listens on the network, whatever address it is given.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""What both ends of a Ray cluster of this machine need, before Ray is imported."""


def cluster_environment(*variables: str) -> dict[str, str]:
    """What the processes of a cluster get, and `variables`, which its parts ask for by name."""
    own = [name for name in os.environ if name.startswith("RAY_")]  # its token among them
    settings = ("PREFECT_", "DASK_", "DO_NOT_TRACK", *CONNECTION)
    return minimal_environment(*own, *variables, settings=settings)


@contextmanager
def local_cluster(
    kind: str, num_workers: int, variables: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """The address of a new cluster on loopback, and for Dask the certificates that clients need.

    Its workers get `variables` of the environment.

    Raises StageFailure where it does not start.
    """
    security = None
    certificates: dict[str, str] = {}
    if kind == "dask":
        from distributed import Security

        # A scheduler runs whatever code it is sent. Certificates of this run alone keep other users
        # of this machine out.
        security = Security.temporary()
        certificates = {name: getattr(security, name) for name in CERTIFICATES}
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).resolve().parents[2])
    paths = dict.fromkeys([root, *(path for path in sys.path if path)])
    environment = {**cluster_environment(*variables), "PYTHONPATH": os.pathsep.join(paths)}
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tasks.runtime.local_cluster", str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is for the result of the run
                pass_fds=[theirs.fileno()],
                # Ctrl-C is ours: the cluster is needed until the tasks have been told.
                start_new_session=True,
            )
        address = ""
        try:
            address = _ask(ours, [kind, num_workers, certificates])
            if not address:
                raise StageFailure(f"{_failure(kind, process)}; use runner=process")
            yield address, security
        finally:
            ours.close()
            _end(process, STOP_LIMIT_S if address else 0.0)


def has_ray_token() -> bool:
    """Whether there is a token for Ray clusters, where Ray looks for one."""
    given = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return given or (Path.home() / ".ray" / "auth_token").exists()


def require_listener(address: str) -> None:
    """Raise OSError at once where nothing listens at the address of a cluster: the libraries retry
    for half a minute, and print meanwhile. An address without a port is left to them."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname and place.port:
        with socket.create_connection((place.hostname, place.port), CONNECT_LIMIT_S):
            pass


def _ask(host: socket.socket, wanted: list[Any]) -> str:
    """The address of the cluster that is wanted; empty where none comes."""
    host.settimeout(START_LIMIT_S)
    with contextlib.suppress(OSError), host.makefile("rwb") as stream:
        stream.write(f"{json.dumps(wanted)}\n".encode())
        stream.flush()
        return stream.readline().decode().strip()
    return ""


def _failure(kind: str, process: subprocess.Popen[bytes]) -> str:
    what = f"the {kind} cluster of this machine did not start"
    try:
        return f"{what}: its process {describe_end(process.wait(1.0))}"
    except subprocess.TimeoutExpired:
        return f"{what} within {START_LIMIT_S:g} s"


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(handle: int) -> None:
    """Start what is asked for through a socket, tell its address, and stop it when the other end is
    closed."""
    os.set_inheritable(handle, False)
    with socket.socket(fileno=handle) as user, user.makefile("rwb") as stream, ExitStack() as open_:
        kind, num_workers, certificates = json.loads(stream.readline())
        start = {"ray": _start_ray, "dask": _start_dask}[kind]
        address = start(num_workers, certificates, open_)
        stream.write(f"{address}\n".encode())
        stream.flush()
        stream.read()


def _start_ray(num_workers: int, _: dict[str, str], open_: ExitStack) -> str:
    import ray

    # A new cluster, whatever RAY_ADDRESS names.
    context: Any = ray.init(
        "local",
        num_cpus=num_workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    open_.callback(ray.shutdown)
    return str(context.address_info["address"])


def _start_dask(num_workers: int, certificates: dict[str, str], open_: ExitStack) -> str:
    import dask
    import distributed

    # HTTP asks for no certificate, so all that a cluster tells there is whether it is alive.
    routes = ["distributed.http.health"]
    silent = {
        "distributed.scheduler.http.routes": routes,
        "distributed.worker.http.routes": routes,
    }
    open_.enter_context(dask.config.set(silent))
    cluster = distributed.LocalCluster(
        n_workers=num_workers,
        threads_per_worker=1,
        host=LOOPBACK,
        security=distributed.Security(require_encryption=True, **certificates),
        # Without an address of its own the scheduler's HTTP server takes a fixed port.
        scheduler_kwargs={"dashboard": False, "dashboard_address": f"{LOOPBACK}:0"},
    )
    open_.enter_context(cluster)
    return str(cluster.scheduler_address)


if __name__ == "__main__":
    main(int(sys.argv[1]))
