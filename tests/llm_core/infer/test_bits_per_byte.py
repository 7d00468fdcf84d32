"""Every token of a document is scored once, from the document alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.infer.bits_per_byte import plan_windows, score_documents
from tests.support.engine.small_model import make_model, random_ids

DOCUMENTS = [np.array(random_ids(n, seed=n)) for n in (5, 1, 40, 17, 23)]
START = 0


def naive_bits(
    model: torch.nn.Module, tokens: np.ndarray, window: int, context: int
) -> list[float]:
    """One forward pass per token over exactly the context that the window policy promises it."""
    sequence, bits = [START, *tokens.tolist()], []
    begin, end = 0, min(window, len(tokens))
    for place in range(len(tokens)):
        if place == end:
            begin, end = end - context, min(end - context + window, len(tokens))
        with torch.no_grad():
            logits = model(torch.tensor([sequence[begin : place + 1]]))[0, -1].double()
        bits.append(-float(torch.log_softmax(logits, 0)[sequence[place + 1]]) / math.log(2))
    return bits


@pytest.mark.parametrize(("window", "context"), [(64, 32), (16, 8), (7, 6), (10, 0)])
def test_bits_are_those_of_one_pass_per_token(window: int, context: int) -> None:
    model = make_model()
    for got, tokens in zip(
        score_documents(model, DOCUMENTS, START, window, context, 50), DOCUMENTS, strict=True
    ):
        assert got == pytest.approx(naive_bits(model, tokens, window, context), abs=1e-9)


def test_neighbours_and_batch_size_do_not_change_the_bits() -> None:
    model = make_model()
    together = score_documents(model, DOCUMENTS, START, 16, 8, 1000)
    for batch_tokens in (1, 33):
        for one, other in zip(
            together, score_documents(model, DOCUMENTS, START, 16, 8, batch_tokens), strict=True
        ):
            assert one == pytest.approx(other, abs=1e-10)
    for bits, tokens in zip(together, DOCUMENTS, strict=True):
        assert bits == pytest.approx(
            score_documents(model, [tokens], START, 16, 8, 1000)[0], abs=1e-10
        )


def test_uniform_model_needs_log2_of_the_vocabulary_per_token_in_double_precision() -> None:
    model = make_model(dtype=torch.float32, tied=False)
    with torch.no_grad():
        model.head.weight.zero_()
    for bits, tokens in zip(
        score_documents(model, DOCUMENTS, START, 16, 8, 50), DOCUMENTS, strict=True
    ):
        assert bits == pytest.approx(np.full(len(tokens), math.log2(61)), abs=1e-14)


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20), st.data())
def test_every_token_is_scored_once_with_the_promised_context(
    sizes: list[int], window: int, data: st.DataObject
) -> None:
    context = data.draw(st.integers(0, window - 1))
    seen = [np.zeros(size, int) for size in sizes]
    for w in plan_windows(sizes, window, context):
        assert 0 < w.end - w.begin <= window
        assert w.begin <= w.score_from < w.end
        assert w.score_from - w.begin == (0 if w.begin == 0 else context)
        seen[w.document][w.score_from : w.end] += 1
    assert all((counts == 1).all() for counts in seen)


@pytest.mark.parametrize("context", [-1, 8, 9])
def test_context_must_leave_something_to_score(context: int) -> None:
    with pytest.raises(ConfigError, match="context_tokens"):
        plan_windows([3], 8, context)


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20))
def test_disjoint_windows_are_those_of_the_harness(sizes: list[int], window: int) -> None:
    """`lm_eval.utils.get_rolling_token_windows` with a context of 1, made disjoint."""
    planned = plan_windows(sizes, window, 0, "disjoint")
    for document, size in enumerate(sizes):
        expected, done = [], 0
        while done < size:
            end = done + min(size - done, window)
            expected.append((max(0, end - window), end, done))
            done = end
        assert expected == [
            (w.begin, w.end, w.score_from) for w in planned if w.document == document
        ]


def test_whole_documents_are_one_window_or_an_error() -> None:
    assert [(w.begin, w.end) for w in plan_windows([8, 3], 8, 4, "whole")] == [(0, 8), (0, 3)]
    with pytest.raises(ConfigError, match=r"one\s+has 9 tokens; set max_document_tokens=8"):
        plan_windows([8, 9], 8, 4, "whole")


def test_overlap_lowers_bits_of_later_tokens_alone() -> None:
    """The three policies agree within the first window."""
    model = make_model()
    tokens = [np.array(random_ids(40, seed=9))]
    by_policy = [
        score_documents(model, tokens, START, window, 8, 100, policy)[0]
        for window, policy in ((16, "overlapping"), (16, "disjoint"), (40, "whole"))
    ]
    for bits in by_policy[1:]:
        assert bits[:16] == pytest.approx(by_policy[0][:16], abs=1e-10)
        assert bits[16:24] != pytest.approx(by_policy[0][16:24], abs=1e-10)
