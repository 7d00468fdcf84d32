"""Applies `prefect.yaml` to the deployments of a Prefect server, and keeps what was set through
Prefect.

It is a process of its own, started by `flows.services.local`: Prefect reads its settings when
imported. Three states are compared: what `prefect.yaml` said when it was last applied, what it says
now, and what the server has. A field that differs on the server only was set there, and stays. All
others become those of the file. Lines on stdout say what has changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from llm_core.printing import show
from llm_core.secrets import mask_values
from tasks.runtime.artifact import write_json
from tasks.runtime.keys import canonical_json

FIELDS = (
    "description",
    "tags",
    "parameters",
    "job_variables",
    "paused",
    "concurrency_limit",
    "concurrency_options",
)
"""Fields of a deployment, besides its schedules, that a person would change."""

Settings = dict[str, Any]
"""{field: value} of a deployment; `schedules` are {slug: {active, schedule, parameters}}."""

_MISSING = object()


def main(pool: str, memory: Path) -> None:
    """Deploy. memory: a file that says what was applied last, and what a deployment that was cut
    off has to keep."""
    known = json.loads(memory.read_text("utf-8")) if memory.exists() else {}
    with get_client(sync_client=True) as client:
        ids, before = _read(client)
        before |= known.get("unfinished", {})
        write_json(memory, {**known, "unfinished": before})
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            _prefect("work-pool", "create", pool, "--type", "process")
        _prefect("--no-prompt", "deploy", "--all")
        ids, after = _read(client)
        applied = known.get("applied", {})
        for name, given in after.items():
            wanted = given
            if name in before:
                wanted = merge(
                    applied.get(name) or _applied_by_earlier_versions(given), before[name], given
                )
            _restore(client, ids[name], given, wanted)
            if before:  # on a fresh server everything is new
                for line in changes(before.get(name), wanted):
                    show(f"{name}: {line}")
    write_json(memory, {"applied": after})


def merge(applied: Any, theirs: Any, ours: Any) -> Any:
    """`ours`, with what differs from `applied` in `theirs` only."""
    if not all(isinstance(value, Mapping) for value in (applied, theirs, ours)):
        return theirs if theirs != applied and ours == applied else ours
    merged = {}
    for name in {**ours, **theirs}:
        value = merge(*(side.get(name, _MISSING) for side in (applied, theirs, ours)))
        if value is not _MISSING:
            merged[name] = value
    return merged


def changes(before: Settings | None, after: Settings) -> Iterator[str]:
    """One line per field that has changed."""
    if before is None:
        yield "new"
        return
    old, new = _flatten(mask_values(before)), _flatten(mask_values(after))
    for field in sorted(old.keys() | new.keys()):
        if old.get(field) != new.get(field):
            yield f"{field}: {old.get(field, 'none')} → {new.get(field, 'none')}"


def _read(client: SyncPrefectClient) -> tuple[dict[str, dict[str, str]], dict[str, Settings]]:
    """{flow/deployment: ids of itself ("") and its schedules}, and {flow/deployment: its
    settings}."""
    ids, found = {}, {}
    flows: dict[Any, str] = {}
    for deployment in _all_deployments(client):
        if deployment.flow_id not in flows:
            flows[deployment.flow_id] = client.read_flow(deployment.flow_id).name
        name = f"{flows[deployment.flow_id]}/{deployment.name}"
        values = deployment.model_dump(mode="json")
        limit = values.get("global_concurrency_limit")
        settings = {field: values.get(field) for field in FIELDS} | {
            "concurrency_limit": limit["limit"] if limit else None
        }
        settings["schedules"] = {
            _slug(schedule): {
                "active": schedule["active"],
                "schedule": schedule["schedule"],
                "parameters": schedule.get("parameters") or {},
            }
            for schedule in values["schedules"]
        }
        ids[name] = {"": str(deployment.id)} | {
            _slug(schedule): schedule["id"] for schedule in values["schedules"]
        }
        found[name] = settings
    return ids, found


def _all_deployments(client: SyncPrefectClient) -> Iterator[DeploymentResponse]:
    """Page by page: a server gives as many at once as its settings allow, 200 by default."""
    offset = 0
    while page := client.read_deployments(offset=offset):
        yield from page
        offset += len(page)


def _restore(
    client: SyncPrefectClient, ids: Mapping[str, str], given: Settings, wanted: Settings
) -> None:
    """Set on the server what the deployment that has just been `given` should have else."""
    place = f"/deployments/{ids['']}"
    if changed := {
        field: wanted[field] for field in FIELDS if wanted.get(field) != given.get(field)
    }:
        client.request("PATCH", place, json=changed)  # type: ignore[arg-type]
    before, after = given["schedules"], wanted["schedules"]
    for slug in before.keys() | after.keys():
        if slug not in after:
            client.request("DELETE", f"{place}/schedules/{ids[slug]}")  # type: ignore[arg-type]
        elif slug not in before:
            client.request("POST", f"{place}/schedules", json=[after[slug]])  # type: ignore[arg-type]
        elif after[slug] != before[slug]:
            client.request("PATCH", f"{place}/schedules/{ids[slug]}", json=after[slug])  # type: ignore[arg-type]


def _slug(schedule: Mapping[str, Any]) -> str:
    """The name of a schedule; one made through Prefect may have none, and is identified by when it
    runs."""
    return str(schedule.get("slug") or canonical_json(schedule["schedule"]))


def _applied_by_earlier_versions(given: Settings) -> Settings:
    """What was applied before it was recorded: the current file, so that switches set through
    Prefect stay."""
    return {"paused": given["paused"], "schedules": given["schedules"]}


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: json.dumps(value, ensure_ascii=False)}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{name}" if prefix else name)
    return flat


def _prefect(*arguments: str) -> None:
    """A command of Prefect, whose words go to the log."""
    subprocess.run([sys.executable, "-m", "prefect", *arguments], stdout=sys.stderr, check=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
