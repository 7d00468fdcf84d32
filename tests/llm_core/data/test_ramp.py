"""A global batch that grows reads one sequence of samples, and any step of it is found alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.ramp import BatchSizes
from llm_core.data.shards import TokenShards, open_shards
from tests.support.engine.shard_files import counting_stream, write_split

SEQ_LEN = 7
RAMP = BatchSizes(12, ((2, 4), (5, 8)))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return counting_stream(tmp_path_factory.mktemp("shards"), 1000)


@st.composite
def ramps(draw: st.DrawFn) -> BatchSizes:
    ends = sorted(draw(st.sets(st.integers(1, 30), max_size=4)))
    sizes = sorted(draw(st.sets(st.integers(1, 50), min_size=len(ends) + 1, max_size=5)))
    return BatchSizes(sizes[-1], tuple(zip(ends, sizes, strict=False)))


@given(ramps(), st.integers(0, 40))
def test_what_comes_before_a_step_is_the_sum_of_its_batches(sizes: BatchSizes, steps: int) -> None:
    assert sizes.before(steps) == sum(map(sizes.at, range(steps)))
    phases = sizes.phases(steps)
    assert [size for count, size in phases for _ in range(count)] == list(
        map(sizes.at, range(steps))
    )
    plain = {str(end): size for end, size in reversed(sizes.ramp)}
    assert BatchSizes.of({"global_batch_sequences": sizes.full, "batch_ramp": plain}) == sizes


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.sampled_from(["blocks", "strided"]), st.integers(0, 30))
def test_steps_read_one_sequence_of_samples_on_any_number_of_ranks(
    shards: TokenShards, world: int, order: str, step: int
) -> None:
    data = DataConfig(ranks=order)  # type: ignore[arg-type]
    ranks = [Loader(shards, SEQ_LEN, RAMP, 3, rank, world, data) for rank in range(world)]
    read = [loader.batch(step).ids_BT[:, 0].tolist() for loader in ranks]
    places = np.arange(RAMP.before(step), RAMP.before(step + 1))
    expected = ranks[0].sample_index(places) * SEQ_LEN
    # Strided ranks take turns, others come one after another.
    found = np.array(read).T if order == "strided" else np.array(read)
    assert found.flatten().tolist() == expected.tolist()


def test_a_phase_of_a_mixture_begins_with_the_first_sequence_of_its_step(tmp_path: Path) -> None:
    documents = [[k + 1] * 8 + [0] for k in range(40)]
    write_split(tmp_path, [documents], sources=("web", "code"))
    mixture = {"0": {"web": 1.0}, "3": {"code": 1.0}}
    data = DataConfig(mixture=mixture, packing="one_per_row")
    loader = Loader(open_shards(tmp_path, "train"), SEQ_LEN, RAMP, 0, data=data)
    for step in range(6):
        parity = {int(row[0]) % 2 for row in loader.batch(step).targets_BT}
        assert parity == ({1} if step < 3 else {0})


def test_every_size_of_a_ramp_must_be_shared_by_the_ranks(shards: TokenShards) -> None:
    with pytest.raises(ConfigError, match=r"global_batch_sequences \(4\) .* \(3\); try 3"):
        Loader(shards, SEQ_LEN, RAMP, seed=0, world=3)
