"""Says which settings each local service has in its environment: those that it needs, and no secret
of another.
"""

from __future__ import annotations

import os
from pathlib import Path

from flows.services.access import auth_string, own_origins
from flows.tracking import mlflow_log
from flows.tracking import runs as tracking
from tasks.runtime.code import ROOT
from tasks.runtime.environment import CONNECTION, may_be_secret, minimal_environment

OF_OTHER_SERVERS = ("PREFECT_API_KEY", "PREFECT_CLIENT_CUSTOM_HEADERS", "PREFECT_CLOUD_")
"""Settings by which a client is known to servers elsewhere."""


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


def server_environment(state: Path, port: int) -> dict[str, str]:
    """What a server needs: settings of Prefect, and no secret but its own."""
    settings = {**os.environ, **client_environment(state, f"http://127.0.0.1:{port}/api")}
    return {
        **minimal_environment(settings=CONNECTION),
        **{
            name: value
            for name, value in settings.items()
            if name.startswith("PREFECT_") and not name.startswith(OF_OTHER_SERVERS)
        },
        "DO_NOT_TRACK": settings["DO_NOT_TRACK"],
        "PREFECT_SERVER_API_AUTH_STRING": auth_string(state),
        # In files, since a server that dies would forget who holds a slot of a deployment.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        # How long a run that waits for a slot sleeps before it asks again.
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def worker_environment(state: Path, url: str) -> dict[str, str]:
    """What a worker needs: everything that its flow runs may read, credentials of remote sources
    among it, and no secret of a server."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OF_OTHER_SERVERS)
        and not (name.startswith("PREFECT_SERVER_") and may_be_secret(name, value))
    }
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, **client_environment(state, url), "PYTHONPATH": paths}


def mlflow_environment(state: Path, database: str) -> dict[str, str]:
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
