"""Tokens are kept and drawn by the definitions, ties and borders included."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.infer.sampling import (
    GREEDY,
    SamplingError,
    SamplingParams,
    kept_probabilities,
    make_generator,
    sample,
)

# Few distinct values, so that ties are common.
logit_rows = st.lists(
    st.sampled_from([-math.inf, -30.0, -2.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=30
).filter(lambda row: max(row) > -math.inf)
sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-5, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def naive_kept(logits: list[float], params: SamplingParams) -> list[int]:
    """The kept ids by the definitions, in plain Python doubles."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weights = [math.exp((logits[i] - max(logits)) / params.temperature) for i in order]
    kept = [(i, w) for i, w in zip(order, weights, strict=True) if w > 0]
    kept = kept[: params.top_k] if params.top_k else kept
    total, mass, prefix = sum(w for _, w in kept), 0.0, []
    for i, w in kept:
        prefix.append((i, w))
        mass += w / total
        if params.top_p < 1 and mass >= params.top_p:
            break
    best = prefix[0][1]
    return [i for i, w in prefix if w >= params.min_p * best]


def near_a_border(logits: list[float], params: SamplingParams) -> bool:
    """Float32 and double may differ where a cumulative sum meets top_p."""
    shifted = (
        naive_kept(logits, dataclasses.replace(params, top_p=p)) for p in shifts(params.top_p)
    )
    return len({tuple(kept) for kept in shifted}) > 1


def shifts(top_p: float) -> list[float]:
    return (
        [top_p] if top_p in (0.0, 1.0) else [max(top_p - 1e-6, 0.0), top_p, min(top_p + 1e-6, 1.0)]
    )


@given(logit_rows, sampling_params)
def test_kept_tokens_are_those_of_the_definitions(
    logits: list[float], params: SamplingParams
) -> None:
    probabilities, ids = kept_probabilities(torch.tensor(logits), params)
    assert len(ids) >= 1
    assert math.isclose(float(probabilities.sum()), 1, rel_tol=1e-5)
    assert all(math.isfinite(logits[i]) for i in ids.tolist())
    if not near_a_border(logits, params):
        # exp() underflows at other places in float32 and double: only tokens without weight may
        # differ.
        expected = naive_kept(logits, params)
        assert ids.tolist() == expected[: len(ids)]
        assert (
            sum(
                math.exp((logits[i] - max(logits)) / params.temperature)
                for i in expected[len(ids) :]
            )
            < 1e-30
        )


@given(logit_rows, sampling_params, st.integers(0, 5))
def test_a_drawn_token_is_a_kept_one(
    logits: list[float], params: SamplingParams, request_number: int
) -> None:
    row = torch.tensor(logits)
    token = sample(row[None], [params], [make_generator(params, request_number)])[0]
    assert token in kept_probabilities(row, params)[1].tolist()


@given(logit_rows)
def test_temperature_zero_is_the_first_of_the_highest(logits: list[float]) -> None:
    assert sample(torch.tensor([logits]), [GREEDY], [make_generator(GREEDY)]) == [
        logits.index(max(logits))
    ]


@given(st.integers(1, 8), st.integers(1, 8))
def test_top_k_keeps_exactly_k_of_equal_logits(k: int, vocab: int) -> None:
    assert kept_probabilities(torch.zeros(vocab), SamplingParams(top_k=k))[1].tolist() == list(
        range(min(k, vocab))
    )


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, 1), (1e-12, 1), (0.9, 1), (0.949, 1), (0.96, 2), (0.99, 3), (1.0, 3)]
)
def test_top_p_keeps_the_shortest_prefix_and_at_least_one(top_p: float, kept: int) -> None:
    logits = torch.tensor([0.95, 0.03, 0.02]).log()
    assert len(kept_probabilities(logits, SamplingParams(top_p=top_p))[1]) == kept


def test_top_p_that_is_reached_exactly_takes_no_further_token() -> None:
    for top_p, kept in ((0.25, 1), (0.5, 2), (0.75, 3)):
        assert len(kept_probabilities(torch.zeros(4), SamplingParams(top_p=top_p))[1]) == kept


def test_top_p_of_one_keeps_tokens_behind_a_sum_that_rounds_to_one() -> None:
    """In float32 the likeliest token has all the mass; a filter that trusts the sum would drop the
    tail."""
    assert (
        len(
            kept_probabilities(torch.tensor([0.0, -20.0, -20.0, -21.0]), SamplingParams(top_p=1.0))[
                1
            ]
        )
        == 4
    )


def test_draws_follow_the_distribution() -> None:
    logits, params = torch.tensor([1.0, 0.0, 2.0, -1.0]), SamplingParams(temperature=1.5, seed=11)
    generator, draws = make_generator(params), 8_000
    counts = np.bincount(
        [sample(logits[None], [params], [generator])[0] for _ in range(draws)], minlength=4
    )
    expected = torch.softmax(logits / 1.5, 0).numpy() * draws
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 16.3  # chi-square with three degrees of freedom, 0.1 %


@pytest.mark.parametrize(
    ("row", "what"),
    [([0.0, math.nan], "NaN"), ([-math.inf] * 2, "only -inf"), ([1.0, math.inf], "inf")],
)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_broken_logits_raise_an_error_that_names_the_row(
    row: list[float], what: str, params: SamplingParams
) -> None:
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(SamplingError, match=f"row 1 of the logits has .*{what}"):
        sample(logits, [params] * 2, [make_generator(params)] * 2)


def test_requests_and_seeds_have_streams_of_their_own() -> None:
    streams = [
        tuple(torch.rand(4, generator=make_generator(SamplingParams(seed=seed), request)).tolist())
        for seed in range(20)
        for request in range(20)
    ]
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": 1e-9},
        {"top_k": -1},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"seed": -1},
    ],
)
def test_impossible_parameters_are_config_errors(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        SamplingParams(**values)  # type: ignore[arg-type]
