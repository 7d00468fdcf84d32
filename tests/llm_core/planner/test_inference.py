"""A serving plan counts the bytes that an engine holds, and its ceilings follow from them."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.infer.cache.paged import PagedCache
from llm_core.infer.cache.static import StaticCache
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.inference import (
    Cache,
    Format,
    Served,
    cache_bytes_per_token,
    logits_bytes_per_sequence,
    pass_bytes,
    serving_plans,
    weights_bytes,
)
from llm_core.quantize.model import num_bytes, round_model
from tests.support.distributed.problem import Problem

H100 = HardwareConfig("H100", 80, 3350, 989, 67)
LLAMA_8B = ModelConfig(128256, 4096, 32, 32, 8, 14336, 8192, tied_embeddings=False)


@pytest.mark.parametrize("weights", get_args(Format))
@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen3", False), ("gpt2", True)])
def test_weights_take_the_bytes_of_a_rounded_model(
    family: str, tied: bool, weights: Format
) -> None:
    # Rows of more than one group in 4 bits, the last one not full.
    config = dataclasses.replace(Problem(family=family, tied=tied).model(), dim=80, ffn_dim=200)
    model = Transformer(config)
    init_weights(model, 0)
    model = model.bfloat16()
    if weights != "bf16":
        model = round_model(model, weights)
    assert weights_bytes(config, weights) == num_bytes(model)


@pytest.mark.parametrize("cache", get_args(Cache))
def test_a_token_takes_the_bytes_of_a_cache(cache: Cache) -> None:
    config, int8 = Problem(family="qwen3").model(), cache == "int8"
    static = StaticCache(config, 3, 40, torch.bfloat16, int8=int8)
    paged = PagedCache(config, 5, 16, torch.bfloat16, int8=int8)
    token = cache_bytes_per_token(config, cache)
    assert static.num_bytes - static.lengths_B.nbytes == 3 * 40 * token
    assert paged.num_bytes == 5 * 16 * token


@settings(max_examples=50)
@given(st.floats(10, 200), st.sampled_from([0, 4096]), st.sampled_from([1, 2, 8]))
def test_as_many_sequences_fit_as_are_named_and_not_one_more(
    memory_gb: float, window: int, num_devices: int
) -> None:
    model = dataclasses.replace(LLAMA_8B, window=window, max_seq_len=32768)
    hardware = dataclasses.replace(H100, memory_gb=memory_gb)
    room = num_devices * (memory_gb - hardware.reserve_gb) * 1e9 - pass_bytes(model)
    for found in serving_plans(model, hardware, num_devices):
        free = room - weights_bytes(model, found.weights)
        assert found.room_bytes == int(free)
        for at in found.contexts:
            one = at.context_tokens * found.cache_bytes_per_token + logits_bytes_per_sequence(model)
            assert at.static_sequences == max(0, free // one)
            if window and at.context_tokens > 8192 and at.static_sequences:
                # Blocks behind every window are given back.
                assert at.paged_sequences > at.static_sequences
            elif not window:
                assert at.paged_sequences == at.static_sequences
        assert found.cache_tokens * found.cache_bytes_per_token <= max(0, free)


def test_fewer_bits_leave_more_room_and_decode_faster() -> None:
    plans = {f"{each.weights} {each.cache}": each for each in serving_plans(LLAMA_8B, H100)}
    for better, worse in (("int4 model", "int8 model"), ("int8 int8", "int8 model")):
        first, second = (plans[name].contexts[-1] for name in (better, worse))
        assert first.paged_sequences > second.paged_sequences
        assert first.alone_tokens_per_s > second.alone_tokens_per_s
        assert first.prefill_s == second.prefill_s


def test_one_sequence_is_bound_by_bandwidth_and_many_by_products() -> None:
    served = Served(LLAMA_8B, H100)
    alone, bound = served.decode(1, 1)
    # All weights but the embedding, and the keys and values of one token.
    read = 2 * (LLAMA_8B.num_parameters() - 128256 * 4096) + 131072
    assert alone == pytest.approx(3350e9 / read) and bound == "memory"
    most, bound = served.decode(10_000, 1)
    assert bound == "products"
    assert most == pytest.approx(989e12 / (2 * LLAMA_8B.matmul_parameters()), rel=0.01)
    assert served.decode(64, 1)[0] < 64 * alone


def test_a_window_bounds_what_decoding_reads() -> None:
    windowed = dataclasses.replace(LLAMA_8B, window=1024, max_seq_len=65536)
    short, long = (Served(windowed, H100).decode(8, context)[0] for context in (1024, 65536))
    assert short == long
    mixed = dataclasses.replace(windowed, full_layers=(0,), qk_norm=True)
    assert Served(mixed, H100).decode(8, 65536)[0] < long


def test_ranks_share_weights_and_work() -> None:
    one, four = (Served(LLAMA_8B, H100, ranks) for ranks in (1, 4))
    assert four.prefill_s(8192) == pytest.approx(one.prefill_s(8192) / 4)
    assert four.decode(1, 100)[0] == pytest.approx(4 * one.decode(1, 100)[0])
    assert four.room_bytes - one.room_bytes == pytest.approx(3 * 78.5e9)
    # 8 B weights at half of the peak: a prompt of 8,192 tokens takes a quarter of a second.
    assert one.prefill_s(8192) == pytest.approx(0.21, rel=0.1)
