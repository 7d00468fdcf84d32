"""Commands for the local services: the Prefect server and its worker, and the MLflow UI."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from flows.commands.command import command
from flows.compose import compose
from flows.console import say
from flows.services import environments, local
from flows.services.access import auth_file
from flows.tracking.mlflow_log import MlflowLog
from llm_core.printing import printable_line, show
from llm_core.secrets import mask_secrets


@command()
def up(words: Sequence[str]) -> int:
    """Start a server and a worker."""
    state = compose(words).state
    local.use_environment(state)
    show(local.up(state, say).removesuffix("/api"))
    return 0


@command()
def down(words: Sequence[str]) -> int:
    """Stop what `up` and `ui` started."""
    stopped = local.down(compose(words).state)
    say("stopped " + ", ".join(stopped) if stopped else "nothing was running")
    return 0


@command()
def env(words: Sequence[str]) -> int:
    """`export` lines for a shell in which plain `prefect` and `mlflow` commands should work."""
    state = compose(words).state
    url, configured = local.server_url(state), local.configured_server(state)
    ours = url and not configured
    lines = (
        environments.client_environment(state, url or "")
        if ours
        else environments.environment(state)
    )
    for name, value in lines.items():
        show(f"export {name}={_quote(value)}")
    if configured:
        say(
            f"# PREFECT_API_URL names the Prefect server at {configured}, which stays in use;"
            " unset it for a local one"
        )
    elif not url:
        say("# no local Prefect server is running; `textmill up` starts one")
    return 0


def _quote(value: str) -> str:
    """`value` as one word of a shell."""
    if printable_line(value) == value:
        return shlex.quote(value)
    # Escaped for the terminal, and read again by the shell.
    return "$'" + printable_line(value.replace("\\", "\\\\").replace("'", "\\'")) + "'"


@command()
def ui(words: Sequence[str]) -> int:
    """Start the MLflow UI, and show where both UIs are."""
    config = compose(words)
    state, tracking = config.state, config.tracking
    address, uri = local.mlflow_ui(state), tracking.resolve_uri(state)
    if (
        tracking.enabled and tracking.uri is None and not uri.startswith("http")
    ):  # else the server is not ours to ask
        address = MlflowLog(uri, tracking.experiment, state).runs_page(address)
    show(f"mlflow   {mask_secrets(address)}")
    url, started = os.environ.get("PREFECT_API_URL"), local.server_url(state)
    page = (url or started or "").removesuffix("/api") or "not running; textmill up starts it"
    show(f"prefect  {page}")
    if started and (not url or url == started):
        show(f"         the password to sign in with is the line in {auth_file(state)}")
    return 0
