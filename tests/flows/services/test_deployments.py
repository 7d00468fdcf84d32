"""prefect.yaml says only what the flows can do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flows.compose import compose
from flows.services.deployments import _read, changes, merge
from tasks.runtime.code import ROOT
from tasks.runtime.graph import STAGES

DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))["deployments"]


def load_flow(deployment: dict[str, Any]) -> Any:
    file, _, function = deployment["entrypoint"].partition(":")
    return getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), function)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_deployment_fits_its_flow(deployment: dict[str, Any]) -> None:
    flow = load_flow(deployment)
    assert set(flow.validate_parameters(deployment["parameters"])) == {"overrides"}
    compose(deployment["parameters"]["overrides"])
    with pytest.raises(Exception, match="overrides"):
        flow.validate_parameters({"overrides": "run=demo"})


def test_names_that_the_documentation_promises() -> None:
    names = [f"{load_flow(d).name}/{d['name']}" for d in DEPLOYMENTS]
    assert {
        "pipeline/local",
        "pipeline/full",
        "refresh/nightly",
        "tokenizer/local-tokenizer",
        "train/local-train",
    } <= set(names)
    assert len({d["name"] for d in DEPLOYMENTS}) == len(DEPLOYMENTS), (
        "Prefect finds deployments by their last name too"
    )


def test_the_full_pipeline_rebuilds_every_stage() -> None:
    full = next(d for d in DEPLOYMENTS if d["name"] == "full")
    # The report is rebuilt with whatever is forced.
    assert set(compose(full["parameters"]["overrides"]).force) | {"report"} == set(STAGES)


def test_schedules_are_valid_and_wait_to_be_switched_on() -> None:
    from prefect.client.schemas.schedules import CronSchedule

    schedules = [schedule for d in DEPLOYMENTS for schedule in d.get("schedules", [])]
    assert schedules
    for schedule in schedules:
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        assert schedule["active"] is False


def test_deployments_work_from_any_clone() -> None:
    assert str(Path.home()) not in (ROOT / "prefect.yaml").read_text("utf-8")
    assert "pull" not in yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))


SETTINGS = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(st.integers(0, 3), st.dictionaries(st.sampled_from("xy"), st.integers(0, 3))),
)


@given(SETTINGS, SETTINGS)
def test_the_file_holds_where_nobody_set_anything_and_settings_stay_where_it_is_the_same(
    one: Any, other: Any
) -> None:
    assert merge(one, one, other) == other
    assert merge(one, other, one) == other
    assert merge(one, other, other) == other


def test_a_field_set_on_both_sides_is_that_of_the_file() -> None:
    applied = {"schedules": {"nightly": {"active": False, "cron": 3}}, "paused": False}
    theirs = {
        "schedules": {"nightly": {"active": True, "cron": 4}, "mine": {"active": True}},
        "paused": True,
    }
    ours = {"schedules": {"nightly": {"active": False, "cron": 5}}, "paused": False}
    merged = {
        "schedules": {"nightly": {"active": True, "cron": 5}, "mine": {"active": True}},
        "paused": True,
    }
    assert merge(applied, theirs, ours) == merged
    assert merge(applied, {"paused": False}, applied) == {"paused": False}, (
        "what somebody deleted stays away"
    )


def test_changes_are_one_line_a_field_without_secrets() -> None:
    before = {"paused": False, "parameters": {"overrides": ["a=1"]}}
    after = {"paused": True, "parameters": {"overrides": ["tracking.uri=http://me:hidden@host"]}}
    assert list(changes(before, after)) == [
        'parameters.overrides: ["a=1"] → ["tracking.uri=http://me:***@host"]',
        "paused: false → true",
    ]
    assert list(changes(None, after)) == ["new"]


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_deployments_are_read_however_many_there_are() -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        flow_id = client.create_flow_from_name("many")
        names = [f"number-{i}" for i in range(201)]  # a server gives 200 at once
        for name in names:
            client.create_deployment(flow_id, name)
        ids, found = _read(client)
    assert {f"many/{name}" for name in names} <= ids.keys() == found.keys()
