"""Validation weighs tokens, whatever the layout, the micro batches and the sources."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_core.data.batch import IGNORED
from llm_core.data.shards import open_shards
from llm_core.data.sources import MAX_SOURCES, OTHER
from llm_core.model.transformer import Transformer
from llm_core.parallel.ranks import Ranks
from llm_core.training.validate import (
    ValidationSet,
    micro_batches,
    partial_sums,
    read_validation_set,
    result,
)
from tests.support.engine.small_runs import MODEL, VOCAB_SIZE, write_token_shards
from tests.support.engine.uneven_model import make_model

CPU = torch.device("cpu")


def bytes_table() -> np.ndarray:
    return np.where(np.arange(VOCAB_SIZE) == 0, 0, np.arange(VOCAB_SIZE) % 5 + 1)


def sums_of(
    model: Transformer,
    data: ValidationSet,
    ids_BT: torch.Tensor,
    targets_BT: torch.Tensor,
    sources_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    with torch.no_grad():
        losses_BT = model(ids_BT, targets_BT=targets_BT)[1]
    return partial_sums(
        losses_BT, targets_BT, data.bytes_per_token_V, sources_BT, len(data.sources)
    )


def test_every_token_is_predicted_once(tmp_path: Path) -> None:
    shards = open_shards(
        write_token_shards(tmp_path, num_documents=3, document_tokens=37), "validation"
    )
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    assert torch.equal(
        data.targets_BT[data.targets_BT != IGNORED],
        torch.from_numpy(shards.read(1, shards.num_tokens)),
    )


def test_a_sample_spreads_over_the_split(tmp_path: Path) -> None:
    shards = open_shards(write_token_shards(tmp_path), "validation")
    data = read_validation_set(shards, 16, 5, bytes_table())
    every = read_validation_set(shards, 16, 10_000, bytes_table())
    rows = [int((every.ids_BT == row).all(1).nonzero()[0, 0]) for row in data.ids_BT]
    assert rows == [i * len(every.ids_BT) // 5 for i in range(5)]


@pytest.mark.parametrize(("size", "world"), [(1, 1), (3, 1), (2, 2), (4, 3)])
def test_sums_do_not_depend_on_micro_batches_or_ranks(
    tmp_path: Path, size: int, world: int
) -> None:
    shards = open_shards(write_token_shards(tmp_path, 3, 37, sources=("walk", "run")), "validation")
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    model = make_model(MODEL)
    whole = sums_of(model, data, data.ids_BT, data.targets_BT, data.sources_BT)
    shares = [micro_batches(data, size, Ranks(rank, world, CPU)) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    sums = sum(
        sums_of(model, data, batch.ids_BT, batch.targets_BT, batch.sources_BT)
        for share in shares
        for batch in share
    )
    assert isinstance(sums, torch.Tensor)
    torch.testing.assert_close(sums, whole, rtol=1e-6, atol=0)


def test_a_uniform_model_needs_the_bits_of_a_uniform_code(tmp_path: Path) -> None:
    shards = open_shards(
        write_token_shards(tmp_path, num_documents=3, document_tokens=37), "validation"
    )
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    model = make_model(MODEL)
    torch.nn.init.zeros_(model.embedding.weight)
    found = result(sums_of(model, data, data.ids_BT, data.targets_BT)[0])
    targets = shards.read(1, shards.num_tokens)
    assert math.isclose(found.val_loss, math.log(VOCAB_SIZE), rel_tol=1e-6)
    bits = math.log2(VOCAB_SIZE) * int((targets != 0).sum()) / int(bytes_table()[targets].sum())
    assert math.isclose(found.val_bpb, bits, rel_tol=1e-6)


def test_losses_by_source_are_those_of_its_tokens_and_add_up(tmp_path: Path) -> None:
    shards = open_shards(
        write_token_shards(tmp_path, 5, 37, sources=("walk", "run", "jump")), "validation"
    )
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    assert data.sources == ("jump", "run", "walk") and data.sources_BT is not None
    model = make_model(MODEL)
    sums = sums_of(model, data, data.ids_BT, data.targets_BT, data.sources_BT)
    torch.testing.assert_close(sums[1:].sum(0), sums[0], rtol=1e-12, atol=0)
    with torch.no_grad():
        losses_BT = model(data.ids_BT, targets_BT=data.targets_BT)[1].double()
    losses, targets = losses_BT[data.targets_BT != IGNORED], shards.read(1, shards.num_tokens)
    place = 0
    expected = dict.fromkeys(data.sources, 0.0)
    for number, document in enumerate(shards.documents()):
        predicted = len(document.tokens) - (
            number == 0
        )  # the first token of the stream is predicted by none
        assert (
            targets[place : place + predicted]
            == document.tokens[len(document.tokens) - predicted :]
        ).all()
        expected[str(document.source)] += float(losses[place : place + predicted].sum())
        place += predicted
    for name, row in zip(data.sources, sums[1:], strict=True):
        assert math.isclose(float(row[0]), expected[name], rel_tol=1e-9)
        assert result(row).val_loss == float(row[0] / row[1])


def test_one_source_is_not_counted_apart_and_many_are_summed_up(tmp_path: Path) -> None:
    one = open_shards(write_token_shards(tmp_path / "one"), "validation")
    assert read_validation_set(one, 16, 10_000, bytes_table()).sources == ()
    names = tuple(f"source{i:02d}" for i in range(MAX_SOURCES + 4))
    many = open_shards(
        write_token_shards(tmp_path / "many", 2 * len(names) - 3, sources=names), "validation"
    )
    data = read_validation_set(many, 16, 10_000, bytes_table())
    # The first has a token less than the next, as nothing stands before the first token of the
    # stream.
    assert data.sources == (*names[1 : MAX_SOURCES + 1], OTHER), (
        "those with most tokens by name, the rest together"
    )
    assert data.sources_BT is not None and int(data.sources_BT.max()) == MAX_SOURCES
