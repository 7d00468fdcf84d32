"""A Prefect server, a worker and the MLflow UI on this machine: start, find, stop.

Everything listens on 127.0.0.1, keeps its files under `state`, sends no telemetry, and is known by
process id and start time in `<state>/services.json`. Whoever may create a flow run may run any
command as this user, so the server wants a password (`flows.services.access`) and refuses pages of
other sites (`flows.services.prefect_server`); `state` is closed to other users. Prefect's ephemeral
server is never used: it loses task records. One lock makes two commands at once start one server.
Started services are left running; `down` stops what `up` started, and the flow runs of its worker,
which get SIGTERM first so that they can save their state.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flows.services.access import (
    answers,
    auth_string,
    is_guarded,
    make_auth_string,
    make_private,
)
from flows.services.dead_runs import LOCAL, Server, free_slots, settle, settle_taken
from flows.services.environments import (
    client_environment,
    environment,
    mlflow_environment,
    server_environment,
    worker_environment,
)
from flows.services.late_runs import cancel_superseded
from flows.services.prefect_api import PATIENCE_S, PrefectApi, Refused, Unreachable
from flows.services.processes import (
    descendants,
    free_port,
    open_private,
    stop,
)
from flows.services.registry import Registry, ServiceError
from llm_core.printing import note, one_line
from llm_core.secrets import mask_secrets
from llm_core.training.config import GRACE_S
from tasks.runtime.code import ROOT

POOL = "textmill"

WORKER_VARIABLE, STATE_VARIABLE = "TEXTMILL_WORKER_PID", "TEXTMILL_WORKER_STATE"
"""Environment variables that tell a flow run which process must be there for it to go on, and in
which state folder that looks for it."""

PORT_S = 10.0
"""Time in which the port of a server that died becomes free."""
FLOW_GRACE_S = GRACE_S + 30.0
"""Time a flow run has to save its state before `down` kills it: what a training has by default, and
some for the flow itself."""


def use_environment(state: Path) -> None:
    """Put `environment` into this process, where the user has not said otherwise. Before Prefect is
    imported."""
    make_private(state)
    (state / "prefect").mkdir(parents=True, exist_ok=True)
    for name, value in environment(state).items():
        if name != "MLFLOW_TRACKING_URI":  # read from the config, which may name another state
            os.environ.setdefault(name, value)


def ensure_server(state: Path, say: Callable[[str], None]) -> str:
    """Let this process talk to a server that answers: the configured one, else the local one,
    started where it is not running.

    Gives the address of its API.
    """
    if configured := configured_server(state):
        return configured
    if (configured := os.environ.get("PREFECT_API_URL")) and not _is_local(configured, state):
        say(f"no Prefect server answers at {configured}; using a local one")
    url = up(state, say)
    access = client_environment(state, url)
    os.environ |= {name: access[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")}
    return url


def configured_server(state: Path) -> str | None:
    """The API of the server that the user has configured, where it answers and is not the local
    one."""
    configured = os.environ.get("PREFECT_API_URL")
    if (
        not configured
        or _is_local(configured, state)
        or not answers(f"{configured.rstrip('/')}/health")
    ):
        return None
    return configured


def _is_local(url: str, state: Path) -> bool:
    return url.rstrip("/") == server_url(state)


def up(state: Path, say: Callable[[str], None]) -> str:
    """Start server, pool, deployments and worker where they are not there yet; the address of the
    API."""
    make_private(state)
    with Registry.open(state) as services:
        url = _server(services, say)
        env = worker_environment(state, url)
        made = answers(f"{url}/deployments/name/pipeline/local", auth_string(state))
        if services.get("deployed") != _deployment_digest(url) or not made:
            _deploy(state, env, say)
            services.set("deployed", _deployment_digest(url))
        if services.alive("worker") and services.get("worker").get("server", url) != url:
            say("the Prefect server has another port now; starting its worker anew")
            _stop_worker(services)
            services.drop("worker")
        if not services.alive("worker"):
            _settle(state, url, say)
            command = [sys.executable, "-m", "flows.services.worker", POOL, str(state.resolve())]
            services.start("worker", command, env)
            services.set("worker", {**services.get("worker"), "server": url})
    return url


def _settle(state: Path, url: str, say: Callable[[str], None]) -> None:
    """Before a worker takes runs: settle those that died with the last one, and leave one of
    several late nights. The worker tries again what fails here."""
    api = replace(PrefectApi.local(state, url), limit_s=PATIENCE_S)
    try:
        dead = (*settle(state, Server(api)), *settle_taken(state, api, None))
        for line in (*dead, *cancel_superseded(api)):
            say(line)
        free_slots(api)
    except (Unreachable, Refused) as error:
        say(f"runs that died are left to the worker: {one_line(error)[:200]}")


def down(state: Path) -> list[str]:
    """Stop what `up` and `ui` started, and what that started; names of the services that were
    running."""
    if not (state / "services.json").exists():
        return []
    with Registry.open(state) as services:
        running = [name for name in ("worker", "server", "mlflow") if services.alive(name)]
        roots = {name: int(services.get(name)["pid"]) for name in running}
        if "worker" in roots:
            # Before the server, which its keeper would start again.
            _stop_worker(services)
        stop(descendants(roots.values()), 10.0)
        for name in ("worker", "server", "mlflow"):
            services.clear(name)
            services.drop(name)
    return running


def _stop_worker(services: Registry) -> None:
    """Stop the worker's flow runs, while the server can still be told how they ended, then the
    worker."""
    worker = services.get("worker")["pid"]
    own = os.getpid()  # the worker's keeper may have started this process
    stop([pid for pid in descendants([worker]) if pid not in (worker, own)], FLOW_GRACE_S)
    stop([pid for pid in descendants([worker]) if pid != own], 10.0)


def server_url(state: Path) -> str | None:
    """The API of the local server, where it is running."""
    services = Registry(state)
    if not services.alive("server"):
        return None
    return f"http://127.0.0.1:{services.port('server')}/api"


def server_name(state: Path, url: str) -> str:
    """A Prefect server, as runs announce it."""
    return LOCAL if _is_local(url, state) else mask_secrets(url)


def mlflow_ui(state: Path) -> str:
    """Start the MLflow UI over the local database where it is not running; its address."""
    configured = environment(state)["MLFLOW_TRACKING_URI"]
    if configured.startswith("http"):
        return configured
    make_private(state)
    with Registry.open(state) as services:
        if not services.alive("mlflow"):
            services.clear("mlflow")
            port = free_port(services.port("mlflow"))
            (state.resolve() / "mlflow").mkdir(exist_ok=True)
            command = [sys.executable, "-m", "mlflow", "ui", "--workers", "1"]
            command += ["--host", "127.0.0.1", "--port", str(port)]
            services.start("mlflow", command, mlflow_environment(state, configured), port)
            services.wait("mlflow", f"http://127.0.0.1:{port}/health")
        return f"http://127.0.0.1:{services.get('mlflow')['port']}"


def _server(services: Registry, say: Callable[[str], None]) -> str:
    port = services.port("server")
    url = f"http://127.0.0.1:{port}/api"
    made = make_auth_string(services.state)
    if services.alive("server") and answers(f"{url}/health"):
        if is_guarded(url, auth_string(services.state)):
            return url
        made = True
    if made:
        _stop_without_password(services, say)
    if services.alive("server"):
        stop(descendants([services.get("server")["pid"]]), 10.0)
    services.clear("server")
    # The worker and its runs know the server by its port.
    port = free_port(port, PORT_S if services.alive("worker") else 0.0)
    url = f"http://127.0.0.1:{port}/api"
    say(
        f"starting a Prefect server at {url.removesuffix('/api')}; it is left running, `textmill"
        " down` stops it"
    )
    services.start(
        "server",
        [sys.executable, "-m", "flows.services.prefect_server", str(port), str(services.state)],
        server_environment(services.state, port),
        port,
    )
    services.wait("server", f"{url}/health")
    return url


def _stop_without_password(services: Registry, say: Callable[[str], None]) -> None:
    """Stop a server that asks for no password, as earlier versions started it, and a worker that
    does not know it."""
    running = [name for name in ("worker", "server") if services.alive(name)]
    if not running:
        return
    what = (
        f"the Prefect {' and '.join(running)} of {services.state} were started without the password"
        " that stands there now"
    )
    if "worker" in running and len(descendants([services.get("worker")["pid"]])) > 1:
        raise ServiceError(
            f"{what}, and flow runs are in progress; `textmill down` stops them and lets them save,"
            " then run again"
        )
    say(f"{what}; starting them anew")
    for name in running:
        stop(descendants([services.get(name)["pid"]]), 10.0)
        services.drop(name)


def _deploy(state: Path, env: dict[str, str], say: Callable[[str], None]) -> None:
    """Bring work pool and deployments to what prefect.yaml says, and say what changed
    (`flows.services.deployments`)."""
    log_file = state / "logs" / "deploy.log"
    command = [
        sys.executable,
        "-m",
        "flows.services.deployments",
        POOL,
        str(state.resolve() / "deployments.json"),
    ]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open_private(log_file) as log:
        done = subprocess.run(
            command,
            env={**env, "PYTHONPATH": paths},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
    if done.returncode:
        tail = log_file.read_text("utf-8", errors="replace").strip().splitlines()[-1:]
        raise ServiceError(
            f"the deployments of prefect.yaml cannot be made: {' '.join(tail)[:200]}; see"
            f" {log_file}"
        )
    for line in done.stdout.splitlines():
        say(line)


def _deployment_digest(url: str) -> str:
    """Deployments stand as long as their description, this clone and the server are the same."""
    return hashlib.blake2b(
        (ROOT / "prefect.yaml").read_bytes() + f"{ROOT}{url}".encode(), digest_size=8
    ).hexdigest()


if __name__ == "__main__":
    up(Path(sys.argv[1]), note)
