"""Bits per byte, baselines and samples of a trained model."""

from __future__ import annotations

from prefect import flow
from prefect.states import State

from flows.pipeline import stages
from flows.under_prefect import run_flow


@flow(name="evaluate")
def evaluate(overrides: list[str] = []) -> State:  # noqa: B006 - Prefect shows the default in its forms
    """Bits per byte, baselines and samples of a trained model."""
    return run_flow("evaluate", "evaluate", overrides, stages)
