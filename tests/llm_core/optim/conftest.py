"""Batches that do harm, whenever a step gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from llm_core.training import step as step_module
from llm_core.training.run_config import RunConfig
from tests.support.engine.poison import poisoned_accumulation


@pytest.fixture
def poison(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[RunConfig, dict[int, float]], None]]:
    """Multiply loss and gradients of the batches at these indices by a factor, whenever a step gets
    them."""

    def install(config: RunConfig, factors: dict[int, float]) -> None:
        monkeypatch.setattr(
            step_module, "accumulate_gradients", poisoned_accumulation(config, factors)
        )

    yield install
