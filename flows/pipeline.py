"""Makes Prefect flows of the pipeline and of its parts.

A flow is given overrides and nothing else. Its plan decides which stages of `flows.stages` run,
which are in the store already, and which nothing asks for.
"""

from __future__ import annotations

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import State

from flows.commands.table import FLOWS
from flows.live.announced import run_name
from flows.stages import stages
from flows.under_prefect import run_flow


def _run(command: str, overrides: list[str]) -> State:
    entry = FLOWS[command]
    return run_flow(entry.flow, entry.target, overrides, stages)


def _name() -> str:
    """What the current flow run is called."""
    return run_name(flow_run.flow_name, flow_run.parameters.get("overrides", []))


# Prefect shows the default of `overrides` in its forms, so it is a list.


@flow(name="pipeline", flow_run_name=_name)
def pipeline(overrides: list[str] = []) -> State:  # noqa: B006
    """From raw text to a trained, evaluated, measured model and its report."""
    return _run("run", overrides)


@flow(name="refresh", flow_run_name=_name)
def refresh(overrides: list[str] = []) -> State:  # noqa: B006
    """Token shards from the newest input: the data half of the pipeline."""
    return _run("refresh", overrides)


@flow(name="train", flow_run_name=_name)
def train(overrides: list[str] = []) -> State:  # noqa: B006
    """A trained model, with whatever data stages it still needs."""
    return _run("train", overrides)


@flow(name="tokenizer", flow_run_name=_name)
def tokenizer(overrides: list[str] = []) -> State:  # noqa: B006
    """A tokenizer, trained and measured."""
    return _run("tokenizer", overrides)


@flow(name="evaluate", flow_run_name=_name)
def evaluate(overrides: list[str] = []) -> State:  # noqa: B006
    """Bits per byte, baselines and samples of a trained model."""
    return _run("evaluate", overrides)


@flow(name="bench", flow_run_name=_name)
def bench(overrides: list[str] = []) -> State:  # noqa: B006
    """Speed of a trained model on this machine."""
    return _run("bench", overrides)
