"""The report holds what was planned against what was measured."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.report.charts import NARROW_WIDTH, WIDE, Reference, Stack, stacks
from tasks.report.quantities import fixed, significant
from tests.support.data import report_artifacts
from tests.support.data.planned_training import plan_of_training
from tests.support.report_page import Page, changed, render


def test_what_was_predicted_and_measured_stand_in_one_row_with_their_ratio(tmp_path: Path) -> None:
    text = Page(render(report_artifacts.realistic(tmp_path), tmp_path)).text
    ratio = plan_of_training()["ratio"]
    assert f"241 k {fixed(ratio['tokens_per_s'])}" in text
    assert f"a step took {significant(ratio['step_s'])} times as long" in text
    assert "weights 1.28 GB 1.28 GB 1.000" in text and "peak of a GPU 31.9 GB" in text


def test_ranks_of_a_pipeline_and_the_parts_of_a_step_are_drawn(tmp_path: Path) -> None:
    html = render(report_artifacts.realistic(tmp_path), tmp_path)
    titles = ("pipeline rank 3, activations: ", "predicted, matrix products: ", "measured, 1.09")
    for title in titles:
        assert title in html, title
    assert "memory of a device" in html and "(this run)" in html


def test_without_devices_states_alone_are_compared_and_the_way_to_more_is_named(
    tmp_path: Path,
) -> None:
    plan = plan_of_training()
    states = {
        kind: {name: v for name, v in plan[kind].items() if name.endswith("s_bytes")}
        for kind in ("predicted", "measured", "ratio")
    }
    artifacts = report_artifacts.realistic(tmp_path)
    text = Page(render(changed(artifacts, "train", plan=states), tmp_path)).text
    assert "hardware=h100" in text and "gradients 1.28 GB 1.28 GB 1.000" in text
    assert "Time of a step" not in text and "Layouts of as many devices" not in text


def test_a_training_without_a_plan_has_no_such_section(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    assert "Planned and measured" in render(artifacts, tmp_path)
    assert "Planned and measured" not in render(changed(artifacts, "train", plan={}), tmp_path)


@given(
    st.lists(st.lists(st.floats(0, 1e12), min_size=1, max_size=8), min_size=1, max_size=5),
    st.floats(1, 1e12),
    st.sampled_from([WIDE, NARROW_WIDTH]),
)
def test_parts_of_a_stack_follow_each_other_within_the_frame(
    amounts: list[list[float]], limit: float, width: int
) -> None:
    rows = [
        Stack(f"row {i}", [("part p1", amount, "a part") for amount in parts], "all")
        for i, parts in enumerate(amounts)
    ]
    drawn = str(stacks(rows, width, Reference("limit", limit)))
    bars = re.findall(r'<rect x="([\d.e+]+)" y="([\d.]+)" width="([\d.e+]+)"[^>]*part p1', drawn)
    assert len(bars) == sum(map(len, amounts))
    ends: dict[str, float] = {}
    for x, y, length in bars:
        assert float(x) >= ends.get(y, 0.0) - 0.2, "rounded to a tenth of a pixel"
        ends[y] = float(x) + float(length)
        assert ends[y] <= width + 0.2
