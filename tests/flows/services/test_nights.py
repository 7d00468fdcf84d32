"""Queued runs and nights, on a real server and worker."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from flows import cli
from flows.services.prefect_api import ENDED
from flows.services.processes import descendants, stop
from flows.services.registry import Registry
from tests.support.deployed_runs import OVERRIDES, Deployed, deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    before = dict(os.environ)
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        os.environ.pop(name, None)
    try:
        with deployed(tmp_path_factory.mktemp("nights")) as found:
            yield found
    finally:
        os.environ.clear()
        os.environ.update(before)


def words(services: Deployed) -> list[str]:
    return [*OVERRIDES, f"store={services.place / 'store'}", f"state={services.state}"]


def test_submitted_run_is_waited_for_and_named_after_what_was_asked(
    services: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["dedup.threshold=0.75", *words(services)]
    code = cli.main(["submit", "refresh", "--wait", *asked])
    out, err = capsys.readouterr()
    said = json.loads(out.splitlines()[-1])
    assert code == 0 and said["state"] == "COMPLETED", err
    run = services.run(said["flow_run_id"])
    assert run["name"].startswith("refresh dedup.threshold=0.75 ") and "store=" not in run["name"]
    assert {"textmill", "submitted"} <= set(run["tags"])


def test_nights_have_overrides_of_their_own_which_outlive_up(
    services: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["dedup.threshold=0.7", *words(services)]
    assert cli.main(["schedule", "refresh", "--cron", "30 1 * * *", *asked]) == 0
    services.up()
    deployment = services.api.ask("GET", "/deployments/name/refresh/nightly")
    (night,) = deployment["schedules"]
    assert night["active"] and night["schedule"]["cron"] == "30 1 * * *"
    assert night["parameters"]["overrides"] == asked
    capsys.readouterr()
    assert cli.main(["schedule", f"state={services.state}"]) == 0
    assert "30 1 * * *" in capsys.readouterr().out
    place = f"state={services.state}"
    assert cli.main(["schedule", "refresh", "--cron", "15 2 * * *", place]) == 0
    deployment = services.api.ask("GET", "/deployments/name/refresh/nightly")
    (night,) = deployment["schedules"]
    assert night["schedule"]["cron"] == "15 2 * * *"
    assert night["parameters"]["overrides"] == asked, "a new time is not a new run"
    assert cli.main(["schedule", "refresh", "--off", *asked]) == 0
    deployment = services.api.ask("GET", "/deployments/name/refresh/nightly")
    (night,) = deployment["schedules"]
    assert not night["active"] and night["parameters"]["overrides"] == asked


def test_after_nights_without_a_worker_one_run_is_made_up_for(services: Deployed) -> None:
    deployment = services.api.ask("GET", "/deployments/name/refresh/nightly")["id"]
    stop(descendants([Registry(services.state).get("worker")["pid"]]), 10.0)
    often = {
        "active": True,
        "slug": "often",
        "schedule": {"interval": 20},
        "parameters": {"overrides": words(services)},
    }
    services.api.ask("POST", f"/deployments/{deployment}/schedules", [often])

    def due_before(instant: float) -> int:
        limit = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(instant))
        waiting = services.api.flow_runs(("SCHEDULED",))
        return sum(run["auto_scheduled"] and run["expected_start_time"] < limit for run in waiting)

    wait_for(lambda: due_before(time.time() - 61) >= 3, 300, "three late runs")
    (made,) = services.api.ask(
        "POST", "/deployments/filter", {"deployments": {"id": {"any_": [deployment]}}}
    )
    (slug,) = [one["id"] for one in made["schedules"] if one.get("slug") == "often"]
    services.up()
    services.api.ask(
        "PATCH", f"/deployments/{deployment}/schedules/{slug}", {**often, "active": False}
    )
    nights = [run for run in services.api.flow_runs(("SCHEDULED", *ENDED)) if run["auto_scheduled"]]
    gone = [run for run in nights if run["state_name"] == "Superseded"]
    assert len(gone) >= 2
    assert all("not begun: a later run of this schedule" in r["state"]["message"] for r in gone)
    newest_gone = max(run["expected_start_time"] for run in gone)
    wait_for(
        lambda: any(
            run["auto_scheduled"] and run["expected_start_time"] > newest_gone
            for run in services.api.flow_runs(("COMPLETED",))
        ),
        300,
        "the run that is made up for",
    )
    completed = [r for r in services.api.flow_runs(("COMPLETED",)) if r["auto_scheduled"]]
    assert len(completed) <= 2, "one for the nights that were late, one that was due since then"


def test_server_that_died_is_started_again_by_the_worker(services: Deployed) -> None:
    port = Registry(services.state).port("server")
    services.kill("", ("server",))
    wait_for(lambda: Registry(services.state).alive("server"), 60, "the server")
    wait_for(lambda: services.api.ask("GET", "/health") is True, 120, "its answer")
    assert Registry(services.state).port("server") == port
