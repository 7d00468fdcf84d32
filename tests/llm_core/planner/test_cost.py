"""Operations and cost by each convention follow from each other."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.model.masks import AttentionMask
from llm_core.model.sparse.pairs import attended_tokens
from llm_core.model.sparse.patterns import Pattern
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.cost import flops_per_token, plan_headline, training_speed
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_memory, plan_time
from llm_core.training.config import TrainConfig

MODEL = ModelConfig(1000, 64, 4, 4, 4, 128, 512, qk_norm=True)
CPU = torch.device("cpu")
H100 = HardwareConfig("H100", 80, 3350, 989, 67, watts=700, price_per_hour=2)


@settings(max_examples=40)
@given(st.integers(1, 80), st.integers(1, 64), st.sets(st.integers(0, 3)))
def test_attention_counts_the_pairs_of_each_layers_mask(
    seq_len: int, window: int, full_layers: set[int]
) -> None:
    model = dataclasses.replace(MODEL, window=window, full_layers=tuple(full_layers))
    area = 0.0
    for pattern in model.patterns:
        window = pattern.window
        mask = AttentionMask(Pattern(window=window)).dense(seq_len, seq_len, CPU)
        # An area counts half of each pair on the diagonal, as far as rows grow.
        area += int(mask.sum()) - min(window or seq_len, seq_len) / 2
    assert attended_tokens(model.patterns, seq_len) == pytest.approx(
        2 * area / model.num_layers / seq_len
    )


@pytest.mark.parametrize("recompute", ["none", "selective", "every", "full"])
def test_hardware_does_what_the_model_needs_and_what_is_recomputed(recompute: str) -> None:
    memory = MemoryConfig(recompute=recompute)  # type: ignore[arg-type]
    found = flops_per_token(MODEL, memory, 512)
    assert found.hardware_causal >= found.model_causal
    assert found.hardware_full - found.model_full >= found.hardware_causal - found.model_causal
    if recompute == "full":
        head = MODEL.vocab_size * MODEL.dim
        assert found.hardware_full == pytest.approx(
            4 / 3 * (found.model_full - 6 * head) + 6 * head
        )
    if recompute == "none":
        assert found.hardware_full == found.model_full


def test_utilisation_is_operations_over_the_peak() -> None:
    work = Work(
        MODEL,
        OptimConfig(lr=1e-3),
        TrainConfig(
            num_steps=10, global_batch_sequences=16, seq_len=512, micro_batch_sequences=4,
            dtype="bf16",
        ),
        ParallelConfig(num_processes=2, kind="ddp"),
        MemoryConfig(recompute="full"),
    )  # fmt: skip
    time = plan_time(work, H100)
    speed = training_speed(work, time, H100)
    flops = flops_per_token(MODEL, work.memory, 512)
    per_s = work.train.tokens_per_step / time.step_s
    assert speed.mfu_full == pytest.approx(per_s * flops.model_full / 2 / 989e12)
    assert speed.hfu_causal == pytest.approx(per_s * flops.hardware_causal / 2 / 989e12)
    assert speed.cost.days * 86400 == pytest.approx(10 * time.step_s)
    headline = plan_headline(work, H100)
    assert headline["planned_step_s"] == time.step_s
    assert headline["planned_max_memory_bytes"] == plan_memory(work, H100).allocated
    assert headline["planned_money"] == pytest.approx(2 * headline["planned_device_hours"])
    unpriced = plan_headline(work, dataclasses.replace(H100, price_per_hour=0, watts=0))
    assert headline.keys() - unpriced.keys() == {"planned_money", "planned_energy_kwh"}
