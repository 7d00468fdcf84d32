"""Every target of a batch is of the source of the document that it is in, and its loss is summed
there."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.data.batch import IGNORED
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import TokenShards, open_shards
from llm_core.data.sources import (
    MAX_SOURCES,
    NO_SOURCE,
    OTHER,
    Sources,
    SourceSums,
    largest,
    read_sources,
)
from tests.support.engine.shard_files import write_split

NAMES = ("books", "code", "web")
LENGTHS = (5, 1, 40, 3, 9, 2, 61, 8, 8, 17)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Two shards in which every token has an id of its own."""
    folder = tmp_path_factory.mktemp("shards")
    bounds = np.cumsum((1, *LENGTHS))
    documents = [list(range(a, b)) for a, b in pairwise(bounds)]
    write_split(folder, [documents[:4], documents[4:]], sources=NAMES)
    return open_shards(folder, "train")


@pytest.mark.parametrize("mixture", [{}, {"0": {"books": 1.0, "code": 1.0, "web": 2.0}}])
@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_targets_have_the_source_of_their_document(
    shards: TokenShards, packing: Any, mixture: Any
) -> None:
    loader = Loader(
        shards, 7, 2, seed=1, rank=1, world=2, data=DataConfig(packing=packing, mixture=mixture)
    )
    documents = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for step in range(2 * loader.num_samples):
        _, targets_BT, documents_BT, sources_BT, *_ = loader.batch(step)
        assert documents_BT is None and sources_BT is not None and sources_BT.dtype == torch.uint8
        expected = np.where(
            targets_BT == IGNORED, NO_SOURCE, documents[targets_BT.clamp(min=1) - 1] % len(NAMES)
        )
        assert np.array_equal(sources_BT.numpy(), expected)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_a_stretch_of_the_stream_is_labelled_token_by_token(
    lengths: list[int], data: st.DataObject
) -> None:
    of_document = np.array(
        data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))),
        np.uint8,
    )
    start = data.draw(st.integers(0, sum(lengths) - 1))
    stop = data.draw(st.integers(start + 1, sum(lengths)))
    out = np.empty(stop - start, np.uint8)
    Sources(("a", "b", "c", "d"), of_document, np.cumsum(lengths)).fill(start, stop, out)
    assert np.array_equal(out, np.repeat(of_document, lengths)[start:stop])


def test_a_split_of_one_source_has_nothing_to_tell_apart(tmp_path: Path) -> None:
    write_split(tmp_path, [[[1, 2, 3], [4, 5]]])
    shards = open_shards(tmp_path, "train")
    assert read_sources(shards) is None
    assert Loader(shards, 2, 1, seed=0).batch(0).sources_BT is None


def test_small_sources_are_summed_up() -> None:
    tokens = np.arange(MAX_SOURCES + 3)
    names, place = largest([f"s{i:02}" for i in tokens], tokens)
    assert names == (*(f"s{i:02}" for i in tokens[3:]), OTHER)
    assert place.tolist() == [MAX_SOURCES] * 3 + list(range(MAX_SOURCES))


def test_sums_are_those_of_each_source_and_leave_out_what_does_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    losses_BT = torch.rand(6, 50, generator=generator, dtype=torch.float64)
    sources_BT = torch.randint(0, 4, (6, 50), generator=generator).to(torch.uint8)
    sources_BT[sources_BT == 3] = NO_SOURCE
    sums = SourceSums(sources_BT, 3)
    for rows in (slice(0, 4), slice(4, 6)):
        sums.add(losses_BT[rows], sources_BT[rows])
    for k, (nats, targets) in enumerate(sums.sums_S2.tolist()):
        assert nats == pytest.approx(float(losses_BT[sources_BT == k].sum()), rel=1e-12)
        assert targets == int((sources_BT == k).sum())
