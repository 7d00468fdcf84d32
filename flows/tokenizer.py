"""A tokenizer, trained and measured, with the data it still needs; `-m` compares several."""

from __future__ import annotations

from prefect import flow
from prefect.states import State

from flows.pipeline import stages
from flows.under_prefect import run_flow


@flow(name="tokenizer")
def tokenizer(overrides: list[str] = []) -> State:  # noqa: B006 - Prefect shows the default in its forms
    """A tokenizer, trained and measured."""
    return run_flow("tokenizer", "tokenizer", overrides, stages)
