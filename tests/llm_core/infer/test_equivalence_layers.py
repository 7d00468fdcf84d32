"""Layers that are checked one by one are all checked."""

import dataclasses

import pytest
import torch

from llm_core.infer.cache.rows import MakeCache, paged_cache, static_cache
from llm_core.infer.equivalence_layers import check_layers
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tests.support.engine.broken_caches import make_broken
from tests.support.engine.small_model import make_model


@pytest.mark.parametrize("make_cache", [static_cache, paged_cache])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layer_of_a_right_cache_passes(make_cache: MakeCache, dtype: torch.dtype) -> None:
    model = make_model(dtype=dtype)
    checks = check_layers(model, 50, 0, make_cache)
    assert [check.name for check in checks] == ["layer_0", "layer_1", "layer_2"]
    assert all(check.passed and check.max_abs_diff > 0 for check in checks)
    assert model.norm.weight.dtype == dtype and model.blocks[1].attention.layer == 1


@pytest.mark.parametrize("defect", ["key far back", "top-left mask", "nan"])
def test_a_broken_cache_fails_every_layer(defect: str) -> None:
    checks = check_layers(make_model(), 50, 0, make_broken(defect))
    assert not any(check.passed for check in checks)


def test_a_layer_with_a_window_of_its_own_is_checked_with_it() -> None:
    config = dataclasses.replace(make_model().config, window=5, full_layers=(1,), qkv_bias=True)
    model = Transformer(config).eval()
    init_weights(model, seed=0)
    assert all(check.passed for check in check_layers(model, 40, 0, paged_cache))
