import math
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_core.loss import IGNORED
from llm_core.model.transformer import Transformer
from llm_core.parallel.ranks import Ranks
from llm_core.shards import open_shards
from llm_core.validate import ValidationSet, micro_batches, partial_sums, read_validation_set, result
from tests.llm_core.model.test_transformer import make_model
from tests.llm_core.small_runs import MODEL, VOCAB_SIZE, write_token_shards

CPU = torch.device("cpu")


def bytes_table() -> np.ndarray:
    return np.where(np.arange(VOCAB_SIZE) == 0, 0, np.arange(VOCAB_SIZE) % 5 + 1)


def sums_of(model: Transformer, data: ValidationSet, ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return partial_sums(model(ids_BT, targets_BT=targets_BT)[1], targets_BT, data.bytes_per_token_V)


def test_every_token_is_predicted_once(tmp_path: Path) -> None:
    shards = open_shards(write_token_shards(tmp_path, num_documents=3, document_tokens=37), "validation")
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    assert torch.equal(data.targets_BT[data.targets_BT != IGNORED], torch.from_numpy(shards.read(1, shards.num_tokens)))


def test_a_sample_spreads_over_the_split(tmp_path: Path) -> None:
    shards = open_shards(write_token_shards(tmp_path), "validation")
    data = read_validation_set(shards, 16, 5, bytes_table())
    every = read_validation_set(shards, 16, 10_000, bytes_table())
    rows = [int((every.ids_BT == row).all(1).nonzero()[0, 0]) for row in data.ids_BT]
    assert rows == [i * len(every.ids_BT) // 5 for i in range(5)]


@pytest.mark.parametrize(("size", "world"), [(1, 1), (3, 1), (2, 2), (4, 3)])
def test_sums_do_not_depend_on_micro_batches_or_ranks(tmp_path: Path, size: int, world: int) -> None:
    shards = open_shards(write_token_shards(tmp_path, num_documents=3, document_tokens=37), "validation")
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    model = make_model(MODEL)
    whole = sums_of(model, data, data.ids_BT, data.targets_BT)
    shares = [micro_batches(data, size, Ranks(rank, world, CPU)) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    sums = sum(sums_of(model, data, *pair) for share in shares for pair in share)
    assert isinstance(sums, torch.Tensor)
    torch.testing.assert_close(sums, whole, rtol=1e-6, atol=0)


def test_a_uniform_model_needs_the_bits_of_a_uniform_code(tmp_path: Path) -> None:
    shards = open_shards(write_token_shards(tmp_path, num_documents=3, document_tokens=37), "validation")
    data = read_validation_set(shards, 16, 10_000, bytes_table())
    model = make_model(MODEL)
    torch.nn.init.zeros_(model.embedding.weight)
    found = result(sums_of(model, data, data.ids_BT, data.targets_BT))
    targets = shards.read(1, shards.num_tokens)
    assert math.isclose(found.val_loss, math.log(VOCAB_SIZE), rel_tol=1e-6)
    bits = math.log2(VOCAB_SIZE) * int((targets != 0).sum()) / int(bytes_table()[targets].sum())
    assert math.isclose(found.val_bpb, bits, rel_tol=1e-6)
