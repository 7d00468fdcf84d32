"""A dead run never holds up a living one, and nothing claims to run that does not."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployed_runs import NUM_STEPS, Deployed, deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BEGINS_S, SETTLED_S = 60.0, 120.0
VICTIMS = ("trainer", "flow", "worker", "server", "mlflow")
MOMENTS = ("starting", "language", "step 20")
STEPS = ("step 20", "step 150", "step 350")
TRAINING = STEPS[0]
seeds = itertools.count(100)


def cases() -> Iterator[tuple[tuple[str, ...], str]]:
    """Each alone and all together at three moments, and any two; a trainer is there in training
    only."""
    for victim in VICTIMS:
        for moment in STEPS if victim == "trainer" else MOMENTS:
            yield (victim,), moment
    moments = itertools.cycle(MOMENTS)
    for pair in itertools.combinations(VICTIMS, 2):
        yield pair, TRAINING if "trainer" in pair else next(moments)
    for moment in MOMENTS:
        yield VICTIMS, moment


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        with deployed(tmp_path_factory.mktemp("dead")) as found:
            yield found


@pytest.mark.parametrize(
    ("victims", "moment"), list(cases()), ids=lambda v: "+".join(v) if isinstance(v, tuple) else v
)
def test_next_run_begins_and_what_died_is_at_an_end(
    victims: tuple[str, ...], moment: str, services: Deployed
) -> None:
    services.all_up()
    asked = [f"train.seed={next(seeds)}", "force=[language]"]
    first = services.submit(*asked)
    # A stage of a small corpus is over in half a second.
    wait_for(lambda: services.reaches(moment, first), 240, f"{moment} of the first run", 0.05)
    killed = services.kill(first, victims)
    assert killed == {*victims} - (set() if moment in STEPS else {"trainer"}), "it was too late"
    killed_at = time.monotonic()
    lives_on = not {"trainer", "flow", "worker"} & set(victims)
    services.up()
    second = services.submit(*asked)
    if lives_on:
        wait_for(lambda: services.has_ended(first), 480, "the end of a run that nobody killed")
        ends = {"COMPLETED"}
        if "server" in victims and moment == "starting":
            ends.add("CRASHED")  # a process that starts asks the server what it is to do
        assert services.run(first)["state_type"] in ends, services.run(first)["state"]["message"]
    begun = wait_for(lambda: services.run(second)["state_name"] == "Running", BEGINS_S, "the next")
    print(f"\n{'+'.join(victims)} at {moment}: the next run began after {begun:.0f} s")
    left_s = 480 if lives_on else SETTLED_S - (time.monotonic() - killed_at)
    wait_for(lambda: not services.others(second), left_s, "ends in Prefect")
    wait_for(lambda: running_in_mlflow(services.place) <= 1, 60, "ends in MLflow")
    ended = services.run(first)
    if not lives_on:
        assert (
            ended["state_type"] in ("CRASHED", "FAILED", "CANCELLED") and ended["state"]["message"]
        )
    services.cancel(second)
    wait_for(lambda: running_in_mlflow(services.place) == 0, 60, "ends in MLflow")


def running_in_mlflow(place: Path) -> int:
    """How many runs MLflow believes to be alive, the second one's among them."""
    with sqlite3.connect(place / "state/mlflow/mlflow.db", timeout=30) as database:
        query = (
            "select count(*) from runs where status = 'RUNNING' and run_uuid not in"
            " (select run_uuid from tags where key = 'mlflow.parentRunId')"
        )
        return int(database.execute(query).fetchone()[0])


def test_suspended_run_saves_leaves_its_slot_and_resumes(services: Deployed) -> None:
    services.all_up()
    first = services.submit(f"train.seed={next(seeds)}")
    wait_for(lambda: services.reaches("step 20", first), 240, "training")
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    details = {"pause_timeout": until, "pause_reschedule": True}
    state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    services.api.ask("POST", f"/flow_runs/{first}/set_state", {"state": state})
    wait_for(lambda: not {"flow", "trainer"} & services.processes(first).keys(), 60, "its end")
    assert services.run(first)["state_name"] == "Suspended"
    services.api.ask("POST", f"/flow_runs/{first}/resume", {})
    wait_for(lambda: services.has_ended(first), 480, "the end")
    assert services.run(first)["state_type"] == "COMPLETED"
    (table,) = [
        one
        for one in services.api.pages("/artifacts/filter")
        if one["flow_run_id"] == first and one["type"] == "table" and '"done"' in one["data"]
    ]
    assert f"{NUM_STEPS} steps" in table["data"], "the page shows what the stages gave"
