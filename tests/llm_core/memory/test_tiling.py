"""A feed-forward in tiles gives the answer of the whole one, and nothing of its whole inner width
ever exists."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_core.memory.config import MemoryConfig
from llm_core.memory.recompute import apply_recompute
from llm_core.memory.tiling import apply_tiling
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tests.support.engine.gradients import GPT2, LLAMA, batch, gradients
from tests.support.engine.live_bytes import LiveBytes

QWEN_LIKE = dataclasses.replace(LLAMA, qk_norm=True)
BIASED = dataclasses.replace(LLAMA, qkv_bias=True, out_bias=True, ffn_bias=True)


def make_model(config: ModelConfig, memory: dict[str, Any]) -> Transformer:
    model = Transformer(config)
    init_weights(model, seed=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(generator=torch.Generator().manual_seed(len(name)))
    found = MemoryConfig(**memory)
    apply_tiling(model, found)
    apply_recompute(model, found)
    return model


def worst(expected: list[Tensor], found: list[Tensor]) -> float:
    return max(
        float((a - b).abs().max() / a.abs().max().clamp(min=1e-30))
        for a, b in zip(expected, found, strict=True)
    )


CONFIGS = {"llama": LLAMA, "biases": BIASED, "qwen": QWEN_LIKE, "gpt2": GPT2}
CASES = [(name, "none", tiles) for name in CONFIGS for tiles in (2, 3, 16)]
CASES += [(name, kind, 3) for name in ("biases", "gpt2") for kind in ("selective", "every", "full")]


@pytest.mark.parametrize(("name", "recompute", "tiles"), CASES)
def test_tiles_give_the_gradients_of_the_whole_feed_forward(
    name: str, recompute: str, tiles: int
) -> None:
    config = CONFIGS[name]
    expected = gradients(make_model(config, {}).double(), **batch())
    found = gradients(
        make_model(config, {"ffn_tiles": tiles, "recompute": recompute}).double(), **batch()
    )
    assert worst(expected, found) < 1e-12


def test_tiles_and_recomputing_replace_no_method_of_a_module() -> None:
    model = make_model(LLAMA, {"ffn_tiles": 2, "recompute": "full"})
    for module in model.modules():
        assert not [name for name in vars(module) if callable(getattr(type(module), name, None))]


def test_no_activation_has_the_whole_inner_width() -> None:
    config = dataclasses.replace(LLAMA, ffn_dim=256)
    peaks = {}
    for tiles in (1, 4, 16):
        model = make_model(config, {"ffn_tiles": tiles})
        ids = torch.randint(0, config.vocab_size, (4, 64))
        with LiveBytes(model.parameters()) as live:
            model(ids).sum().backward()
        peaks[tiles] = live.peak
        # Gate and up of all tokens, or the gradient of the widest weight.
        inner = 4 * 64 * 2 * 256 // tiles
        others = max(4 * 64 * max(config.vocab_size, 2 * config.dim), 2 * 256 * config.dim)
        assert live.largest == (inner if inner > others else live.largest) and live.largest <= max(
            inner, others
        )
    assert peaks[1] > 1.5 * peaks[4] and peaks[4] > peaks[16]


def test_bfloat16_tiles_follow_the_whole_feed_forward() -> None:
    found = []
    for tiles in (1, 4):
        model = make_model(LLAMA, {"ffn_tiles": tiles})
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch()).float().square().sum()
        found.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    exact = gradients(make_model(LLAMA, {}).double(), **batch())
    for a, b, c in zip(exact, *found, strict=True):
        assert b.dtype == c.dtype and (c - a).norm() < 1.5 * (b - a).norm() + 1e-6 * a.norm()
