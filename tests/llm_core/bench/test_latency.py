"""What requests waited for is summed up by its definition, and nothing is claimed of too few."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.bench.latency import (
    LIMITS,
    PERCENTILES,
    Answered,
    Limits,
    least_samples,
    percentiles,
    summarise,
)


def answered(*chunks: tuple[float, int], due_at: float = 0.0, sent_at: float = 0.0) -> Answered:
    return Answered(
        due_at, sent_at, chunks=list(chunks), num_tokens=sum(count for _, count in chunks)
    )


def test_times_count_from_when_a_request_was_due_and_not_from_when_it_was_sent() -> None:
    late = answered((5.0, 1), (6.0, 1), due_at=1.0, sent_at=4.0)
    assert (late.ttft_s, late.e2e_s) == (4.0, 5.0)
    figures = summarise([late])
    assert figures["late_s"]["mean"] == 3.0 and figures["elapsed_s"] == 5.0
    assert figures["tok_s"] == 0.4


def test_the_first_token_is_no_gap_and_tokens_told_together_share_one() -> None:
    """vllm#7242 appended the time to the first token to the gaps."""
    each = answered((10.0, 1), (12.0, 4), (13.0, 1))
    assert each.gaps_s == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert each.tpot_s == pytest.approx(3.0 / 5)
    assert answered((10.0, 3), (11.0, 1)).gaps_s == [0.0, 0.0, 1.0]


@given(st.lists(st.tuples(st.floats(0.001, 9), st.integers(1, 5)), min_size=1, max_size=20))
def test_gaps_are_one_less_than_tokens_and_add_up_to_the_time_between_first_and_last(
    steps: list[tuple[float, int]],
) -> None:
    times = np.cumsum([step for step, _ in steps])
    each = answered(*zip(times.tolist(), [count for _, count in steps], strict=True))
    assert len(each.gaps_s) == each.num_tokens - 1
    assert sum(each.gaps_s) == pytest.approx(each.chunks[-1][0] - each.chunks[0][0])
    if each.num_tokens > 1:
        assert each.tpot_s == pytest.approx(np.mean(each.gaps_s))


@pytest.mark.parametrize("percentile", PERCENTILES)
def test_a_percentile_is_given_from_as_many_values_as_put_the_largest_above_it(
    percentile: int,
) -> None:
    least = least_samples(percentile)
    below = percentile / 100
    assert below**least <= 0.01 < below ** (least - 1)
    values = list(range(least))
    assert percentiles(values)[f"p{percentile}"] == pytest.approx(np.percentile(values, percentile))
    assert percentiles(values[1:])[f"p{percentile}"] is None


def test_the_least_numbers_are_those_of_mlperf() -> None:
    assert [least_samples(each) for each in PERCENTILES] == [7, 44, 90, 459]


def test_goodput_counts_requests_that_kept_both_limits_and_failures_as_none() -> None:
    kept = answered((0.5, 1), (0.5 + 0.03 * 9, 9))
    slow_first = answered((2.5, 1), (2.6, 9))
    slow_after = answered((0.1, 1), (0.1 + 0.2 * 9, 9))
    failed = Answered(0.0, 0.0, failure="HTTP 500")
    assert [each.keeps(LIMITS[0]) for each in (kept, slow_first, slow_after, failed)] == [
        True,
        False,
        False,
        False,
    ]
    figures = summarise([kept, slow_first, slow_after, failed])
    assert figures["failed"] == 1 and figures["requests"] == 4
    assert figures["goodput"]["server"]["kept_frac"] == 0.25
    assert figures["goodput"]["server"]["goodput_rps"] == pytest.approx(1 / 2.6, rel=1e-5)


def test_a_single_token_has_no_time_between_tokens_and_keeps_that_limit() -> None:
    single = answered((0.4, 1))
    assert single.tpot_s is None and single.keeps(Limits("any", 0.5, 1e-9))
    assert summarise([single])["tpot_s"]["n"] == 0


def test_a_load_of_failures_alone_is_refused_with_their_reasons() -> None:
    with pytest.raises(ValueError, match=r"no request of 2 was answered: HTTP 429; no token came"):
        summarise([Answered(0, 0, failure="HTTP 429"), Answered(0, 0)])


def test_figures_are_numbers_that_json_has() -> None:
    def leaves(value: object) -> list[object]:
        if isinstance(value, dict):
            return [leaf for each in value.values() for leaf in leaves(each)]
        return [value]

    found = leaves(summarise([answered((1.0, 2))]))
    assert all(v is None or (isinstance(v, int | float) and math.isfinite(v)) for v in found)
