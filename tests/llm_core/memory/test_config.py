"""What cannot save memory is refused in one line that names the way out."""

from __future__ import annotations

from typing import Any

import pytest

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.settings import check_memory
from tests.support.engine.small_runs import MODEL


@pytest.mark.parametrize("values", [{"every_k": 0}, {"loss_chunk_tokens": -1}, {"ffn_tiles": 0}])
def test_values_out_of_range_are_refused(values: dict[str, int]) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=rf"^{name} \({values[name]}\) must"):
        MemoryConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("memory", "parallel", "message"),
    [
        ({"ffn_tiles": 17}, {}, r"memory.ffn_tiles \(17\) must be at most 16: ffn_dim \(48\)"),
        (
            {"ffn_tiles": 9},
            {"kind": "ddp", "num_processes": 2, "tp": 2},
            "must be at most 8: .* shared by 2 tensor ranks",
        ),
        (
            {"recompute": "selective"},
            {"kind": "ddp", "num_processes": 2, "pp": 2, "pp_schedule": "zero_bubble"},
            "memory.recompute .selective.* pp_schedule=zero_bubble .* use memory.recompute=full",
        ),
        (
            {"weights_in": "host"},
            {},
            (
                r"memory.weights_in \(host\) needs .*fsdp or hsdp.*kind is none, pp 1; set"
                r" parallel=fsdp"
            ),
        ),
        (
            {"weights_in": "host"},
            {"kind": "fsdp", "num_processes": 2, "pp": 2},
            "without a pipeline, kind is fsdp, pp 2",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    memory: dict[str, Any], parallel: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        check_memory(MemoryConfig(**memory), MODEL, ParallelConfig(**parallel))
    assert "\n" not in str(error.value)


def test_weights_in_main_memory_are_not_for_optimizers_that_exchange_parts_of_them() -> None:
    with pytest.raises(
        ConfigError,
        match=r"weights_in \(host\) serves adamw and lion: optim.kind=muon .* use optim=adamw",
    ):
        check_memory(MemoryConfig(weights_in="host"), MODEL, ParallelConfig(kind="fsdp"), "muon")
