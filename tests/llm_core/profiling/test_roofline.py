"""Bytes and FLOPs of a pass are counted as they are done, and what binds it is named."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.infer.cache.rows import decode, prefill, static_cache
from llm_core.model.transformer import Transformer
from llm_core.profiling import roofline
from llm_core.profiling.roofline import (
    Peaks,
    Work,
    cached_step,
    full_pass,
    kv_bytes_per_token,
    limits,
)
from tests.support.engine.small_model import make_model, random_ids


def counted_flops(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]
) -> int:
    """FLOPs of all products that really run: every linear layer, and scores and mixing of attention
    as full squares."""
    counts = []
    original = F.scaled_dot_product_attention

    def attention(q_BHTD: Tensor, k_BHKD: Tensor, *args: object, **kwargs: object) -> Tensor:
        counts.append(4 * q_BHTD.numel() * k_BHKD.shape[2])
        return original(q_BHTD, k_BHKD, *args, **kwargs)  # type: ignore[arg-type]

    def linear(module: nn.Linear, _: object, output: Tensor) -> None:
        counts.append(2 * output.numel() * module.in_features)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    hooks = [
        module.register_forward_hook(linear)
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.no_grad():
        work()
    for hook in hooks:
        hook.remove()
    return sum(counts)


def test_flops_of_a_decode_step_are_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(num_kv_heads=2, dtype=torch.float32)
    prompts = [random_ids(9, seed=s) for s in (0, 1)]
    cache = static_cache(model, list(map(len, prompts)), 2)
    prefill(model, prompts, cache)
    assert (
        counted_flops(model, monkeypatch, lambda: decode(model, [3, 4], cache))
        == cached_step(model.config, 2, 10, 4).flops
    )


def test_flops_of_a_full_pass_count_the_causal_half_of_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tokens = make_model(num_kv_heads=2, dtype=torch.float32), 16
    ids = torch.tensor([random_ids(tokens, seed=2)])
    counted = counted_flops(model, monkeypatch, lambda: model.logits(model.hidden(ids)[:, -1]))
    unneeded = 2 * model.config.num_layers * model.config.dim * tokens * (tokens - 1)
    assert full_pass(model.config, 1, tokens, 4).flops == counted - unneeded


def test_bytes_are_weights_once_and_the_cache_of_every_row() -> None:
    model = make_model(num_kv_heads=2, dtype=torch.float32)
    matrices = sum(p.numel() * 4 for p in model.parameters() if p.dim() == 2)
    cache = static_cache(model, [7] * 3, 0)
    assert cached_step(model.config, 3, 7, 4).num_bytes == matrices + 2 * cache.keys.num_bytes
    assert kv_bytes_per_token(model.config, 4) * 3 * 7 == 2 * cache.keys.num_bytes


def test_what_binds_a_pass_is_the_larger_share_or_overhead() -> None:
    peaks = Peaks(bytes_per_s=100.0, flops_per_s=1000.0)
    assert limits(Work(80, 100), 1.0, peaks) == {"mbu": 0.8, "mfu": 0.1, "bound": "bandwidth"}
    assert limits(Work(8, 700), 1.0, peaks)["bound"] == "compute"
    assert limits(Work(20, 100), 1.0, peaks)["bound"] == "overhead"


def test_peaks_are_of_random_numbers_and_a_copy_counts_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products of ones take less power, so that a GPU clocks higher."""
    made: list[object] = []

    def timed(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
        made.append(work())
        return 1.0

    monkeypatch.setattr(roofline, "best_time", timed)
    cpu = torch.device("cpu")
    peaks = roofline.measure_peaks(cpu, torch.float32)
    roofline.training_peak(cpu, "fp32")
    products = [each for each in made if isinstance(each, Tensor)]
    assert len(products) == 4 and all(product.std() > 1 for product in products)
    # Reading and copying take equally long, and a copy moves twice as much.
    assert peaks.bytes_per_s == 2 * (1 << 26)
