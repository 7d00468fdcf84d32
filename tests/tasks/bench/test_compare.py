"""Two measurements are compared pair by pair; a difference is clear only beyond its interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llm_core.config import ConfigError
from tasks.bench.compare import compare_speeds
from tests.support.data.report_loads import load


def cell(batch: int, speeds: list[float], weights: str = "model") -> dict[str, Any]:
    return {
        "mode": "cached", "cache": "static", "weights": weights, "batch": batch,
        "prompt_tokens": 8, "new_tokens": 4, "samples": {"decode_tok_s": speeds},
        "decode_tok_s": {"median": float(np.median(speeds))},
    }  # fmt: skip


def measured(*cells: dict[str, Any], loads: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"cells": list(cells), "loads": list(loads), "withheld": None, "environment": {}}


def around(middle: float, seed: int, spread: float = 0.02) -> list[float]:
    random = np.random.default_rng(seed)
    return (middle * random.normal(1, spread, 9)).tolist()


def test_a_measurement_against_itself_is_one_and_never_clear() -> None:
    one = measured(cell(1, around(100, 0)), cell(4, around(300, 1)), loads=(load("engine", 4),))
    found = compare_speeds(one, one)
    rows = [*found["cells"], found["overall"]]
    assert all(row["ratio"] == 1 and not row["is_clear"] for row in rows)
    assert all(row["low"] <= 1 <= row["high"] for row in rows)
    assert found["loads"][0]["tok_s_ratio"] == 1 and found["cells_of_one"] == [0, 0]


def test_a_speed_up_beyond_the_spread_is_clear_and_its_interval_holds_it() -> None:
    first = measured(*(cell(batch, around(100 * batch, batch)) for batch in (1, 2, 4, 8)))
    second = measured(*(cell(batch, around(150 * batch, 10 + batch)) for batch in (1, 2, 4, 8)))
    found = compare_speeds(first, second)
    for row in [*found["cells"], found["overall"]]:
        assert row["is_clear"] and row["low"] <= row["ratio"] <= row["high"]
        assert row["ratio"] == pytest.approx(1.5, rel=0.05)
    back = compare_speeds(second, first)["overall"]["ratio"]
    assert back == pytest.approx(1 / found["overall"]["ratio"], rel=1e-4)


def test_noise_as_large_as_the_difference_is_not_clear() -> None:
    first = measured(cell(1, around(100, 0, 0.2)))
    second = measured(cell(1, around(103, 1, 0.2)))
    assert not compare_speeds(first, second)["cells"][0]["is_clear"]


def test_cells_and_loads_of_one_side_are_left_out_and_counted() -> None:
    first = measured(cell(1, around(9, 0)), cell(2, around(9, 1)), loads=(load("engine", 1),))
    second = measured(cell(1, around(9, 2)), cell(1, around(9, 3), "int8"))
    found = compare_speeds(first, second)
    assert [row["name"] for row in found["cells"]] == ["model · static · 1 × 8+4"]
    assert found["cells_of_one"] == [1, 1] and found["loads"] == []


def test_waits_of_loads_are_compared_request_by_request() -> None:
    slow, fast = load("http", 4), load("engine", 4) | {"target": "http"}
    waits = [0.1 + 0.001 * n for n in range(48)]
    slow["samples"], fast["samples"] = {"ttft_s": waits}, {"ttft_s": [w / 2 for w in waits]}
    (row,) = compare_speeds(measured(loads=(slow,)), measured(loads=(fast,)))["loads"]
    # Half of each wait: with pairs drawn together every resample has the same ratio.
    assert (row["low"], row["high"]) == (0.5, 0.5) and row["is_clear"]


def test_repeats_that_are_unknown_give_no_interval() -> None:
    old = cell(1, [9.0])
    del old["samples"]
    (row,) = compare_speeds(measured(old), measured(old))["cells"]
    assert row["ratio"] == 1 and row["low"] is None and not row["is_clear"]


def test_withheld_speed_and_unlike_grids_are_errors() -> None:
    one = measured(cell(1, around(9, 0)))
    with pytest.raises(ConfigError, match="the second has no speed to compare: a cache is wrong"):
        compare_speeds(one, one | {"withheld": "a cache is wrong"})
    with pytest.raises(ConfigError, match="no cell and no load in common"):
        compare_speeds(one, measured(cell(3, around(9, 0))))
