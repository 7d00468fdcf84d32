"""The filter knows what it saw, and errs as seldom as it promised."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.kernels.dedup.bloom import add_all, expected_errors, make_filter


def random_keys(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, (count, 2), dtype=np.uint64)


def test_what_was_added_is_always_found() -> None:
    keys = random_keys(5000, 1)
    bits, num_hashes = make_filter(len(keys), 1e-3)
    add_all(bits, num_hashes, keys)
    assert add_all(bits, num_hashes, keys).all()


@pytest.mark.parametrize("error", [0.01, 0.001])
def test_a_full_filter_errs_at_most_as_often_as_stated(error: float) -> None:
    count = 100_000
    bits, num_hashes = make_filter(count, error)
    wrong = int(add_all(bits, num_hashes, random_keys(count, 2)).sum())
    assert wrong <= error * count  # over the whole filling, which starts without errors
    others = int(add_all(bits.copy(), num_hashes, random_keys(2000, 3)).sum())
    assert others <= 2000 * error + 4 * np.sqrt(2000 * error)
    assert bits.nbytes * 8 < 1.2 * count * num_hashes / np.log(2) + 2000


def test_errors_while_a_filter_is_filled_are_as_many_as_expected() -> None:
    count, earlier = 100_000, 40_000
    bits, num_hashes = make_filter(count, 0.01)
    keys = random_keys(count, 5)
    add_all(bits, num_hashes, keys[:earlier])
    wrong = int(add_all(bits, num_hashes, keys[earlier:]).sum())
    expected = expected_errors(bits.size * 64, num_hashes, earlier, count)
    assert expected > 50 and abs(wrong - expected) < 4 * np.sqrt(expected)


def test_a_repeat_within_one_call_is_found() -> None:
    keys = random_keys(3, 4)[[0, 1, 0, 2, 1]]
    assert add_all(*make_filter(5, 1e-6), keys).tolist() == [False, False, True, False, True]
