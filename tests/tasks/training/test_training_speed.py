"""The speed of training is a median over logging intervals."""

import pytest

from tasks.training.training_speed import series, speed


def test_speed_is_the_median_over_logged_stretches() -> None:
    rest = {"elapsed_s": 2.0, "data_wait_s": 0.5, "max_memory_bytes": 3}
    timing = [{"tokens_per_s": each, **rest} for each in (9.0, 200.0, 250.0)]
    assert speed(timing)["tokens_per_s"] == 200.0


def test_a_series_of_speed_joins_stretches_and_keeps_the_whole() -> None:
    timing = [
        {
            "step": k + 1,
            "elapsed_s": 1.0 + k % 3,
            "tokens_per_s": 100.0 * (k + 1),
            "data_wait_s": 0.5 * (k % 2),
        }
        | {"max_memory_bytes": k % 7, "slowest_rank": k % 4, "slowest_pace": 1.0 + (k == 4)}
        for k in range(10)
    ]
    tokens = sum(row["tokens_per_s"] * row["elapsed_s"] for row in timing)
    found = series(timing, 4)
    assert [row["step"] for row in found] == [3, 6, 9, 10]
    times = [
        sum(row["elapsed_s"] for row in timing[begin : begin + 3]) for begin in range(0, 10, 3)
    ]
    assert sum(
        row["tokens_per_s"] * time for row, time in zip(found, times, strict=True)
    ) == pytest.approx(tokens)
    assert [row["max_memory_bytes"] for row in found] == [2, 5, 6, 2]
    assert (found[1]["slowest_rank"], found[1]["slowest_pace"]) == (0, 2.0)
    assert [row["tokens_per_s"] for row in series(timing)] == [
        row["tokens_per_s"] for row in timing
    ]


def test_a_series_keeps_the_worst_pace_of_each_process_in_what_it_joins() -> None:
    row = {"elapsed_s": 1.0, "data_wait_s": 0.0, "max_memory_bytes": 1}
    first, second = [{"rank": 3, "pace": 1.5}], [{"rank": 3, "pace": 1.2}, {"rank": 0, "pace": 1.0}]
    (found,) = series([row | {"paces": first}, row | {"paces": second}], 1)
    assert found["paces"] == [{"rank": 3, "pace": 1.5}, {"rank": 0, "pace": 1.0}]
