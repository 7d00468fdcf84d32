"""Token shards from the newest input: the data half of the pipeline."""

from __future__ import annotations

from prefect import flow
from prefect.states import State

from flows.pipeline import stages
from flows.under_prefect import run_flow


@flow(name="refresh")
def refresh(overrides: list[str] = []) -> State:  # noqa: B006 - Prefect shows the default in its forms
    """Token shards from the newest input: the data half of the pipeline."""
    return run_flow("refresh", "shards", overrides, stages)
