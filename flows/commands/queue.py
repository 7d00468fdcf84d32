"""Commands about runs of the worker: queue one, schedule one, show all of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from flows.commands.command import command
from flows.commands.table import FLOWS, FlowEntry
from flows.compose import RunConfig, compose, parse_override
from flows.conf_files import PLACES
from flows.console import say, table
from flows.live.announced import run_name
from flows.run import decide
from flows.services.local import ensure_server, use_environment
from flows.services.prefect_api import (
    ENDED,
    PATIENCE_S,
    TAG,
    NotFound,
    PrefectApi,
    Refused,
    Unreachable,
)
from flows.services.registry import ServiceError
from llm_core.config import ConfigError, nearest
from llm_core.printing import one_line, show
from llm_core.secrets import mask_secrets
from tasks.runtime.code import ROOT

EXIT_CODES = {"COMPLETED": 0, "FAILED": 2, "CRASHED": 1, "CANCELLED": 143}
POLL_S = 1.0

WAIT = click.Option(["--wait"], is_flag=True, help="Wait for the run and return its exit code.")
CRON = click.Option(["--cron"], default=None, help="Cron time, in UTC; a new one has '0 3 * * *'.")
OFF = click.Option(["--off"], is_flag=True, help="Pause the schedule without deleting it.")
NAME = click.Option(["--name"], default="nightly", help="Name of the schedule; nightly by default.")
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.")


@command("FLOW [OVERRIDES]...", options=[WAIT])
def submit(words: Sequence[str], wait: bool) -> int:
    """Queue a run for the worker, after checking it as `textmill plan` does."""
    entry, overrides = _flow_and_overrides("submit", words)
    config = _checked(entry, overrides)
    overrides = _with_places(overrides, config)
    api, deployment = _deployment(config, entry)
    made = _asked(
        api,
        "POST",
        f"/deployments/{deployment['id']}/create_flow_run",
        {
            "name": run_name(entry.flow, overrides),
            "parameters": {"overrides": overrides},
            "state": {"type": "SCHEDULED", "message": "submitted on the command line"},
            "tags": [TAG, "submitted"],
        },
    )
    page = f"{api.url.removesuffix('/api')}/runs/flow-run/{made['id']}"
    say(f"queued: {made['name']}; {mask_secrets(page)}")
    state, message = ("SCHEDULED", None) if not wait else _wait(api, made["id"])
    if wait:
        say(f"{made['name']}: {state.lower()}{f': {one_line(message)}' if message else ''}")
    about = {"flow_run_id": made["id"], "name": made["name"], "state": state, "message": message}
    show(json.dumps(about))
    return EXIT_CODES[state] if wait else 0


@command("[FLOW] [OVERRIDES]...", options=[CRON, OFF, NAME])
def schedule(words: Sequence[str], cron: str | None, off: bool, name: str) -> int:
    """Run a flow on a schedule, with its own overrides. Without a flow: list schedules."""
    if not words or "=" in words[0]:
        return _list_schedules(compose(words))
    entry, overrides = _flow_and_overrides("schedule", words)
    config = compose(overrides)
    given = [word for word in overrides if word.partition("=")[0] not in PLACES]
    # A schedule can be stopped whatever has become of its input.
    if given and not off:
        _checked(entry, overrides)
    api, deployment = _deployment(config, entry)
    place = f"/deployments/{deployment['id']}/schedules"
    known = next((one for one in deployment["schedules"] if one.get("slug") == name), None)
    # A new time, or turning it on again, leaves the overrides of a schedule as they are.
    kept = ((known or {}).get("parameters") or {}).get("overrides", [])
    overrides = kept if kept and not given else _with_places(overrides, config)
    if not given and not off:
        _checked(entry, overrides)
    if off:
        if known is None:
            slugs = [str(one.get("slug")) for one in deployment["schedules"]]
            raise ConfigError(f"{name} is not a schedule of {entry.flow}; {nearest(name, slugs)}")
        # Prefect forgets parameters that a change of something else does not name.
        stopped = {"active": False, "parameters": known.get("parameters") or {}}
        _asked(api, "PATCH", f"{place}/{known['id']}", stopped)
        say(f"{entry.flow}/{deployment['name']} {name}: off")
        return 0
    when = {"cron": cron or (known or {}).get("schedule", {}).get("cron") or "0 3 * * *"}
    wanted = {
        "active": True,
        "schedule": {**when, "timezone": "UTC"},
        "parameters": {"overrides": overrides},
    }
    try:
        if known is None:
            api.ask("POST", place, [{**wanted, "slug": name}])
        else:
            api.ask("PATCH", f"{place}/{known['id']}", wanted)
    except Refused as error:
        raise ConfigError(
            f"--cron ({when['cron']}) is not a cron time; write minute, hour, day, month"
            " and weekday, as in '0 3 * * *' for every night at 3:00 UTC"
        ) from error
    except Unreachable as error:
        raise ServiceError(f"the Prefect server does not answer: {error}") from error
    said = " ".join(overrides) or "no overrides"
    say(f"{entry.flow}/{deployment['name']} {name}: {when['cron']} UTC, {said}")
    return 0


@command(options=[JSON])
def status(words: Sequence[str], as_json: bool) -> int:
    """How runs and services stand; asks a server only if one is running."""
    from flows.live.standing import describe_standing, read_standing

    standing = read_standing(compose(words))
    show(json.dumps(standing, ensure_ascii=False) if as_json else describe_standing(standing))
    return 0


def _flow_and_overrides(name: str, words: Sequence[str]) -> tuple[FlowEntry, list[str]]:
    if not words or "=" in words[0]:
        raise ConfigError(f"{name} needs a flow first: one of {', '.join(FLOWS)}")
    flow, *overrides = words
    known = {**FLOWS, **{entry.flow: entry for entry in FLOWS.values()}}
    if flow not in known:
        raise ConfigError(f"{flow} is not a flow; {nearest(flow, list(known))}")
    return known[flow], overrides


def _checked(entry: FlowEntry, overrides: Sequence[str]) -> RunConfig:
    """The configuration of a run that a worker will do. Raises ConfigError for what would fail
    there."""
    config = compose(overrides)
    for override in overrides:
        if mask_secrets(override) != override:
            raise ConfigError(
                f"{mask_secrets(override)} holds a secret, and Prefect stores and shows what is"
                " queued; put it into the environment of the worker"
            )
        _require_absolute(override)
    webhook = config.notify.webhook
    if webhook and any(webhook in override for override in overrides):
        raise ConfigError(
            "notify.webhook is stored and shown by Prefect with what is queued, and such an address"
            " often holds a token; put it into the environment of the worker and give"
            " notify.webhook_env=NAME"
        )
    if not config.source.unfetched():
        _, plan = decide(config, entry.target)
        config.require_fit(plan)
    return config


def _require_absolute(override: str) -> None:
    """A worker starts in the clone, so paths that start elsewhere would be other paths there."""
    if Path.cwd() == ROOT:
        return
    value = parse_override(override).value()
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and not os.path.isabs(one) and Path(one).exists():
            raise ConfigError(
                f"{override} is relative to this folder, and the worker's runs start in {ROOT};"
                f" write {Path(one).resolve()}"
            )


def _with_places(overrides: list[str], config: RunConfig) -> list[str]:
    """The same for a worker, whose relative store and state would be others."""
    if Path.cwd() == ROOT:
        return overrides
    places = [f"{name}={getattr(config, name).resolve()}" for name in ("store", "state")]
    return [*overrides, *places, *([f"shared={config.shared}"] if config.shared else [])]


def _deployment(config: RunConfig, entry: FlowEntry) -> tuple[PrefectApi, dict[str, Any]]:
    """The server in use, started where none is, and the deployment of a flow on it."""
    use_environment(config.state)
    url = ensure_server(config.state, say)
    configured = PrefectApi.configured()
    assert configured is not None
    api = replace(configured, limit_s=PATIENCE_S)
    name = f"{entry.flow}/{entry.deployment}"
    try:
        found: dict[str, Any] = api.ask("GET", f"/deployments/name/{name}")
    except Refused as error:
        raise ConfigError(
            f"{name} is not deployed at {mask_secrets(url)}; run `prefect deploy --all` in {ROOT}"
        ) from error
    except Unreachable as error:
        raise ServiceError(f"the Prefect server at {mask_secrets(url)}: {error}") from error
    return api, found


def _asked(api: PrefectApi, method: str, path: str, body: Any) -> Any:
    try:
        return api.ask(method, path, body)
    except Refused as error:
        raise ConfigError(f"Prefect refuses this: {one_line(error)[:300]}") from error
    except Unreachable as error:
        raise ServiceError(f"the Prefect server does not answer: {error}") from error


def _wait(api: PrefectApi, flow_run_id: str) -> tuple[str, str | None]:
    """The type of a flow run's last state, and its message; a line for each state before."""
    shown = None
    while True:
        try:
            run = api.ask("GET", f"/flow_runs/{flow_run_id}")
        except NotFound as error:
            raise ConfigError(f"flow run {flow_run_id} was deleted; submit it again") from error
        except (Unreachable, Refused) as error:  # a server that is restarted
            run, name = None, f"the server does not answer ({error})"
        else:
            name = str(run["state_name"])
        if run is not None and run["state_type"] in ENDED:
            return run["state_type"], run["state"]["message"]
        if name != shown:
            say(f"{flow_run_id}: {name}")
            shown = name
        time.sleep(POLL_S)


def _list_schedules(config: RunConfig) -> int:
    from flows.live.standing import read_schedules

    try:
        rows = [
            (one["deployment"], one["name"], one["when"], one["next"], one["overrides"])
            for one in read_schedules(config)
        ]
    except (Unreachable, Refused) as error:
        raise ServiceError(f"the Prefect server: {one_line(error)[:300]}") from error
    columns = ("deployment", "name", "when", "next", "overrides")
    show(table(columns, rows, whole=("when", "next")))
    return 0
