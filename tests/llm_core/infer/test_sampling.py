"""Tokens are kept and drawn by the definitions, ties and borders included."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.infer.choice.choosing import Choosers, check_chosen, choose, kept_weights
from llm_core.infer.choice.sampling import GREEDY, SamplingError, SamplingParams
from llm_core.infer.choice.streams import uniforms

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


def kept(logits: list[float] | torch.Tensor, params: SamplingParams) -> list[int]:
    """Ids that a row may draw, the likeliest first, whatever rows stand beside it."""
    row_V = torch.as_tensor(logits)
    other_V = torch.arange(len(row_V)).float()
    others = [SamplingParams(top_k=2), SamplingParams(top_p=0.5), SamplingParams(min_p=0.3)]
    rows = torch.stack([other_V, row_V, other_V, -other_V])
    choosers = Choosers.of([others[0], params, *others[1:]], [0] * 4, "cpu")
    weight_V = kept_weights(rows, choosers)[1]
    order_V = row_V.sort(descending=True, stable=True).indices
    return [int(i) for i in order_V if weight_V[i] > 0]


def drawn(
    logits: torch.Tensor, params: list[SamplingParams], step: int = 0, choice: int = 0
) -> list[int]:
    rows = len(params)
    choosers = Choosers.of(params, [choice] * rows, "cpu")
    ids = choose(logits, choosers, torch.full((rows,), step)).tolist()
    check_chosen(ids, logits)
    return ids


@given(logit_rows, sampling_params)
def test_kept_tokens_are_those_of_the_definitions(
    logits: list[float], params: SamplingParams
) -> None:
    ids = kept(logits, params)
    assert len(ids) >= 1
    assert all(math.isfinite(logits[i]) for i in ids)
    if not near_a_border(logits, params):
        # exp() underflows at other places in float32 and double: only tokens without weight may
        # differ.
        expected = naive_kept(logits, params)
        assert ids == expected[: len(ids)]
        left_out = expected[len(ids) :]
        highest = max(logits)
        assert sum(math.exp((logits[i] - highest) / params.temperature) for i in left_out) < 1e-30


@given(st.integers(0, 10**6), st.lists(sampling_params, min_size=1, max_size=4))
def test_ranges_of_logits_give_the_draws_of_the_kept_weights(
    seed: int, params: list[SamplingParams]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Some logits are equal, at the borders of filters as well.
    shape = len(params), 1024 + 100
    logits = (torch.randn(shape, generator=generator) * 8).round(decimals=seed % 3)
    logits[:, ::7] = -math.inf
    choosers = Choosers.of(params, range(len(params)), "cpu")
    steps = torch.arange(len(params))
    whole = kept_weights(logits, choosers).cumsum(-1, dtype=torch.float64)
    uniform = uniforms(choosers.seed_B, choosers.choice_B, steps)[:, None]
    expected = torch.searchsorted(whole, uniform * whole[:, -1:], right=True)[:, 0]
    assert choose(logits, choosers, steps).tolist() == expected.tolist()


def test_of_equal_logits_the_lowest_ids_are_kept_however_many_there_are() -> None:
    count, rows = 40, 300
    logits = torch.zeros(rows, 2000)
    logits[:, :1000] = -1.0
    choosers = Choosers.of([SamplingParams(top_k=count)] * rows, [0] * rows, "cpu")
    ids = choose(logits, choosers, torch.arange(rows))
    assert set(ids.tolist()) == set(range(1000, 1000 + count))


@given(logit_rows, sampling_params, st.integers(0, 5))
def test_a_drawn_token_is_a_kept_one(
    logits: list[float], params: SamplingParams, step: int
) -> None:
    assert drawn(torch.tensor([logits]), [params], step)[0] in kept(logits, params)


def test_greedy_rows_keep_their_temperature_of_zero_and_are_divided_by_one() -> None:
    """The kernel that chooses on a GPU knows a greedy row by its temperature."""
    given = Choosers.of([GREEDY, SamplingParams(temperature=0.5)], [0, 0], "cpu")
    assert given.temperature_B1.tolist() == [[0.0], [0.5]]
    assert given.divisor_B1.tolist() == [[1.0], [0.5]]


@given(logit_rows)
def test_temperature_zero_is_the_first_of_the_highest(logits: list[float]) -> None:
    assert drawn(torch.tensor([logits]), [GREEDY]) == [logits.index(max(logits))]


@given(st.integers(1, 8), st.integers(1, 8))
def test_top_k_keeps_exactly_k_of_equal_logits(k: int, vocab: int) -> None:
    assert kept([0.0] * vocab, SamplingParams(top_k=k)) == list(range(min(k, vocab)))


@pytest.mark.parametrize(
    ("top_p", "count"), [(0.0, 1), (1e-12, 1), (0.9, 1), (0.949, 1), (0.96, 2), (0.99, 3), (1.0, 3)]
)
def test_top_p_keeps_the_shortest_prefix_and_at_least_one(top_p: float, count: int) -> None:
    logits = torch.tensor([0.95, 0.03, 0.02]).log()
    assert len(kept(logits, SamplingParams(top_p=top_p))) == count


def test_top_p_counts_after_temperature() -> None:
    assert kept([3.0, 2.0, 1.0], SamplingParams(temperature=0.5, top_p=0.8)) == [0]


def test_top_p_that_is_reached_exactly_takes_no_further_token() -> None:
    for top_p, count in ((0.25, 1), (0.5, 2), (0.75, 3)):
        assert len(kept([0.0] * 4, SamplingParams(top_p=top_p))) == count


def test_top_p_of_one_keeps_tokens_behind_a_sum_that_rounds_to_one() -> None:
    """In float32 the likeliest token has all the mass; a filter that trusts the sum would drop the
    tail."""
    assert len(kept([0.0, -20.0, -20.0, -21.0], SamplingParams(top_p=1.0))) == 4


def test_draws_follow_the_distribution() -> None:
    logits, draws = torch.tensor([1.0, 0.0, 2.0, -1.0]), 8_000
    params = SamplingParams(temperature=1.5, seed=11)
    choosers = Choosers.of([params] * draws, [0] * draws, "cpu")
    ids = choose(logits.expand(draws, 4), choosers, torch.arange(draws))
    counts = np.bincount(ids.numpy(), minlength=4)
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
        drawn(logits, [params] * 2)


def test_seeds_choices_and_steps_have_numbers_of_their_own() -> None:
    seeds, choices, steps = torch.cartesian_prod(*[torch.arange(20)] * 3).T
    numbers = uniforms(seeds, choices, steps)
    assert len(numbers.unique()) == 8000
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    # Kolmogorov-Smirnov: 0.1 % of fair samples are further from even.
    even = (torch.arange(8000) + 0.5) / 8000
    assert float((numbers.sort().values - even).abs().max()) < 1.95 / 8000**0.5


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": 1e-9},
        {"top_k": -1},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"seed": -1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"min_new_tokens": -1},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: math.nan}},
    ],
)
def test_impossible_parameters_are_config_errors(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        SamplingParams(**values)  # type: ignore[arg-type]
