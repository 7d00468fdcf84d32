"""Documents and prompts that replicas share get the results of one process, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_core.huggingface.export import export_model, load_model
from llm_core.infer.bits_per_byte import score_documents
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.generation import generate
from llm_core.infer.ranks.team import open_models
from llm_core.infer.score_plan import Continuation
from llm_core.infer.scoring import score_continuations
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Transformer, Transformer]]:
    """(in two processes, in one)."""
    model, folder = make_model(), Path(tmp_path_factory.mktemp("model"))
    export_model(model.config, model.state_dict(), folder)
    with open_models(2, "cpu", are_whole=True) as models:
        yield models.load(folder, torch.float64), load_model(folder, torch.float64)


def test_documents_are_scored_as_by_one_process(both: tuple[Transformer, Transformer]) -> None:
    documents = [np.array(random_ids(n, seed=n)) for n in (40, 3, 17, 1, 25)]
    for count in (0, 1, 5):
        found, expected = (score_documents(m, documents[:count], 0, 16, 4, 64) for m in both)
        assert len(found) == count
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == theirs.dtype and np.abs(ours - theirs).max() <= 1e-12


def test_answers_are_scored_as_by_one_process(both: tuple[Transformer, Transformer]) -> None:
    questions = [
        [Continuation((*random_ids(9, n), *random_ids(k, k)), 9) for k in (1, 2, 2)]
        for n in range(5)
    ]
    for count in (0, 1, 5):
        found, expected = (score_continuations(m, questions[:count], 64) for m in both)
        assert [len(group) for group in found] == [3] * count
        for ours, theirs in zip(found, expected, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert np.abs(one.logprobs - other.logprobs).max() <= 1e-12
                assert one.is_greedy == other.is_greedy


def test_prompts_are_answered_from_their_own_streams(
    both: tuple[Transformer, Transformer],
) -> None:
    prompts = [random_ids(n, seed=n) for n in (4, 9, 1, 6, 2)]
    params = SamplingParams(temperature=2.0, seed=3, logit_bias={5: -2.0}, stop_ids=(7,))
    for each in (params, [GREEDY, params, params, GREEDY, params]):
        found, expected = (generate(model, prompts, each, [9, 3, 0, 8, 5], [0]) for model in both)
        assert found == expected
    told: list[tuple[int, int]] = []
    generate(both[0], prompts, GREEDY, 3, on_token=lambda request, id: told.append((request, id)))
    assert len(told) == 15
