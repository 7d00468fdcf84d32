"""Recomputed activations change no bit of a gradient, and lower what is kept for backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llm_core.infer.cache.static import StaticCache
from llm_core.memory.config import MemoryConfig
from llm_core.memory.recompute import apply_recompute
from llm_core.model.adapter import AdapterConfig, adapted
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Block, Transformer
from tests.support.engine.gradients import GPT2, LLAMA, batch, gradients
from tests.support.engine.live_bytes import LiveBytes
from tests.support.engine.small_runs import VOCAB_SIZE

KINDS: list[dict[str, Any]] = [
    {"recompute": "selective"},
    {"recompute": "every", "every_k": 2},
    {"recompute": "every", "every_k": 3},
    {"recompute": "full"},
]


def make_model(
    config: ModelConfig, memory: dict[str, Any] | None = None, backend: str = "sdpa"
) -> Transformer:
    model = Transformer(config)
    init_weights(model, seed=1)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.backend = backend  # type: ignore[assignment]
    apply_recompute(model, MemoryConfig(**(memory or {})))
    return model


@pytest.mark.parametrize("memory", KINDS, ids=str)
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recomputed_gradients_are_plain_ones_bit_for_bit(
    config: ModelConfig, memory: dict[str, Any], dtype: torch.dtype
) -> None:
    for documents in (False, True):
        expected = gradients(make_model(config).to(dtype), **batch(documents))
        found = gradients(make_model(config, memory).to(dtype), **batch(documents))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("memory", KINDS, ids=str)
def test_bfloat16_products_are_recomputed_in_bfloat16(memory: dict[str, Any]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = (make_model(LLAMA, kind)(**batch()) for kind in (None, memory))
    # As the trainer does it: backward outside of autocast.
    assert torch.equal(expected, found)
    for_each = [make_model(LLAMA, kind) for kind in (None, memory)]
    grads = []
    for model in for_each:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch()).float().square().sum()
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_what_is_kept_for_backward_falls_from_none_to_selective_to_full(backend: str) -> None:
    kept, peaks = {}, {}
    for kind in ("none", "every", "selective", "full"):
        model = make_model(LLAMA, {"recompute": kind}, backend)
        ids = torch.randint(0, VOCAB_SIZE, (8, 64))
        with LiveBytes(model.parameters()) as live:
            loss = model(ids).square().sum()
            kept[kind] = live.now
            loss.backward()
        peaks[kind] = live.peak
    assert (
        kept["none"] > kept["selective"] > kept["full"]
        and kept["none"] > kept["every"] > kept["full"]
    )
    assert peaks["none"] > peaks["selective"] > peaks["full"]


@pytest.mark.parametrize("targets", [(), ("qkv",), ("out", "down")], ids=str)
def test_selective_keeps_no_more_beside_an_adapter(targets: tuple[str, ...]) -> None:
    adapter = AdapterConfig("lora", rank=2, targets=targets)
    ids, kept, found = torch.randint(0, VOCAB_SIZE, (8, 64)), {}, {}
    for config in (LLAMA, adapted(LLAMA, adapter)):
        for kind in ("none", "selective"):
            model = make_model(config, {"recompute": kind})
            with LiveBytes(model.parameters()) as live:
                loss = model(ids).square().sum()
                kept[config, kind] = live.now
                loss.backward()
            found[config, kind] = [weight.grad for weight in model.parameters()]
    plain, beside = (kept[config, "selective"] for config in (LLAMA, adapted(LLAMA, adapter)))
    assert beside <= 1.01 * plain
    pairs = (found[adapted(LLAMA, adapter), kind] for kind in ("none", "selective"))
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


@pytest.mark.parametrize(
    ("memory", "runs"),
    [(KINDS[1], [2, 1, 2, 1]), (KINDS[2], [2, 1, 1, 2]), (KINDS[3], [2, 2, 2, 2])],
)
def test_only_the_chosen_blocks_run_again(memory: dict[str, Any], runs: list[int]) -> None:
    model = make_model(LLAMA, memory)
    counts = [0] * 4
    for layer, block in enumerate(model.blocks):

        def count(*_: object, layer: int = layer) -> None:
            counts[layer] += 1

        block.attention_norm.register_forward_pre_hook(count)
    gradients(model, **batch())
    assert counts == runs


@pytest.mark.parametrize(
    ("memory", "num_steps"), [*((kind, 6) for kind in KINDS[:-1]), (KINDS[-1], 50)], ids=str
)
def test_steps_leave_nothing_behind(memory: dict[str, Any], num_steps: int) -> None:
    model = make_model(LLAMA, memory)
    with LiveBytes(model.parameters()) as live:
        left = []
        for _ in range(num_steps):
            model(**batch()).square().sum().backward()
            model.zero_grad()
            left.append(live.now)
    assert max(left) == left[0]


def test_a_pass_with_a_cache_is_not_run_twice() -> None:
    plain, recomputing = make_model(LLAMA), make_model(LLAMA, {"recompute": "full"})
    found = []
    for model in (plain, recomputing):
        cache = StaticCache(LLAMA, 2, 16)
        found.append(model(**batch(), cache=cache))
        assert cache.lengths_B.tolist() == [16, 16]
    assert torch.equal(*found)
