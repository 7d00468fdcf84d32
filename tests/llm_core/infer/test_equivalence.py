"""The check of the cache passes a right one, and fails one with any defect."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
from torch import Tensor

from llm_core.infer import equivalence
from llm_core.infer.cache import StaticCache
from llm_core.infer.engine import MakeCache, static_cache
from llm_core.infer.equivalence import TOLERANCE, Check, Shape, check_cache
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tests.support.engine.broken_caches import make_broken
from tests.support.engine.small_model import make_model

SHAPES = [Shape(1, 6, 4), Shape(1, 40, 4), Shape(6, 6, 4), Shape(6, 20, 4)]


NUM_TOKENS = 12


class Lossy(StaticCache):
    """Tokens past the capacity vanish without a word."""

    def _end(self, begin: int, num_queries: int) -> int:
        return begin + num_queries

    def mask(self, num_queries: int) -> Tensor | None:
        mask = super().mask(num_queries)
        return None if mask is None else mask[..., : self.capacity]

    def update(self, layer: int, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        room = self.capacity - self._filled[layer]
        return super().update(layer, k_BHTD[:, :, :room], v_BHTD[:, :, :room])


class Leaking(StaticCache):
    """What is refused is counted all the same."""

    def mask(self, num_queries: int) -> Tensor | None:
        if self.length + num_queries > self.capacity:
            self.length = self.capacity - 1
            self._filled = [self.length] * len(self._filled)
        return super().mask(num_queries)


def make_of(kind: type[StaticCache]) -> MakeCache:
    def make(
        model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> StaticCache:
        cache = static_cache(model, prompts, max_new_tokens)
        cache.__class__ = kind
        return cache

    return make


def make_with_room(more: int) -> MakeCache:
    return lambda model, prompts, max_new_tokens: static_cache(
        model, prompts, max_new_tokens + more
    )


def make_reused(forgets: str) -> MakeCache:
    """One piece of memory for all requests of a batch, of which something is not set back."""
    kept: dict[int, StaticCache] = {}

    def make(
        model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> StaticCache:
        new = static_cache(model, prompts, max_new_tokens)
        old = kept.setdefault(len(prompts), new)
        if old is new or old.capacity < new.capacity:
            kept[len(prompts)] = new
            return new
        old.capacity = new.capacity
        if forgets != "length":
            old.length, old._filled = 0, [0] * len(old._filled)
        if forgets != "padding":
            old._pads_B, old._padded = new._pads_B, new._padded
        return old

    return make


def check(make_cache: MakeCache, shapes: Sequence[Shape] = SHAPES) -> dict[str, Check]:
    return {
        found.name: found
        for found in check_cache(make_model(), shapes, NUM_TOKENS, seed=0, make_cache=make_cache)
    }


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, found in checks.items() if not found.max_abs_diff <= 1e4 * TOLERANCE}


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_right_cache_is_within_tolerance(num_kv_heads: int) -> None:
    checks = check_cache(make_model(num_kv_heads), SHAPES, NUM_TOKENS, seed=0)
    assert all(found.passed for found in checks) and max(found.max_abs_diff for found in checks) > 0
    assert [found.name for found in checks] == [
        *(
            "pieces",
            "ragged_rows",
            "cell_6x(20+4)",
            "cell_6x(6+4)",
            "cell_1x(40+4)",
            "cell_1x(6+4)",
            "splits",
            "capacity",
        )
    ]


def test_right_cache_may_serve_request_after_request() -> None:
    assert not failed(check(make_reused("nothing")))


CELLS_OF_SIX = {"cell_6x(20+4)", "cell_6x(6+4)"}


DEFECTS = {
    "position after a prefix": {"pieces", "ragged_rows", "splits"},
    "padding": {"ragged_rows"},
    "top-left mask": {"pieces"},
    "sees one ahead": {"pieces"},
    "key of the newest token": {"pieces", "ragged_rows", "splits"},
    "key far back": {"pieces", "cell_1x(40+4)"},
    "row 4": {"ragged_rows", *CELLS_OF_SIX},
    "last row": CELLS_OF_SIX,
    "last column": {"pieces", "ragged_rows", "splits", "capacity", *CELLS_OF_SIX},
    "one layer": {"pieces", "cell_1x(40+4)", "cell_6x(20+4)"},
    "nan": {"pieces", "ragged_rows", "splits"},
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_broken_cache_is_found(defect: str) -> None:
    assert failed(check(make_broken(defect))) >= DEFECTS[defect]


def test_positions_that_count_padding_are_found_where_positions_are_learned() -> None:
    """Rotary ones tell distances only, and those are right."""
    model = make_model(num_kv_heads=4)
    biases = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
    config = dataclasses.replace(
        model.config, norm="layer", ffn="gelu", positions="learned", **biases
    )
    learned = Transformer(config).double().eval()
    init_weights(learned, seed=0)
    for make_cache, expected in (
        (static_cache, set()),
        (make_broken("positions of padding"), {"ragged_rows"}),
    ):
        checks = check_cache(
            learned, [*SHAPES, Shape(1, 60, 4)], NUM_TOKENS, seed=0, make_cache=make_cache
        )
        assert failed({found.name: found for found in checks}) == expected


@pytest.mark.parametrize("defect", ["row 4", "key far back"])
def test_broken_cache_is_found_in_parts_that_fit_into_memory(
    defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "MAX_SCORES", 700)
    monkeypatch.setattr(equivalence, "MAX_LOGITS", 200)
    assert failed(check(make_broken(defect))) >= DEFECTS[defect]
    assert not failed(check(static_cache))


@pytest.mark.parametrize("forgets", ["length", "padding"])
def test_what_is_left_of_an_earlier_request_is_found(forgets: str) -> None:
    assert failed(check(make_reused(forgets)))


@pytest.mark.parametrize(
    ("make_cache", "where"),
    [(make_of(Lossy), "capacity"), (make_of(Leaking), "capacity"), (make_with_room(1), "capacity")],
)
def test_a_cache_that_takes_more_than_it_holds_is_found(make_cache: MakeCache, where: str) -> None:
    assert failed(check(make_cache)) == {where}


def test_a_cache_that_is_too_small_fails_every_check() -> None:
    checks = check(make_with_room(-1))
    assert all(
        found.max_abs_diff == math.inf and found.finding == "room miscounted"
        for found in checks.values()
    )


def test_small_grids_and_short_models_are_checked_too() -> None:
    model = make_model()
    assert all(found.passed for found in check_cache(model, [Shape(1, 1, 2)], 4, seed=0))
    assert all(found.passed for found in check_cache(model, [Shape(1, 1, 63)], 100, seed=0))
    assert all(found.passed for found in check_cache(model, [], 5, seed=0))
