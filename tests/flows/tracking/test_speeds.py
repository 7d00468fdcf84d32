"""Measurements of speed are series in MLflow, over context and concurrency."""

from __future__ import annotations

from flows.tracking.speeds import speed_points
from tests.support.data.report_model_numbers import model_metrics


def test_cells_are_series_over_context_and_loads_over_concurrency() -> None:
    metrics = model_metrics()["bench"]
    series: dict[str, dict[int, float]] = {}
    for point in speed_points(metrics, at_ms=5):
        assert point.at_ms == 5
        assert point.step not in series.setdefault(point.name, {}), "two values at one step"
        series[point.name][point.step] = point.value
    decode = series["grid/model/static/batch_8/new_64/decode_tok_s"]
    assert list(decode) == [64, 448] and decode[64] > decode[448]
    assert series["grid/int8/uncached/batch_1/new_64/mbu"] == {64: 0.12, 448: 0.12}
    waits = series["load/http/closed/ttft_s/p50"]
    assert list(waits) == [1, 4, 8] and waits[1] < waits[8]
    assert "load/engine/closed/ttft_s/p95" not in series


def test_an_open_loop_is_a_series_over_the_share_of_arrivals() -> None:
    row = {
        "target": "engine",
        "kind": "open",
        "arrival_frac": 0.9,
        "tok_s": 7.0,
        "ttft_s": {"p50": None},
    }
    (point,) = speed_points({"loads": [row]}, at_ms=0)
    assert (point.name, point.step, point.value) == ("load/engine/open/tok_s", 90, 7.0)
