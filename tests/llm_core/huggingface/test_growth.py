"""A loaded model gets rows for new ids, and says of the old ones what it said before."""

import dataclasses
from pathlib import Path

import pytest
import torch

from llm_core.huggingface.export import export_model, load_model, read_weights
from llm_core.huggingface.growth import NOISE, read_grown_weights
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from tests.support.engine.small_runs import MODEL, VOCAB_SIZE
from tests.support.engine.uneven_model import make_model

SIZE = VOCAB_SIZE + 5
FAMILIES = {
    "tied": MODEL,
    "untied": dataclasses.replace(MODEL, tied_embeddings=False),
}


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return FAMILIES[request.param]


def test_old_ids_keep_their_rows_and_logits(config: ModelConfig, tmp_path: Path) -> None:
    export_model(config, make_model(config, 3).state_dict(), tmp_path)
    grown = dataclasses.replace(config, vocab_size=SIZE)
    after = Transformer(grown).double()
    weights = read_grown_weights(tmp_path, grown)
    after.load_state_dict(dict(weights))
    before = load_model(tmp_path, torch.float64)
    ids_BS = torch.arange(VOCAB_SIZE).view(3, -1)
    old_BSV, new_BSV = before(ids_BS), after(ids_BS)
    torch.testing.assert_close(new_BSV[..., :VOCAB_SIZE], old_BSV, rtol=1e-12, atol=1e-12)
    assert new_BSV.shape[-1] == SIZE
    for name, old in read_weights(tmp_path, config).items():
        assert torch.equal(weights[name][: len(old)], old)


def test_new_rows_are_the_mean_with_a_little_noise(config: ModelConfig, tmp_path: Path) -> None:
    export_model(config, make_model(config, 3).state_dict(), tmp_path)
    weights = read_grown_weights(tmp_path, dataclasses.replace(config, vocab_size=SIZE))
    for name in ("embedding.weight", "head.weight"):
        old, new = weights[name].split([VOCAB_SIZE, SIZE - VOCAB_SIZE])
        distance = (new - old.mean(0)) / old.std(0) / NOISE
        assert 0.8 < distance.std() < 1.2
        assert torch.equal(new, weights[name][VOCAB_SIZE:])  # each time the same


def test_a_model_with_all_ids_is_read_as_it_is(tmp_path: Path) -> None:
    export_model(MODEL, make_model(MODEL, 3).state_dict(), tmp_path)
    there, weights = read_weights(tmp_path, MODEL), read_grown_weights(tmp_path, MODEL)
    assert all(torch.equal(weights[name], there[name]) for name in there)
