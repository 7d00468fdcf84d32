"""A sample is spread over strata by bytes, and depends on ids, sizes and the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.tokenizer.sample import Rows, sample, share_out


def rows(strata: list[int], sizes: list[int]) -> Rows:
    ids = np.array([[i % 256, i // 256] * 8 for i in range(len(sizes))], np.uint8).reshape(-1, 16)
    names = tuple((f"s{k}", "en") for k in range(max(strata, default=0) + 1))
    split = np.array(["train"] * len(sizes), object)
    return Rows(ids, np.array(sizes, np.int64), split, np.array(strata, np.int64), names)


documents = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(documents, st.integers(1, 1500), st.floats(0, 1))
def test_a_sample_reaches_its_size_and_passes_it_by_less_than_a_document(
    drawn: list[tuple[int, int]], wanted: int, exponent: float
) -> None:
    given_rows = rows([s for s, _ in drawn], [n for _, n in drawn])
    taken = int(given_rows.num_bytes[sample(given_rows, "train", wanted, 0, exponent)].sum())
    assert (
        min(wanted, given_rows.num_bytes.sum()) <= taken < wanted + 50
        or taken == given_rows.num_bytes.sum()
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=8),
    st.integers(1, 30_000),
    st.floats(0, 1),
)
def test_shares_add_up_and_no_stratum_gives_more_than_it_has(
    available: list[int], wanted: int, exponent: float
) -> None:
    quotas = share_out(np.array(available), wanted, exponent)
    assert quotas.sum() == pytest.approx(min(wanted, sum(available)))
    assert np.all(quotas <= np.array(available) + 1e-6)


def test_the_exponent_turns_the_mixture_of_the_corpus_into_equal_shares() -> None:
    available = np.array([9000, 900, 100])
    assert share_out(available, 1000, 1.0) == pytest.approx([900, 90, 10])
    assert share_out(available, 1000, 0.0) == pytest.approx([450, 450, 100])
    half = share_out(available, 1000, 0.5)
    assert half[0] < 900 and half[1] > 90 and half[2] > 10


@settings(max_examples=50, deadline=None)
@given(documents, st.randoms())
def test_the_order_of_documents_changes_nothing(drawn: list[tuple[int, int]], random) -> None:
    whole = rows([s for s, _ in drawn], [n for _, n in drawn])
    order = list(range(len(drawn)))
    random.shuffle(order)
    shuffled = Rows(
        whole.ids[order],
        whole.num_bytes[order],
        whole.split[order],
        whole.stratum[order],
        whole.strata,
    )
    assert np.array_equal(sample(whole, "train", 200, 3)[order], sample(shuffled, "train", 200, 3))
