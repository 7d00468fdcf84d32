"""With `loss_on=assistant` the targets are those that the shards mark, in every packing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.data.batch import IGNORED
from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import ShardError, TokenShards, digest_tokens, open_shards
from llm_core.data.sources import NO_SOURCE
from llm_core.training.validate import read_validation_set
from tests.support.engine.shard_files import counting_stream, write_split

SEQ_LEN = 7
PACKINGS = "concat", "best_fit", "one_per_row"
SOURCES = "chat", "web"


def counted(place: int) -> int:
    return int(place * 7919 % 11 > 4)


def stream(folder: Path, borders: list[int], documents_per_shard: int = 3) -> TokenShards:
    """A stream whose token at place i is i, of documents between the borders; every second one is a
    chat."""
    documents = [list(range(a, b)) for a, b in pairwise(borders)]
    chats = {place for document in documents[::2] for place in document}
    split = [
        documents[k : k + documents_per_shard]
        for k in range(0, len(documents), documents_per_shard)
    ]
    folder.mkdir(parents=True, exist_ok=True)

    def mask(place: int) -> int:
        return counted(place) if place in chats else 1

    write_split(folder, split, sources=SOURCES, loss_mask=mask)
    return open_shards(folder, "train")


BORDERS = [0, 5, 9, 30, 41, 60, 62, 90, 121, 140, 150]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return stream(tmp_path_factory.mktemp("shards"), BORDERS)


@settings(max_examples=60, deadline=None)
@given(
    borders=st.sets(st.integers(1, 90), min_size=2, max_size=12),
    packing=st.sampled_from(PACKINGS),
    per_shard=st.integers(1, 4),
)
def test_exactly_the_unmarked_targets_are_ignored(
    tmp_path_factory: pytest.TempPathFactory, borders: set[int], packing: str, per_shard: int
) -> None:
    places = [0, *sorted(borders), 100]
    shards = stream(tmp_path_factory.mktemp("any"), places, per_shard)
    whole = Loader(shards, SEQ_LEN, 3, 0, data=DataConfig(packing=packing))  # type: ignore[arg-type]
    some = Loader(shards, SEQ_LEN, 3, 0, data=DataConfig(packing=packing, loss_on="assistant"))  # type: ignore[arg-type]
    document = np.searchsorted(places[1:], np.arange(100), "right")
    learnt = np.array([document[i] % 2 == 1 or counted(i) == 1 for i in range(100)])
    for step in range(8):
        every, found = whole.batch(step), some.batch(step)
        assert torch.equal(every.ids_BT, found.ids_BT)
        targets = every.targets_BT.numpy()
        expected = np.where((targets != IGNORED) & learnt[targets], targets, IGNORED)
        assert np.array_equal(found.targets_BT.numpy(), expected)


def test_losses_of_ignored_targets_belong_to_no_source(shards: TokenShards) -> None:
    batch = Loader(shards, SEQ_LEN, 8, 0, data=DataConfig(loss_on="assistant")).batch(0)
    assert batch.sources_BT is not None
    assert torch.equal(batch.sources_BT == NO_SOURCE, batch.targets_BT == IGNORED)
    assert 0 < (batch.targets_BT == IGNORED).sum() < batch.targets_BT.numel()


def test_a_mixture_by_step_begins_with_text_and_goes_on_with_chats(shards: TokenShards) -> None:
    mixture = {"0": {"web": 1.0}, "2": {"chat": 1.0}}
    loader = Loader(shards, SEQ_LEN, 4, 0, data=DataConfig(mixture=mixture, loss_on="assistant"))
    text, chats = loader.batch(0), loader.batch(2)
    assert (text.targets_BT != IGNORED).all() and (chats.targets_BT == IGNORED).any()


def test_end_of_text_within_a_chat_does_not_end_the_document(tmp_path: Path) -> None:
    chat = [5, 0, 6, 0]
    write_split(tmp_path, [[chat, chat]], loss_mask=counted)
    shards = open_shards(tmp_path, "train")
    data = DataConfig(mask_documents=True)
    (row,) = Loader(shards, 6, 1, 0, data=data).batch(0).documents_BT.tolist()
    assert row == [0, 0, 0, 1, 1, 1]
    windows = read_validation_set(shards, 6, 9, np.ones(9, np.int32), data)
    assert windows.documents_BT[0].tolist() == row


def test_validation_counts_what_training_learns(shards: TokenShards) -> None:
    table = np.ones(200, np.int32)
    every = read_validation_set(shards, SEQ_LEN, 99, table)
    some = read_validation_set(shards, SEQ_LEN, 99, table, DataConfig(loss_on="assistant"))
    learnt = shards.read_loss_mask(0, shards.num_tokens)
    targets = every.targets_BT.numpy()
    expected = np.where((targets != IGNORED) & learnt[targets], targets, IGNORED)
    assert np.array_equal(some.targets_BT.numpy(), expected)
    assert torch.equal(every.ids_BT, some.ids_BT)


def test_shards_without_chats_cannot_tell_who_speaks(tmp_path: Path) -> None:
    plain = counting_stream(tmp_path, 100)
    with pytest.raises(ConfigError, match="loss_on .assistant. needs shards with chats"):
        Loader(plain, SEQ_LEN, 2, 0, data=DataConfig(loss_on="assistant"))


def test_a_mask_that_was_changed_is_found(tmp_path: Path) -> None:
    described = {"loss_mask_digest": digest_tokens(np.array([1, 1, 0], np.uint8))}
    write_split(tmp_path, [[[1, 2, 0]]], loss_mask=lambda place: 1, metadata=described)
    with pytest.raises(ShardError, match="does not hold the loss_mask that were written"):
        open_shards(tmp_path, "train").verify()
