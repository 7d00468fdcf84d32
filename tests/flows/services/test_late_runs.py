"""Of several late nights one is made up for, and nothing else is cancelled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flows.services.late_runs import superseded

NIGHT = datetime(2026, 1, 1, 3, tzinfo=UTC)


def scheduled(night: int, **more: Any) -> dict[str, Any]:
    at = (NIGHT + timedelta(days=night)).isoformat()
    run = {"id": str(night), "state_type": "SCHEDULED", "expected_start_time": at}
    return run | {"start_time": None, "run_count": 0} | more


def active(began_at_night: float) -> dict[str, Any]:
    at = (NIGHT + timedelta(days=began_at_night)).isoformat()
    return scheduled(0) | {"id": "active", "state_type": "RUNNING", "start_time": at}


@given(st.lists(st.integers(0, 50), min_size=1, unique=True))
def test_of_late_nights_the_newest_is_left(nights: list[int]) -> None:
    gone = {run["id"] for run in superseded([scheduled(night) for night in nights])}
    assert {str(night) for night in nights} - gone == {str(max(nights))}


@given(st.lists(st.integers(0, 50), unique=True), st.floats(0, 51))
def test_night_after_which_a_run_has_begun_need_not_be_made_up_for(
    nights: list[int], began: float
) -> None:
    gone = {run["id"] for run in superseded([active(began), *map(scheduled, nights)])}
    left = {str(night) for night in nights if night == max(nights) and night >= began}
    assert gone == {str(night) for night in nights} - left


def test_run_that_waits_for_its_retry_is_no_late_night() -> None:
    assert superseded([scheduled(1, run_count=1), scheduled(2)]) == []
