"""Predictions of a step are what one H200 was seen to need, and say what is in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_memory, plan_time
from llm_core.training.config import TrainConfig

H200 = HardwareConfig("H200", 141, 4800, 989, 67, 1979, node_gb_s=450, network_gb_s=50)
MODELS = {
    "s": ModelConfig(32768, 1024, 12, 16, 16, 2816, 4096, tied_embeddings=False),
    "m": ModelConfig(32768, 2048, 16, 16, 8, 8192, 4096, tied_embeddings=False),
    "l": ModelConfig(32768, 3072, 20, 24, 8, 8192, 4096, tied_embeddings=False),
}
ROWS = {"s": 8, "m": 4, "l": 2}
SAVINGS = {"chunk": MemoryConfig(loss_chunk_tokens=2048)}

MEASURED = [
    ("s", "none", False, "bf16", "torch", 17.938, 150.3),
    ("s", "selective", False, "bf16", "torch", 13.639, 204.5),
    ("s", "full", False, "bf16", "torch", 9.799, 189.8),
    ("s", "none", False, "fp32", "torch", 24.935, 977.4),
    ("s", "full", False, "fp32", "torch", 8.814, 1209.7),
    ("s", "chunk", False, "bf16", "torch", 13.409, 153.3),
    ("m", "none", False, "bf16", "torch", 36.32, 271.4),
    ("m", "selective", False, "bf16", "torch", 29.607, 311.0),
    ("m", "full", False, "bf16", "torch", 23.694, 347.4),
    ("m", "none", False, "bf16", "triton", 33.367, 219.8),
    ("m", "chunk", False, "bf16", "torch", 34.751, 274.4),
    ("m", "none", True, "bf16", "torch", 32.561, 218.7),
    ("m", "full", True, "bf16", "torch", 20.07, 265.4),
    ("m", "none", True, "bf16", "triton", 31.756, 212.8),
    ("m", "selective", True, "bf16", "torch", 25.984, 227.6),
    ("l", "none", False, "bf16", "torch", 50.462, 270.8),
]
"""(model, savings, compiled, dtype, kernels, most GB allocated, median ms of a step): two micro
batches of rows of 2,048 tokens, torch 2.11."""


def work(name: str, savings: str, compiled: bool, dtype: str, kernels: str) -> Work:
    rows = ROWS[name]
    train: dict[str, Any] = {"dtype": dtype, "compile": compiled, "kernels": kernels}
    memory = SAVINGS.get(savings) or MemoryConfig(recompute=savings)  # type: ignore[arg-type]
    return Work(
        MODELS[name],
        OptimConfig(lr=1e-4),
        TrainConfig(
            num_steps=10,
            global_batch_sequences=2 * rows,
            seq_len=2048,
            micro_batch_sequences=rows,
            **train,
        ),
        ParallelConfig(),
        memory,
    )


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: "-".join(map(str, case[:5])))
def test_the_peak_of_memory_is_within_3_percent(case: tuple[Any, ...]) -> None:
    found = plan_memory(work(*case[:5]), H200).allocated / 1e9
    assert found == pytest.approx(case[5], rel=0.03)


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: "-".join(map(str, case[:5])))
def test_the_time_of_a_step_is_within_15_percent(case: tuple[Any, ...]) -> None:
    found = plan_time(work(*case[:5]), H200).step_s * 1e3
    assert found == pytest.approx(case[6], rel=0.15)


@pytest.mark.parametrize(("kernels", "tokens_per_s"), [("triton", 39_600), ("quack", 44_000)])
def test_the_speed_of_a_row_of_32768_tokens_is_within_15_percent(
    kernels: str, tokens_per_s: float
) -> None:
    """Compiled, by cuDNN's attention and by FlashAttention-4; see docs/lab-notes/engine.md."""
    row = work("m", "selective", True, "bf16", kernels)
    train = replace(row.train, seq_len=32768, global_batch_sequences=2, micro_batch_sequences=1)
    memory = MemoryConfig(recompute="selective", loss_chunk_tokens=2048)
    row = replace(row, train=train, model=replace(row.model, max_seq_len=32768), memory=memory)
    assert 65536 / plan_time(row, H200).step_s == pytest.approx(tokens_per_s, rel=0.15)
