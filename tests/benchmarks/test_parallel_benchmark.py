"""The benchmark of layouts over slow links predicts all it measures, and draws all it has found."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.engine.equal_tokens import setting_of
from benchmarks.engine.parallel import LINKS, predict
from benchmarks.engine.parallel_chart import BEST, chart
from benchmarks.engine.parallel_runs import LAYOUTS
from llm_core.planner.hardware import HardwareConfig

CPU = HardwareConfig("X", 6, 20, 0.2, 0.1, launches_ahead=False)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_predicted_to_be_slower_over_slower_links(name: str) -> None:
    speeds = [predict(name, link, CPU) for link in LINKS]
    assert speeds == sorted(speeds, reverse=True) and speeds[-1] < speeds[0]


def test_a_faster_processor_is_predicted_to_be_faster() -> None:
    assert predict("DDP", "10 Gb/s", replace(CPU, tflops_fp32=0.2)) > predict("DDP", "10 Gb/s", CPU)


def test_a_panel_of_the_chart_has_every_layout_by_its_loss() -> None:
    def row(loss: float) -> dict[str, Any]:
        return {"val_loss": loss, "tokens_per_s": 1000.4, "predicted_tokens_per_s": 999.6}

    drawn = chart(
        {
            "fast": {"slow learner": row(2.5), "best": row(2.25)},
            "slow": {"slow learner": row(3.0)},
            "not measured": {},
        }
    )
    told = re.findall(r">([^<]+)</text>", drawn)
    assert [each for each in told if each in ("fast", "slow", "not measured")] == ["fast", "slow"]
    assert told.index("best") < told.index("slow learner")
    assert {"2.250   1,000", "2.500   1,000", "3.000   1,000", "(1,000)"} <= set(told)
    widths = [float(width) for width in re.findall(r'<rect x="\d+" [^>]*width="(\d+)"', drawn)]
    assert widths[0] < widths[1] < widths[2], "losses of all links have one scale"
    assert drawn.count(f'fill="{BEST}"') == 2, "the best of each link"


def test_a_run_is_the_same_run_under_settings_that_it_does_not_use() -> None:
    asked = {"model": "tiny", "steps": 10, "seed": 0, "warmup": 4, "compress_rank": 8}

    def differ(name: str) -> set[str]:
        return {
            key for key in asked if setting_of(name, asked) != setting_of(name, asked | {key: 1})
        }

    assert differ("AdamW") == differ("DiLoCo") == {"model", "steps", "seed"}
    assert differ("1-bit LAMB") == {"model", "steps", "seed", "warmup"}
    assert differ("PowerSGD") == set(asked)
