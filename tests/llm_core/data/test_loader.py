"""The order of samples is a pure function of seed, epoch and place; ranks and restarts change
nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.order import hash_ids, permute
from llm_core.data.shards import TokenShards, open_shards
from tests.support.engine.shard_files import counting_stream, write_split

SEQ_LEN, NUM_TOKENS = 7, 1000
NUM_SAMPLES = (NUM_TOKENS - 1) // SEQ_LEN


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return counting_stream(tmp_path_factory.mktemp("shards"), NUM_TOKENS)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.text(max_size=5))
def test_the_order_is_a_bijection(size: int, key: str) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**50), st.data())
def test_the_order_is_evaluated_at_any_index_alone(size: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    together = permute(index, size, "k")
    assert together.min() >= 0 and together.max() < size
    assert together.tolist() == [int(permute(np.array([i]), size, "k")[0]) for i in index]


def test_the_order_looks_random() -> None:
    size = 10_000
    orders = [permute(np.arange(size), size, f"order of samples 0 {epoch}") for epoch in range(4)]
    for i, order in enumerate(orders):
        assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 0.04
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04
        assert np.mean(np.abs(np.diff(order)) == 1) < 0.002
        for other in orders[:i]:
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.04 and np.mean(order == other) < 0.001


def test_document_hashes_depend_on_every_byte_and_the_seed() -> None:
    ids = np.random.default_rng(0).integers(0, 256, (1000, 16), np.uint8)
    flipped = ids.copy()
    flipped[np.arange(1000), np.arange(1000) % 16] ^= 1
    hashes = hash_ids(ids, 0)
    changed = [
        np.bitwise_count(hashes ^ other).mean()
        for other in (hash_ids(flipped, 0), hash_ids(ids, 1))
    ]
    assert len(set(hashes.tolist())) == 1000 and all(30 < bits < 34 for bits in changed)


@pytest.mark.parametrize("global_batch", [1, 6, NUM_SAMPLES, NUM_SAMPLES + 5])
def test_each_epoch_covers_every_sample_once(shards: TokenShards, global_batch: int) -> None:
    loader = Loader(shards, SEQ_LEN, global_batch, seed=3)
    num_epochs = 3
    steps = -(-num_epochs * NUM_SAMPLES // global_batch)
    starts = torch.cat([loader.batch(step)[0][:, 0] for step in range(steps)])[
        : num_epochs * NUM_SAMPLES
    ]
    for epoch in starts.view(num_epochs, NUM_SAMPLES):
        assert Counter(epoch.tolist()) == Counter(range(0, NUM_SAMPLES * SEQ_LEN, SEQ_LEN))
    assert not torch.equal(starts[:NUM_SAMPLES], starts[NUM_SAMPLES : 2 * NUM_SAMPLES])


def test_targets_are_the_next_tokens(shards: TokenShards) -> None:
    ids_BT, targets_BT, *_ = Loader(shards, SEQ_LEN, 4, seed=0).batch(11)
    assert (
        ids_BT.shape == targets_BT.shape == (4, SEQ_LEN)
        and ids_BT.dtype == targets_BT.dtype == torch.int64
    )
    assert torch.equal(ids_BT + 1, targets_BT)


@pytest.mark.parametrize("world", [2, 3, 4, 12])
def test_ranks_together_read_the_batch_of_one_rank(shards: TokenShards, world: int) -> None:
    alone = Loader(shards, SEQ_LEN, 12, seed=1)
    ranks = [Loader(shards, SEQ_LEN, 12, seed=1, rank=rank, world=world) for rank in range(world)]
    for step in (0, 5, NUM_SAMPLES // 12, 40):
        for part in (0, 1):
            assert torch.equal(
                torch.cat([rank.batch(step)[part] for rank in ranks]), alone.batch(step)[part]
            )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([1, 2, 3, 6])), min_size=1, max_size=4)
)
def test_resumed_loaders_match_an_uninterrupted_one(
    shards: TokenShards, stretches: list[tuple[int, int]]
) -> None:
    """Any number of restarts, in a row and at epoch borders, each at another data-parallel
    degree."""
    whole = Loader(shards, SEQ_LEN, 6, seed=5)
    begin = 0
    for steps, world in stretches:
        ranks = [
            Loader(shards, SEQ_LEN, 6, seed=5, rank=rank, world=world) for rank in range(world)
        ]
        for step in range(begin, begin + steps):
            assert torch.equal(
                torch.cat([rank.batch(step).ids_BT for rank in ranks]), whole.batch(step).ids_BT
            )
        begin += steps


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("order", ["shuffled", "sequential", "random"])
@pytest.mark.parametrize("ranks", ["blocks", "strided"])
def test_every_packing_and_order_resumes_twice_over_an_epoch_border(
    tmp_path: Path, packing: str, order: str, ranks: str
) -> None:
    documents = [[n + 1] * (1 + 5 * n % 11) + [0] for n in range(40)]
    write_split(tmp_path, [documents[:25], documents[25:]])
    split = open_shards(tmp_path, "train")
    data = DataConfig(packing=packing, order=order, ranks=ranks)  # type: ignore[arg-type]
    whole = Loader(split, 8, 6, seed=1, data=data)
    steps = whole.num_samples // 6 + 1
    for stretch, world in enumerate((1, 3, 6, 2)):
        loaders = [
            Loader(split, 8, 6, seed=1, rank=rank, world=world, data=data) for rank in range(world)
        ]
        for step in range(stretch * steps, (stretch + 1) * steps):
            rows = sorted(row for one in loaders for row in one.batch(step).targets_BT.tolist())
            assert rows == sorted(whole.batch(step).targets_BT.tolist())


def test_a_batch_does_not_depend_on_those_read_before(shards: TokenShards) -> None:
    loader = Loader(shards, SEQ_LEN, 6, seed=2)
    for step in range(60):
        alone = Loader(shards, SEQ_LEN, 6, seed=2).batch(step)
        assert torch.equal(loader.batch(step).ids_BT, alone.ids_BT)


def test_every_token_is_predicted_but_a_tail_shorter_than_a_row(shards: TokenShards) -> None:
    loader = Loader(shards, SEQ_LEN, NUM_SAMPLES, seed=0)
    predicted = set(loader.batch(0)[1].flatten().tolist())
    assert predicted == set(range(1, NUM_TOKENS - (NUM_TOKENS - 1) % SEQ_LEN))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("shuffled", [False, True])
def test_strided_ranks_take_what_torchs_distributed_sampler_gives(
    shards: TokenShards, world: int, shuffled: bool
) -> None:
    from torch.utils.data import DistributedSampler

    data = DataConfig(order="shuffled" if shuffled else "sequential", ranks="strided")
    order = Loader(shards, SEQ_LEN, 1, seed=0, data=data).sample_index(np.arange(NUM_SAMPLES))
    for rank in range(world):
        loader = Loader(shards, SEQ_LEN, 6, seed=0, rank=rank, world=world, data=data)
        steps = NUM_SAMPLES // 6
        taken = torch.cat([loader.batch(step)[0][:, 0] for step in range(steps)]) // SEQ_LEN
        sampler = DistributedSampler(order[: steps * 6], world, rank, shuffle=False)  # type: ignore[arg-type]
        assert taken.tolist() == [int(order[i]) for i in sampler]


def test_sequential_and_random_orders_are_what_they_say(shards: TokenShards) -> None:
    loaders = {
        order: Loader(shards, SEQ_LEN, 1, 0, data=DataConfig(order=order))
        for order in ("sequential", "random")
    }  # type: ignore[arg-type]
    positions = np.arange(50 * NUM_SAMPLES)
    assert (
        loaders["sequential"].sample_index(positions).tolist() == (positions % NUM_SAMPLES).tolist()
    )
    drawn = loaders["random"].sample_index(positions)
    counts = np.bincount(drawn, minlength=NUM_SAMPLES)
    assert (
        counts.min() > 20
        and counts.max() < 85
        and len(set(drawn[:NUM_SAMPLES])) < 0.75 * NUM_SAMPLES
    )
    assert drawn[77] == loaders["random"].sample_index(np.array([77]))[0]


def test_batches_over_the_borders_of_order_blocks_agree_with_single_positions(
    shards: TokenShards,
) -> None:
    loader = Loader(shards, SEQ_LEN, 10, seed=4)
    assert loader._block_size % 10
    for step in (loader._block_size // 10, 2 * loader._block_size // 10, 99):
        expected = loader.sample_index(np.arange(step * 10, step * 10 + 10)) * SEQ_LEN
        assert loader.batch(step)[0][:, 0].tolist() == expected.tolist()


def test_errors_say_what_to_do(shards: TokenShards, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"seq_len \(1000\) needs at least 1001 tokens, split 'train' has 1000"
    ):
        Loader(shards, 1000, 4, seed=0)
    assert Loader(shards, 999, 4, seed=0).num_samples == 1
    with pytest.raises(
        ConfigError, match=r"global_batch_sequences \(10\) must be a multiple .*\(4\); try 8"
    ):
        Loader(shards, SEQ_LEN, 10, seed=0, world=4)
