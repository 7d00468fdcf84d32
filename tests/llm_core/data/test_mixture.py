"""Sources come in their shares, by step, and every position is known alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from llm_core.data.config import MIXTURE_SLOTS, DataConfig
from llm_core.data.loader import Loader
from llm_core.data.mixture import Mixture, whole_slots
from llm_core.data.shards import TokenShards, open_shards
from tests.support.engine.shard_files import write_split

SOURCES = ["books", "code", "web"]
weights = st.dictionaries(st.sampled_from(SOURCES), st.floats(0.01, 1), min_size=1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), weights), min_size=1, max_size=3), st.integers(0, 5)
)
def test_each_source_gives_its_sequences_in_order_and_none_twice(phases: list, seed: int) -> None:
    begins = np.cumsum([0] + [length for length, _ in phases[:-1]]).tolist()
    mixture = Mixture(
        SOURCES, [(begin, w) for begin, (_, w) in zip(begins, phases, strict=True)], seed
    )
    source, number = mixture.locate(np.arange(begins[-1] + 2500))
    for k in range(len(SOURCES)):
        assert number[source == k].tolist() == list(range(int(np.sum(source == k))))


@settings(max_examples=60, deadline=None)
@given(weights, st.integers(0, 3))
def test_shares_of_a_block_are_the_weights_to_a_slot(
    given_weights: dict[str, float], block: int
) -> None:
    mixture = Mixture(SOURCES, [(0, given_weights)], 0)
    source, _ = mixture.locate(np.arange(block * MIXTURE_SLOTS, (block + 1) * MIXTURE_SLOTS))
    total = sum(given_weights.values())
    for k, name in enumerate(SOURCES):
        assert abs(np.sum(source == k) - given_weights.get(name, 0) / total * MIXTURE_SLOTS) < 1
    assert whole_slots(np.array([1.0, 1.0, 1.0])).sum() == MIXTURE_SLOTS


def test_positions_are_located_alone() -> None:
    mixture = Mixture(SOURCES, [(0, {"web": 3, "code": 1}), (1500, {"books": 1, "web": 1})], 7)
    source, number = mixture.locate(np.arange(5000))
    for position in (0, 1, 1023, 1024, 1499, 1500, 2523, 2524, 4999):
        one = mixture.locate(np.array([position]))
        assert (int(one[0][0]), int(one[1][0])) == (source[position], number[position])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Sources alternate; all tokens of source k are k + 1."""
    folder = tmp_path_factory.mktemp("shards")
    documents = [[i % 3 + 1] * (5 + i % 7) + [0] for i in range(120)]
    write_split(folder, [documents[:50], documents[50:]], sources=SOURCES)
    return open_shards(folder, "train")


def sources_of(loader: Loader, steps: range) -> list[int]:
    return [int(targets[targets > 0][0]) - 1 for step in steps for targets in loader.batch(step)[1]]


def test_the_schedule_changes_the_mixture_at_its_step(shards: TokenShards) -> None:
    mixture = {"0": {"web": 1.0, "code": 1.0}, "200": {"books": 1.0}}
    loader = Loader(shards, 8, 4, 0, data=DataConfig(mixture=mixture))
    before, after = (
        np.array(sources_of(loader, range(200))),
        np.array(sources_of(loader, range(200, 230))),
    )
    assert set(before) == {1, 2} and abs(np.mean(before == 1) - 0.5) < 0.05
    assert set(after) == {0}


def test_a_row_holds_one_source_and_each_epoch_of_a_source_all_its_rows(
    shards: TokenShards,
) -> None:
    loader = Loader(shards, 8, 1, 0, data=DataConfig(mixture={"0": {"web": 1.0, "code": 1.0}}))
    begin, end = loader._source_rows[1:3]
    samples = loader.sample_index(np.arange(40 * loader.num_samples))
    web = samples[(samples >= end)]
    code = samples[(samples >= begin) & (samples < end)]
    for rows, size in ((code, end - begin), (web, loader.num_samples - end)):
        epochs = rows[: len(rows) // size * size].reshape(-1, size)
        assert len(epochs) > 5 and all(len(set(epoch)) == size for epoch in epochs.tolist())
    for step in range(60):
        targets = loader.batch(step).targets_BT
        assert len(set(targets[targets > 0].tolist())) == 1


def test_a_mixture_resumes_at_any_degree(shards: TokenShards) -> None:
    data = DataConfig(
        mixture={"0": {"web": 2.0, "books": 1.0}, "5": {"code": 1.0, "web": 0.2}},
        packing="best_fit",
    )
    whole = Loader(shards, 8, 6, 3, data=data)
    for world in (1, 2, 3, 6):
        ranks = [Loader(shards, 8, 6, 3, rank, world, data) for rank in range(world)]
        for step in (0, 4, 5, 6, 300):
            assert torch.equal(
                torch.cat([rank.batch(step)[0] for rank in ranks]), whole.batch(step)[0]
            )


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({5: {"web": 1.0}}, r"mixture \(from step 5\) must say how it begins; add step 0"),
        ({0: {"web": 0.0}}, r"must have weights of at least 0, one of them above"),
        ({0: {"web": -1.0, "code": 2.0}}, "must have weights of at least 0"),
        ({0: {}}, "must have weights"),
        ({0: {"web": float("inf")}}, "must be .*finite"),
        ({0: {"web": 1e308, "code": 1e308}}, "must have finite weights"),
        ({0: {"web": float("nan")}}, "must be .*finite"),
        ({0: {"web": 1.0}, "soon": {"web": 1.0}}, r"mixture \(soon\) must be keyed by steps"),
        ({0: {"web": 1.0, "code": 0.0001}}, "gives code 0.0001, less than a 2048th"),
    ],
)
def test_rules_of_a_mixture_are_checked(mixture: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(DataConfig, {"mixture": mixture})


def test_a_source_that_is_not_there_is_named(shards: TokenShards, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"mixture names wed, which is not a source .*did you mean web\?"
    ):
        Loader(shards, 8, 4, 0, data=DataConfig(mixture={"0": {"wed": 1.0}}))
    with pytest.raises(
        ConfigError, match=r"mixture wants web, which has less than one row of seq_len \(600\)"
    ):
        Loader(shards, 600, 4, 0, data=DataConfig(mixture={"0": {"web": 1.0}}))
