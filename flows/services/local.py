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
from pathlib import Path

from flows.services.access import (
    answers,
    auth_string,
    is_guarded,
    make_auth_string,
    make_private,
    own_origins,
)
from flows.services.processes import (
    descendants,
    free_port,
    open_private,
    stop,
)
from flows.services.registry import Registry, ServiceError
from flows.tracking import mlflow_log
from flows.tracking import runs as tracking
from llm_core.training.config import GRACE_S
from tasks.runtime.code import ROOT
from tasks.runtime.environment import CONNECTION, may_be_secret, minimal_environment

POOL = "textmill"

OF_OTHER_SERVERS = ("PREFECT_API_KEY", "PREFECT_CLIENT_CUSTOM_HEADERS", "PREFECT_CLOUD_")
"""Settings by which a client is known to servers elsewhere."""

FLOW_GRACE_S = GRACE_S + 30.0
"""Time a flow run has to save its state before `down` kills it: what a training has by default, and
some for the flow itself."""


def environment(state: Path) -> dict[str, str]:
    """What every process that talks to Prefect or MLflow needs, except the server's address."""
    home = state.resolve() / "prefect"
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_UI_STATIC_DIRECTORY": str(home / "ui"),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,tasks",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        **mlflow_log.ENVIRONMENT,
        "MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI") or tracking.default_uri(state),
        # Seven more processes and two gigabytes, for jobs that nothing here submits.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def client_environment(state: Path, url: str) -> dict[str, str]:
    """The same for the local server, with its address and password."""
    return {
        **environment(state),
        "PREFECT_API_URL": url,
        "PREFECT_API_AUTH_STRING": auth_string(state),
    }


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
        env = _worker_environment(state, url)
        made = answers(f"{url}/deployments/name/pipeline/local", auth_string(state))
        if services.get("deployed") != _deployment_digest(url) or not made:
            _deploy(state, env, say)
            services.set("deployed", _deployment_digest(url))
        if not services.alive("worker"):
            command = [
                "worker",
                "start",
                "--pool",
                POOL,
                "--type",
                "process",
                "--name",
                "local",
                "--install-policy",
                "never",
            ]
            services.start("worker", [sys.executable, "-m", "prefect", *command], env)
    return url


def down(state: Path) -> list[str]:
    """Stop what `up` and `ui` started, and what that started; names of the services that were
    running."""
    if not (state / "services.json").exists():
        return []
    with Registry.open(state) as services:
        running = [name for name in ("worker", "server", "mlflow") if services.alive(name)]
        roots = {name: int(services.get(name)["pid"]) for name in running}
        if "worker" in roots:
            # Flow runs first, while the server can still be told how they ended.
            everything = descendants([roots["worker"]])
            stop(everything[1:], FLOW_GRACE_S)
        stop(descendants(roots.values()), 10.0)
        for name in ("worker", "server", "mlflow"):
            services.drop(name)
    return running


def server_url(state: Path) -> str | None:
    """The API of the local server, where it is running."""
    if not (state / "services.json").exists():
        return None
    with Registry.open(state) as services:
        return (
            f"http://127.0.0.1:{services.get('server')['port']}/api"
            if services.alive("server")
            else None
        )


def mlflow_ui(state: Path) -> str:
    """Start the MLflow UI over the local database where it is not running; its address."""
    configured = environment(state)["MLFLOW_TRACKING_URI"]
    if configured.startswith("http"):
        return configured
    make_private(state)
    with Registry.open(state) as services:
        if not services.alive("mlflow"):
            port = free_port(services.port("mlflow"))
            (state.resolve() / "mlflow").mkdir(exist_ok=True)
            command = [sys.executable, "-m", "mlflow", "ui", "--workers", "1"]
            command += ["--host", "127.0.0.1", "--port", str(port)]
            services.start("mlflow", command, _mlflow_environment(state, configured), port)
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
    port = free_port(port)
    url = f"http://127.0.0.1:{port}/api"
    say(
        f"starting a Prefect server at {url.removesuffix('/api')}; it is left running, `textmill"
        " down` stops it"
    )
    services.start(
        "server",
        [sys.executable, "-m", "flows.services.prefect_server", str(port)],
        _server_environment(services, port),
        port,
    )
    services.wait("server", f"{url}/health")
    return url


def _server_environment(services: Registry, port: int) -> dict[str, str]:
    """What a server needs: settings of Prefect, and no secret but its own."""
    settings = {**os.environ, **client_environment(services.state, f"http://127.0.0.1:{port}/api")}
    return {
        **minimal_environment(settings=CONNECTION),
        **{
            name: value
            for name, value in settings.items()
            if name.startswith("PREFECT_") and not name.startswith(OF_OTHER_SERVERS)
        },
        "DO_NOT_TRACK": settings["DO_NOT_TRACK"],
        "PREFECT_SERVER_API_AUTH_STRING": auth_string(services.state),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def _worker_environment(state: Path, url: str) -> dict[str, str]:
    """What a worker needs: everything that its flow runs may read, credentials of remote sources
    among it, and no secret of a server."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OF_OTHER_SERVERS)
        and not (name.startswith("PREFECT_SERVER_") and may_be_secret(name, value))
    }
    return {**kept, **client_environment(state, url)}


def _mlflow_environment(state: Path, database: str) -> dict[str, str]:
    """What the MLflow UI needs: its settings, and the database with its password."""
    return {
        **minimal_environment(settings=("MLFLOW_", *CONNECTION)),
        **{
            name: value
            for name, value in environment(state).items()
            if not name.startswith("PREFECT_")
        },
        # Not in the command line, which everybody on this machine can read.
        "MLFLOW_BACKEND_STORE_URI": database,
    }


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
