"""Speed of a trained model on this machine."""

from __future__ import annotations

from prefect import flow
from prefect.states import State

from flows.pipeline import stages
from flows.under_prefect import run_flow


@flow(name="bench")
def bench(overrides: list[str] = []) -> State:  # noqa: B006 - Prefect shows the default in its forms
    """Speed of a trained model on this machine."""
    return run_flow("bench", "bench", overrides, stages)
