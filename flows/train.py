"""A trained model, with whatever data stages it still needs."""

from __future__ import annotations

from prefect import flow
from prefect.states import State

from flows.pipeline import stages
from flows.under_prefect import run_flow


@flow(name="train")
def train(overrides: list[str] = []) -> State:  # noqa: B006 - Prefect shows the default in its forms
    """A trained model, with whatever data stages it still needs."""
    return run_flow("train", "train", overrides, stages)
