from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from llm_core.optim.config import OptimizerKind, ScheduleKind
from tasks.report.run import Run
from tasks.report.sections.training import OPTIMIZERS, SCHEDULES, training_section
from tasks.training.stage import of_experts
from tests.support.data.report_artifacts import published


def section(root: Path, **optim: object) -> str:
    artifacts = published(
        root,
        {},
        {},
        config={"optim": {"lr": 0.005, "min_lr_frac": 0.0, "warmup_steps": 20} | optim},
    )
    shown = training_section(Run({artifact.stage: artifact for artifact in artifacts}))
    return shown.body


@pytest.mark.parametrize("kind", get_args(OptimizerKind))
def test_report_says_which_optimizer_made_the_steps_and_how(kind: str, tmp_path: Path) -> None:
    name, meaning = OPTIMIZERS[kind]
    shown = section(tmp_path, kind=kind, schedule="cosine")
    assert name in shown and meaning in shown


@pytest.mark.parametrize("schedule", get_args(ScheduleKind))
def test_report_says_how_the_learning_rate_ran(schedule: str, tmp_path: Path) -> None:
    shown = section(tmp_path, kind="muon", schedule=schedule, decay_frac=0.6)
    assert "0.005" in shown and SCHEDULES[schedule].split(" ")[0] in shown and "{" not in shown


def test_report_of_a_run_that_says_nothing_of_its_optimizer_leaves_it_out(tmp_path: Path) -> None:
    assert "Optimizer" not in section(tmp_path)


def test_report_draws_the_slowest_processes_over_the_steps(tmp_path: Path) -> None:
    def timing(world: int) -> list[dict[str, object]]:
        return [
            {"step": step, "paces": [{"rank": r, "pace": 1 + r * step / 100} for r in range(world)]}
            for step in range(1, 51)
        ]

    def shown(world: int) -> str:
        artifacts = published(tmp_path, {"train": {"timing": timing(world)}}, {})
        return training_section(Run({artifact.stage: artifact for artifact in artifacts})).body

    many = shown(40)
    assert "Pace of processes" in many and "process 39, 50: 20.5 times the median" in many
    assert "process 24," in many and "process 23," not in many, "the sixteen slowest"
    assert "Pace of processes" not in shown(1)


def test_report_shows_how_tokens_were_shared_among_experts(tmp_path: Path) -> None:
    def shown(metrics: dict[str, object]) -> str:
        artifacts = published(tmp_path, {"train": metrics}, {})
        return training_section(Run({artifact.stage: artifact for artifact in artifacts})).body

    steps = [
        {"step": n, "expert_load": [1.25, 1 + n / 8], "expert_entropy": [2.0, 1.5]}
        for n in range(1, 4)
    ]
    found = of_experts(steps, steps)
    assert found["experts"]["curve"][-1] == {"step": 3, "load": 1.375}
    body = shown(found)
    assert "Load of experts" in body and "1.25" in body and "1.50" in body
    assert "Load of experts" not in shown({})
    assert of_experts([{"step": 1}], []) == {}
