import dataclasses
from typing import Any

import pytest

from llm_core.config import ConfigError
from llm_core.train_config import OptimConfig, ParallelConfig, check_run
from tests.llm_core.small_runs import MODEL, TRAIN


def test_global_batch_must_divide_over_processes_and_micro_batches() -> None:
    with pytest.raises(ConfigError, match=r"global_batch_sequences \(8\).*micro_batch_sequences x num_processes \(2 x 3\).*=6"):
        check_run(MODEL, TRAIN, ParallelConfig("ddp", 3))


def test_sequences_must_fit_the_model() -> None:
    with pytest.raises(ConfigError, match=r"seq_len \(65\).*max_seq_len \(64\)"):
        check_run(MODEL, dataclasses.replace(TRAIN, seq_len=65), ParallelConfig())


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (OptimConfig, {"lr": 0.0}),
        (OptimConfig, {"lr": 1.0, "beta1": 1.0}),
        (OptimConfig, {"lr": 1.0, "clip_norm": 0.0}),
        (ParallelConfig, {"kind": "none", "num_processes": 2}),
        (ParallelConfig, {"device": "cpu", "backend": "nccl"}),
    ],
)
def test_impossible_settings_are_refused(make: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**values)
