"""A plan says how long its stages take, and refuses a training that its devices cannot hold."""

from __future__ import annotations

import json

import pytest

from flows.compose import compose
from llm_core.config import ConfigError
from tasks.runtime.graph import STAGES
from tests.flows.conftest import RunCli

SMALL_DEVICE = ("hardware=h100", "hardware.memory_gb=0.01")


@pytest.mark.usefixtures("stand_in_stages")
def test_stages_that_would_run_show_the_time_and_bytes_of_earlier_runs(run_cli: RunCli) -> None:
    assert run_cli("plan")["out"].count("no earlier run") == len(STAGES)
    run_cli("run")
    cached = run_cli("plan")["out"]
    assert "no earlier run" not in cached and "for about" not in cached
    again = run_cli("plan", "tokenizer.vocab_size=512")["out"]
    (row,) = [line for line in again.splitlines() if line.startswith("tokenizer ")]
    assert row.endswith((" B", "kB")) and " s " in row
    assert f"6 of {len(STAGES)} stages would run, for about " in again


@pytest.mark.usefixtures("stand_in_stages")
def test_a_plan_in_json_has_the_same_numbers(run_cli: RunCli) -> None:
    first = run_cli("plan", "--json")["summary"]
    assert [stage["stage"] for stage in first["stages"]] == list(STAGES)
    assert {stage["elapsed_s"] for stage in first["stages"]} == {None}
    run_cli("run")
    out = run_cli("plan", "--json", "force=[bench]")["out"]
    (line,) = out.splitlines()
    plan = json.loads(line)
    running = [stage for stage in plan["stages"] if stage["runs"]]
    assert [stage["stage"] for stage in running] == ["bench", "report"]
    assert plan["elapsed_s"] == pytest.approx(sum(stage["elapsed_s"] for stage in running))
    assert plan["num_bytes"] == sum(stage["num_bytes"] for stage in running)


def test_a_training_that_is_in_the_store_is_not_refused(
    stand_in_stages: list[str], run_cli: RunCli
) -> None:
    refused = run_cli("run", *SMALL_DEVICE)
    assert refused["code"] == 2 and "training needs" in refused["err"]
    assert stand_in_stages == [], "nothing runs before what cannot run is refused"
    assert run_cli("run", "memory.if_too_large=warn", *SMALL_DEVICE)["code"] == 0
    assert run_cli("run", *SMALL_DEVICE)["code"] == 0
    assert run_cli("refresh", "source.name=other", *SMALL_DEVICE)["code"] == 0


def test_where_no_layout_fits_the_one_that_lacks_least_is_taken_if_that_is_asked_for() -> None:
    words = ["source=sample", "parallel=auto", "parallel.num_processes=2", *SMALL_DEVICE]
    with pytest.raises(ConfigError, match="no layout fits: the smallest"):
        compose(words)
    config = compose([*words, "memory.if_too_large=warn"])
    assert config.parallel.num_processes == 2 and config.parallel.kind != "auto"
