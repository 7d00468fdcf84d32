"""Mixtures: shares are met where they can be, caps hold, and repeats are a matter of ids alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.documents.mixture import Cell, MixtureConfig, plan_mixture, repeats_of
from tasks.runtime.stage import StageFailure

CELLS = [
    Cell("web", "en", 1, 6000),
    Cell("web", "de", 1, 1000),
    Cell("wiki", "en", 1, 2000),
    Cell("wiki", "de", 1, 1000),
]


def shares(planned: dict[tuple[str, str], float], axis: int) -> dict[str, float]:
    total, result = sum(planned.values()), {}
    for group, amount in planned.items():
        result[group[axis]] = result.get(group[axis], 0.0) + amount / total
    return result


def test_default_reads_every_document_once() -> None:
    rates = plan_mixture(CELLS, MixtureConfig()).rates
    ids = np.random.default_rng(0).integers(0, 256, (1000, 16)).astype(np.uint8)
    for rate in rates.values():
        assert (repeats_of(ids, np.ones(1000), np.full(1000, rate), MixtureConfig()) == 1).all()


def test_shares_of_both_axes_are_met_together_and_the_rest_keeps_its_proportions() -> None:
    config = MixtureConfig(source_frac={"wiki": 0.5}, language_frac={"de": 0.3}, max_repeats=100)
    planned = plan_mixture(CELLS, config).planned_bytes
    assert shares(planned, 0)["wiki"] == pytest.approx(0.5) and shares(planned, 1)[
        "de"
    ] == pytest.approx(0.3)
    # Fitting keeps the odds ratio of the corpus (Deming and Stephan 1940).
    odds = (
        planned["web", "en"]
        * planned["wiki", "de"]
        / (planned["web", "de"] * planned["wiki", "en"])
    )
    assert odds == pytest.approx(6000 * 1000 / (1000 * 2000))
    assert sum(planned.values()) == pytest.approx(10_000)


def test_what_is_left_out_is_not_made_up_for_by_repeats() -> None:
    made = plan_mixture(CELLS, MixtureConfig(source_frac={"web": 0.0}))
    assert made.rates == {("web", "de"): 0, ("web", "en"): 0, ("wiki", "de"): 1, ("wiki", "en"): 1}


def test_temperature_flattens_by_the_root() -> None:
    planned = plan_mixture(CELLS, MixtureConfig(temperature=2)).planned_bytes
    assert shares(planned, 1)["en"] / shares(planned, 1)["de"] == pytest.approx(
        (8000 / 2000) ** 0.5
    )
    assert planned["web", "en"] / planned["wiki", "en"] == pytest.approx(3)
    by_source = plan_mixture(
        CELLS, MixtureConfig(temperature=2, temperature_over="source", source_frac={"web": 0.9})
    ).planned_bytes
    assert shares(by_source, 0)["web"] == pytest.approx(0.9)


def test_what_a_capped_group_cannot_give_the_others_give() -> None:
    config = MixtureConfig(source_frac={"wiki": 0.9}, max_repeats=2, target_bytes=10_000)
    planned = plan_mixture(CELLS, config).planned_bytes
    assert planned["wiki", "en"] == 4000 and planned["wiki", "de"] == 2000
    assert planned["web", "en"] + planned["web", "de"] == pytest.approx(4000)
    everything = plan_mixture(CELLS, MixtureConfig(max_repeats=2, target_bytes=10**9)).planned_bytes
    assert sum(everything.values()) == 20_000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from("xyz"),
            st.sampled_from([0, 1, 2, 5, 8]),
            st.integers(1, 10**6),
        ),
        min_size=1,
    ),
    st.floats(1, 10),
    st.floats(1, 9),
    st.integers(1, 10**7),
)
def test_plans_fit_the_target_and_the_cap_and_rates_give_the_plan(
    raw, temperature, max_repeats, target
) -> None:
    cells = [Cell(*one) for one in raw]
    config = MixtureConfig(temperature=temperature, max_repeats=max_repeats, target_bytes=target)
    made = plan_mixture(cells, config)
    capacity = sum(max_repeats * c.num_bytes for c in cells if c.copies)
    assert sum(made.planned_bytes.values()) == pytest.approx(
        min(target, capacity) if capacity else 0
    )
    for group, planned in made.planned_bytes.items():
        mine = [c for c in cells if (c.source, c.language) == group]
        given = sum(min(c.copies * made.rates[group], max_repeats) * c.num_bytes for c in mine)
        assert given == pytest.approx(planned, rel=1e-6, abs=1e-6)


def test_fractions_are_given_by_hash_and_a_larger_rate_only_adds() -> None:
    ids = np.frombuffer(
        b"".join(hashlib.md5(str(i).encode()).digest() for i in range(20_000)), np.uint8
    ).reshape(-1, 16)
    before = np.zeros(len(ids), np.int32)
    for rate in (0.2, 0.5, 1.0, 1.3, 2.7):
        now = repeats_of(ids, np.ones(len(ids)), np.full(len(ids), rate), MixtureConfig())
        assert abs(now.mean() - rate) < 4 * (0.25 / len(ids)) ** 0.5 and (now >= before).all()
        half = repeats_of(
            ids[::2], np.ones(len(ids) // 2), np.full(len(ids) // 2, rate), MixtureConfig()
        )
        assert (half == now[::2]).all()
        before = now
    other = repeats_of(ids, np.ones(len(ids)), np.full(len(ids), 0.5), MixtureConfig(seed=1))
    assert (
        other != repeats_of(ids, np.ones(len(ids)), np.full(len(ids), 0.5), MixtureConfig())
    ).mean() > 0.4


def test_cluster_sizes_are_looked_up_by_their_least_size() -> None:
    config = MixtureConfig(cluster_repeats={"1": 1, "2": 2, "3": 3, "5": 5, "100": 8, "1000": 1})
    sizes = np.array([1, 2, 3, 4, 5, 99, 100, 999, 1000, 10**6])
    assert config.copies_of(sizes).tolist() == [1, 2, 3, 3, 5, 5, 8, 8, 1, 1]
    assert MixtureConfig(cluster_repeats={"3": 2}).copies_of(np.array([1, 2, 3])).tolist() == [
        1,
        1,
        2,
    ]


def test_what_cannot_be_is_refused_with_a_way_out() -> None:
    with pytest.raises(
        StageFailure, match="names books, which no training document has; there are: web, wiki"
    ):
        plan_mixture(CELLS, MixtureConfig(source_frac={"books": 0.1}))
    contradiction = MixtureConfig(source_frac={"wiki": 0.9}, language_frac={"en": 0.9})
    only_german_wiki = [cell for cell in CELLS if (cell.source, cell.language) != ("wiki", "en")]
    with pytest.raises(StageFailure, match="contradict"):
        plan_mixture(only_german_wiki, contradiction)
    for bad in (
        {"source_frac": {"a": 0.7, "b": 0.4}},
        {"language_frac": {"en": -0.1}},
        {"temperature": 0.5},
        {"cluster_repeats": {"0": 1}},
        {"cluster_repeats": {"2": -1}},
        {"cluster_repeats": {"²": 2}},
        {"max_repeats": 0.5},
        {"target_bytes": 0},
        {"seed": -1},
    ):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            MixtureConfig(**bad)
