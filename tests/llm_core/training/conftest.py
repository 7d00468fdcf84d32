"""A short run over shards of its own."""

import pytest

from llm_core.training.run_config import RunConfig
from tests.support.engine.small_runs import run_config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return run_config(
        tmp_path_factory.mktemp("inputs"),
        train={"num_steps": 20, "validate_every": 6, "checkpoint_every": 4},
    )
