"""What goes wrong on one rank is known to all, and all do the same about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_core.optim.guard import NOT_FINITE, OVERFLOW, UPDATED
from tests.support.distributed.processes import run_program
from tests.support.distributed.troubles import BROKEN_BATCHES, OVERFLOWING, WORLD


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of each rank."""
    folder = tmp_path_factory.mktemp("troubles")
    run_program("tests.support.distributed.troubles", [str(folder)], folder)
    return [json.loads((folder / f"rank-{rank}.json").read_text("utf-8")) for rank in range(WORLD)]


def test_an_overflow_lowers_the_scale_of_every_rank_alike(found: list[dict[str, Any]]) -> None:
    assert all(one["overflow"] == found[0]["overflow"] for one in found)
    for steps in found[0]["overflow"].values():
        assert {reason for reason, _ in steps} == {OVERFLOW, UPDATED}, "until the scale fits"
        assert steps[0] == [OVERFLOW, OVERFLOWING.initial] and steps[-1][1] < OVERFLOWING.initial


def test_a_gradient_that_is_no_number_on_one_rank_leaves_all_weights_and_moments_as_they_are(
    found: list[dict[str, Any]],
) -> None:
    for one in found:
        assert set(map(tuple, one["broken"].values())) == {(NOT_FINITE, False)}, one["broken"]


def test_all_ranks_go_back_to_the_same_point_past_the_same_batches(
    found: list[dict[str, Any]],
) -> None:
    event = {"step": 2, "event": "rollback", "number": 1, "from_step": 4, "passed_batches": 2}
    for one in found:
        for told in one["rollback"].values():
            assert told == {"read": [0, 1, *BROKEN_BATCHES, 4, 5], "events": [event]}


def test_imported_weights_are_the_same_bits_under_every_layout(found: list[dict[str, Any]]) -> None:
    assert all(all(one["imported"].values()) for one in found)


def test_a_context_rank_without_a_target_changes_no_answer(found: list[dict[str, Any]]) -> None:
    for differences in found[0]["no target"].values():
        assert {"initial", "loss", "gradient", "norm", "parameter"} <= differences.keys()
        assert max(differences.values()) <= 1e-10, differences


def test_no_step_of_any_axis_waits_for_the_device(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert not any(one["waits"].values()), one["waits"]
        assert (
            len(
                [
                    place
                    for place in one["waits if reading"]
                    if "__bool__ between two logged steps" in place
                ]
            )
            == 4
        )
