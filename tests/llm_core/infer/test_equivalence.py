"""The check of the cache passes a right one, and fails one with any defect."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_core.infer import equivalence
from llm_core.infer.cache.rows import MakeCache, paged_cache, static_cache
from llm_core.infer.cache.static import CacheOverflow, StaticCache
from llm_core.infer.equivalence import TOLERANCE, Check, Shape, check_cache
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tests.support.engine.broken_caches import make_broken, make_of
from tests.support.engine.small_model import make_model

SHAPES = [Shape(1, 6, 4), Shape(1, 40, 4), Shape(6, 6, 4), Shape(6, 20, 4)]


NUM_TOKENS = 12


class Lossy(StaticCache):
    """Tokens past the capacity vanish without a word."""

    def _check_room(self, num_queries: int) -> None:
        pass

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        if max(self._lengths) + k_BGTD.shape[2] > self.capacity:
            return q_BHTD
        return super().attend(layer, q_BHTD, k_BGTD, v_BGTD)


class Leaking(StaticCache):
    """What is refused is counted all the same."""

    def _check_room(self, num_queries: int) -> None:
        try:
            super()._check_room(num_queries)
        except CacheOverflow:
            self._lengths = [self.capacity - 1] * len(self._lengths)
            raise


def make_with_room(more: int) -> MakeCache:
    return lambda model, lengths, max_new_tokens: static_cache(
        model, lengths, max_new_tokens + more
    )


def make_reused(forgets: str) -> MakeCache:
    """One piece of memory for all requests of a batch, of which something is not set back."""
    kept: dict[int, StaticCache] = {}

    def make(model: Transformer, lengths: Sequence[int], max_new_tokens: int) -> StaticCache:
        new = static_cache(model, lengths, max_new_tokens)
        old = kept.setdefault(len(lengths), new)
        if old is new or old.capacity < new.capacity:
            kept[len(lengths)] = new
            return new
        old.capacity = new.capacity
        if forgets != "length":
            old._lengths, old.lengths_B = new._lengths, new.lengths_B
        return old

    return make


def check(make_cache: MakeCache, shapes: Sequence[Shape] = SHAPES) -> dict[str, Check]:
    return {
        found.name: found
        for found in check_cache(make_model(), shapes, NUM_TOKENS, seed=0, make_cache=make_cache)
    }


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, found in checks.items() if not found.max_abs_diff <= 1e4 * TOLERANCE}


@pytest.mark.parametrize(
    "make_cache", [static_cache, paged_cache, partial(paged_cache, block_tokens=3)]
)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_right_cache_is_within_tolerance(num_kv_heads: int, make_cache: MakeCache) -> None:
    checks = check_cache(make_model(num_kv_heads), SHAPES, NUM_TOKENS, 0, make_cache)
    assert all(found.passed for found in checks) and max(found.max_abs_diff for found in checks) > 0
    assert [found.name for found in checks] == [
        *(
            "pieces",
            "ragged_rows",
            "cell_6x(20+4)",
            "cell_6x(6+4)",
            "cell_1x(40+4)",
            "cell_1x(6+4)",
            "branches",
            "splits",
            "capacity",
        )
    ]


@pytest.mark.parametrize("make_cache", [static_cache, paged_cache])
def test_a_cache_of_8_bits_differs_by_its_rounding_alone(make_cache: MakeCache) -> None:
    rounding = partial(make_cache, int8=True)  # type: ignore[call-arg]
    checks = check_cache(make_model(), SHAPES, NUM_TOKENS, 0, rounding, int8=True)
    assert all(found.passed for found in checks)
    assert failed(check(rounding)), "and it does round"


@pytest.mark.parametrize("window", [1, 5, 16])
@pytest.mark.parametrize("full_layers", [(), (1,)])
def test_windows_are_those_of_the_pass_without_a_cache(
    window: int, full_layers: tuple[int, ...]
) -> None:
    # With biases on queries, keys and values: a Qwen 2, which mixes layers.
    config = dataclasses.replace(make_model().config, qkv_bias=True)
    model = Transformer(config).double().eval()
    init_weights(model, seed=0)
    narrow = Transformer(dataclasses.replace(config, window=window, full_layers=full_layers))
    narrow = narrow.double().eval()
    narrow.load_state_dict(model.state_dict())
    ids = torch.arange(40)[None] % 61
    with torch.no_grad():
        assert (narrow(ids)[0, window:] - model(ids)[0, window:]).abs().max() > 1e-6
        assert torch.allclose(narrow(ids)[0, :window], model(ids)[0, :window])
    for make_cache in (static_cache, paged_cache):
        checks = check_cache(narrow, SHAPES, NUM_TOKENS, 0, make_cache)
        assert all(found.passed for found in checks)
    rounded = check_cache(narrow, SHAPES, NUM_TOKENS, 0, partial(paged_cache, int8=True), int8=True)
    assert all(found.passed for found in rounded)


def test_right_cache_may_serve_request_after_request() -> None:
    assert not failed(check(make_reused("nothing")))


CELLS_OF_SIX = {"cell_6x(20+4)", "cell_6x(6+4)"}


DEFECTS = {
    "position after a prefix": {"pieces", "ragged_rows", "splits"},
    "lengths of rows": {"ragged_rows", "branches"},
    "positions of the longest row": {"ragged_rows", "branches"},
    "one token too many is forgotten": {"branches"},
    "a fork shares keys": {"branches"},
    "top-left mask": {"pieces"},
    "sees one ahead": {"pieces"},
    "key of the newest token": {"pieces", "ragged_rows", "splits"},
    "key far back": {"pieces", "cell_1x(40+4)"},
    "row 4": {"ragged_rows", *CELLS_OF_SIX},
    "last row": CELLS_OF_SIX,
    "last column": {"pieces", "splits", "capacity", *CELLS_OF_SIX},
    "one layer": {"pieces", "cell_1x(40+4)", "cell_6x(20+4)"},
    "nan": {"pieces", "ragged_rows", "splits"},
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_broken_cache_is_found(defect: str) -> None:
    assert failed(check(make_broken(defect))) >= DEFECTS[defect]


@pytest.mark.parametrize("make_cache", [static_cache, paged_cache])
def test_learned_positions_are_those_of_each_row(make_cache: MakeCache) -> None:
    model = make_model(num_kv_heads=4)
    biases: dict[str, Any] = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
    config = dataclasses.replace(
        model.config, norm="layer", ffn="gelu", positions="learned", **biases
    )
    learned = Transformer(config).double().eval()
    init_weights(learned, seed=0)
    checks = check_cache(learned, [*SHAPES, Shape(1, 60, 4)], NUM_TOKENS, 0, make_cache)
    assert all(found.passed for found in checks)


@pytest.mark.parametrize("defect", ["row 4", "key far back"])
def test_broken_cache_is_found_in_parts_that_fit_into_memory(
    defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "MAX_SCORES", 700)
    monkeypatch.setattr(equivalence, "MAX_LOGITS", 200)
    assert failed(check(make_broken(defect))) >= DEFECTS[defect]
    assert not failed(check(static_cache))


def test_what_is_left_of_an_earlier_request_is_found() -> None:
    assert failed(check(make_reused("length")))


@pytest.mark.parametrize(
    ("make_cache", "where"),
    [(make_of(Lossy), "capacity"), (make_of(Leaking), "capacity"), (make_with_room(1), "capacity")],
)
def test_a_cache_that_takes_more_than_it_holds_is_found(make_cache: MakeCache, where: str) -> None:
    assert failed(check(make_cache)) == {where}


def test_a_cache_that_is_too_small_fails_every_check() -> None:
    checks = check(make_with_room(-1))
    # Rows that are forked ask for more than they need.
    del checks["branches"]
    assert all(
        found.max_abs_diff == math.inf and found.finding == "room miscounted"
        for found in checks.values()
    )


def test_small_grids_and_short_models_are_checked_too() -> None:
    model = make_model()
    assert all(found.passed for found in check_cache(model, [Shape(1, 1, 2)], 4, seed=0))
    assert all(found.passed for found in check_cache(model, [Shape(1, 1, 63)], 100, seed=0))
    assert all(found.passed for found in check_cache(model, [], 5, seed=0))
