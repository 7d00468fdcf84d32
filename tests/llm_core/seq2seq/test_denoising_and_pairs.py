"""Sources and targets of token shards hold what the shards hold, as a pure function of the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from llm_core.config import ConfigError
from llm_core.data.batch import IGNORED
from llm_core.data.shards import TokenShards, open_shards
from llm_core.seq2seq.batch import lay_out
from llm_core.seq2seq.denoising import Denoising, DenoisingConfig, corrupt, noise_mask
from llm_core.seq2seq.pairs import Pairs
from tests.support.engine.shard_files import counting_stream, write_split
from tests.support.engine.small_seq2seq import small_config

MODEL = small_config("t5", vocab_size=1100)
NOISE = DenoisingConfig()


def restored(source: np.ndarray, target: np.ndarray, first_sentinel: int) -> list[int]:
    """The text: each sentinel of the source gives way to what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for each in target[:-1].tolist():
        if each >= first_sentinel:
            spans[each] = held = []
        else:
            held.append(each)
    out: list[int] = []
    for each in source[:-1].tolist():
        out += spans[each] if each >= first_sentinel else [each]
    return out


@pytest.mark.parametrize("length", [*range(21), 100, 568])
def test_source_and_target_together_hold_the_text(length: int) -> None:
    ids = np.arange(2, length + 2)
    for seed in range(5):
        source, target = corrupt(ids, f"{seed}", NOISE, MODEL)
        assert restored(source, target, 1000) == ids.tolist()
        assert source[-1] == target[-1] == MODEL.eos_id
        mask = noise_mask(length, f"{seed}", NOISE)
        assert (int(mask.sum()), len(mask)) == (NOISE.counts(length)[0], length)
        assert length < 2 or mask[-1]


def test_spans_are_at_most_the_tokens_that_stay() -> None:
    noise = DenoisingConfig(rate=0.8, mean_span=1)
    assert noise.counts(20) == (16, 4)
    source, target = corrupt(np.arange(2, 22), "0", noise, MODEL)
    assert restored(source, target, 1000) == list(range(2, 22))


def test_another_seed_drops_other_spans_of_the_same_text(tmp_path: Path) -> None:
    shards = counting_stream(tmp_path, 999)

    def sources(seed: int) -> dict[tuple[int, ...], list[int]]:
        found = {}
        for step in range(5):
            batch = Denoising(shards, 40, 4, MODEL, NOISE, seed).batch(step)
            for source, target in zip(batch.source_BS, batch.targets_BT, strict=True):
                text = restored(source.numpy(), target.numpy(), 1000)
                found[tuple(text)] = source.tolist()
        return found

    one, other = sources(3), sources(4)
    common = one.keys() & other.keys()
    assert common and any(one[text] != other[text] for text in common)


def test_lengths_are_those_of_the_paper() -> None:
    assert NOISE.text_tokens(512) == 568
    assert NOISE.lengths(568) == (512, 114)


def test_spans_are_as_long_and_as_spread_as_asked() -> None:
    masks = np.stack([noise_mask(100, f"{n}", NOISE) for n in range(2000)])
    assert masks.mean() == pytest.approx(0.15)
    # The text ends in a span; everywhere else all places are alike, but for the first.
    assert masks[:, 20:80].mean(axis=0).std() < 0.02


def test_corrupted_rows_do_not_depend_on_the_ranks(tmp_path: Path) -> None:
    shards = counting_stream(tmp_path, 999)
    whole = Denoising(shards, 40, 4, MODEL, NOISE, seed=3).batch(7)
    ranks = [Denoising(shards, 40, 4, MODEL, NOISE, 3, rank, 2).batch(7) for rank in range(2)]
    for one, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert torch.equal(one, torch.cat(parts))
    other = Denoising(shards, 40, 4, MODEL, NOISE, seed=4).batch(7)
    assert not torch.equal(whole.source_BS, other.source_BS)
    with pytest.raises(ConfigError, match="vocab_size"):
        Denoising(shards, 40, 4, small_config("t5", vocab_size=1050), NOISE)
    with pytest.raises(ConfigError, match="eos_id"):
        Denoising(shards, 40, 4, small_config("t5", vocab_size=1100, eos_id=1000), NOISE)


def test_a_decoder_reads_each_target_one_place_later() -> None:
    row = [(np.array([7]), np.array([5, 6, 1])), (np.array([8]), np.array([9, 1]))]
    batch = lay_out([row], np.arange(1), 3, 6, MODEL)
    assert batch.inputs_BT.tolist() == [[0, 5, 6, 0, 9, 0]]
    assert batch.targets_BT.tolist() == [[5, 6, 1, 9, 1, IGNORED]]
    assert batch.source_documents_BS.tolist() == [[0, 1, -1]]


@pytest.fixture
def chats(tmp_path: Path) -> TokenShards:
    """Twelve chats of one answer, one of two, one that begins with its answer, one too long."""
    documents = [[10 + n, 11 + n, 30 + n, 31 + n, 32 + n, 0] for n in range(12)]
    masks = [[0, 0, 1, 1, 1, 1] for _ in documents]
    documents += [[5, 6, 7, 8, 9, 0], [4, 5, 0], [*range(60, 90), 0]]
    masks += [[0, 1, 0, 1, 1, 1], [1, 1, 1], [0] * 20 + [1] * 11]
    flat = [each for mask in masks for each in mask]
    write_split(tmp_path, [documents[:5], documents[5:]], loss_mask=flat.__getitem__)
    return open_shards(tmp_path, "train")


@pytest.mark.parametrize("packed", [True, False])
def test_an_epoch_of_pairs_has_each_chat_of_one_answer_once(
    chats: TokenShards, packed: bool
) -> None:
    pairs = Pairs(chats, 9, 12, 1, MODEL, packed=packed)
    assert (pairs.num_pairs, pairs.num_left_out) == (12, 3)
    assert pairs.num_rows == (6 if packed else 12)
    for epoch in range(2):
        seen = []
        for step in range(epoch * pairs.num_rows, (epoch + 1) * pairs.num_rows):
            batch = pairs.batch(step)
            for number in range(int(batch.documents_BT.max()) + 1):
                source = batch.source_BS[batch.source_documents_BS == number].tolist()
                target = batch.targets_BT[batch.documents_BT == number].tolist()
                seen.append((source, target))
        expected = [([10 + n, 11 + n, 1], [30 + n, 31 + n, 32 + n, 0, 1]) for n in range(12)]
        assert sorted(seen) == expected


def test_pairs_do_not_depend_on_the_ranks(chats: TokenShards) -> None:
    whole = Pairs(chats, 9, 12, 4, MODEL, 3).batch(5)
    ranks = [Pairs(chats, 9, 12, 4, MODEL, 3, rank, 2).batch(5) for rank in range(2)]
    for one, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert torch.equal(one, torch.cat(parts))


def test_shards_without_answers_are_refused(chats: TokenShards, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chats"):
        Pairs(counting_stream(tmp_path / "plain", 99), 9, 12, 1, MODEL)
    with pytest.raises(ConfigError, match="source_len"):
        Pairs(chats, 2, 2, 1, MODEL)
    with pytest.raises(ConfigError, match="global_batch_sequences"):
        Pairs(chats, 9, 12, 3, MODEL, 0, 0, 2)
