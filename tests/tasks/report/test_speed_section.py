"""The section on speed shows the grid with its scale, and loads with no more than was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.report.charts import NARROW_WIDTH, WIDE
from tasks.report.grid_heat import STEPS, grid_heat
from tasks.report.quantities import Facts, compact
from tasks.report.sections.loads import load_values
from tests.support.data import report_artifacts
from tests.support.data.report_model_numbers import model_metrics
from tests.support.report_page import Page, changed, render

speeds = st.none() | st.floats(1e-3, 1e9)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda columns: st.lists(
            st.lists(speeds, min_size=columns, max_size=columns), min_size=1, max_size=6
        )
    ),
    st.sampled_from([WIDE, NARROW_WIDTH]),
)
def test_every_value_has_a_cell_inside_the_frame_and_larger_ones_are_darker(
    values: list[list[float | None]], width: int
) -> None:
    rows = [f"int8 weights · cache {i}" for i in range(len(values))]
    columns = [f"8 × {j}" for j in range(len(values[0]))]
    drawn = str(grid_heat(rows, columns, values, "tokens/s", width))
    height = float(re.search(r'viewBox="0 0 [\d.]+ (\d+)"', drawn)[1])  # type: ignore[index]
    boxes = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" class="heat"'
        r' style="fill-opacity:([\d.]+)"',
        drawn,
    )
    known = [value for row in values for value in row if value is not None]
    assert len(boxes) == len(known) + STEPS
    for x, y, wide, high, _ in (map(float, box) for box in boxes):
        assert x + wide <= width + 0.2 and y + high <= height
    shades = [float(box[4]) for box in boxes[: len(known)]]
    for value, shade in zip(known, shades, strict=True):
        for other, other_shade in zip(known, shades, strict=True):
            assert value <= other or shade >= other_shade
    if known:  # the ends of the scale
        assert compact(min(known)) in drawn and compact(max(known)) in drawn


def test_grid_and_loads_are_shown_for_a_wide_column_and_a_phone(tmp_path: Path) -> None:
    html = render(report_artifacts.realistic(tmp_path), tmp_path)
    page = Page(html)
    assert page.faults == []
    for said in ("Decode speed by weights, cache", "int8 · recomputed", "Gaps between tokens"):
        assert said in page.text
    assert "engine, 8 at once" in page.text and "at most 2,000 ms to the first token" in page.text
    # The bars stay those of the headline: the model's own weights and a static cache.
    assert "batch 8, 448 + 64 · cached" in page.text
    assert page.text.count("batch 8, 448 + 64 · cached") == 2  # once for each width


@pytest.mark.parametrize("missing", ["loads", "cells"])
def test_what_was_not_measured_is_not_drawn(missing: str, tmp_path: Path) -> None:
    artifacts = changed(report_artifacts.realistic(tmp_path), "bench", **{missing: []})
    page = Page(render(artifacts, tmp_path))
    assert page.faults == []
    gone = {"loads": "Under load", "cells": "Decode speed by weights, cache"}[missing]
    assert gone not in page.text


def test_a_percentile_of_too_few_requests_is_a_dash() -> None:
    shown = load_values(Facts(model_metrics()["bench"]))["loads"]
    p99_of_gaps, p90_of_first = shown[0][7], shown[0][5]
    assert p99_of_gaps != "–" and p90_of_first != "–"
    few = model_metrics()["bench"]["loads"][0] | {"ttft_s": {"p50": 0.01, "p90": None}}
    assert load_values(Facts({"loads": [few]}))["loads"][0][5] == "–"


def test_what_was_left_out_is_said_with_its_reason(tmp_path: Path) -> None:
    reason = "withheld: a greedy token lies 3 standard deviations behind"
    artifacts = changed(
        report_artifacts.realistic(tmp_path),
        "bench",
        skipped=[{"weights": "int4", "reason": reason}],
    )
    text = Page(render(artifacts, tmp_path)).text
    assert reason in text and "did not fit the model's context" not in text
    proofs = [{"name": "batch", "finding": "answer 2 differs at token 5", "passed": False}]
    wrong = {"fp64_max_abs_diff": 1e-13, "passed": False, "checks": [], "answers": proofs}
    text = Page(render(changed(artifacts, "bench", correctness=wrong), tmp_path)).text
    assert "answers of the engine are wrong (batch: answer 2 differs at token 5)" in text
