"""A continuation is scored as by one full pass per token, however it is batched."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_core.infer.cache import branches
from llm_core.infer.score_plan import Continuation, plan
from llm_core.infer.scoring import score_continuations
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids

MODEL = make_model()
WINDOWED = make_model(window=7)
CLOSE = 1e-10
"""Nats; rounding in float64 depends on shapes."""


def naive(model: Transformer, each: Continuation) -> tuple[list[float], bool]:
    """One forward pass over the whole context for each scored token."""
    scores, greedy = [], True
    for place in range(each.begin, len(each.ids)):
        with torch.no_grad():
            logits = model(torch.tensor([each.ids[:place]]))[0, -1].double()
        scores.append(float(torch.log_softmax(logits, 0)[each.ids[place]]))
        greedy &= int(logits.argmax()) == each.ids[place]
    return scores, greedy


IDS = st.lists(st.integers(0, 60), min_size=1, max_size=6).map(tuple)
CONTEXTS = st.lists(st.integers(0, 60), min_size=1, max_size=24).map(tuple)


@st.composite
def groups(draw: st.DrawFn) -> list[list[Continuation]]:
    """Questions with answers, after shots that most of them share; a merged border makes an answer
    reach back."""
    found = []
    shots = tuple(random_ids(draw(st.sampled_from([0, 5, 20, 30])), seed=7))
    for question in draw(st.lists(CONTEXTS, min_size=1, max_size=4)):
        group = []
        context = shots + question if draw(st.integers(0, 3)) else question
        for answer in draw(st.lists(IDS, min_size=1, max_size=4)):
            back = draw(st.integers(0, min(2, len(context) - 1)))
            kept = context[: len(context) - back]
            group.append(Continuation(kept + answer, len(kept)))
        found.append(group)
    return found


@pytest.mark.parametrize("model", [MODEL, WINDOWED], ids=["whole", "windowed"])
@settings(max_examples=15, deadline=None)
@given(groups(), st.integers(1, 300))
@example([[Continuation((1, 2, 3), 2), Continuation((1, 2, 3, 4), 2)]], 300)  # one begins another
def test_shared_tokens_score_as_one_pass_per_token(
    model: Transformer, questions: list[list[Continuation]], batch_tokens: int
) -> None:
    forked = score_continuations(model, questions, batch_tokens)
    plain = score_continuations(model, questions, batch_tokens, shares_context=False)
    for group, shared, alone in zip(questions, forked, plain, strict=True):
        for each, one, other in zip(group, shared, alone, strict=True):
            expected, greedy = naive(model, each)
            assert one.logprobs == pytest.approx(expected, abs=CLOSE)
            assert other.logprobs == pytest.approx(expected, abs=CLOSE)
            assert one.is_greedy == other.is_greedy == greedy


def test_order_of_groups_and_batch_size_do_not_change_scores() -> None:
    questions = [
        [Continuation((*random_ids(n, seed=n), *random_ids(3, seed=k)), n) for k in range(4)]
        for n in (5, 30, 1, 17, 30)
    ]
    expected = score_continuations(MODEL, questions, 10_000)
    for batch_tokens in (1, 90, 400):
        backwards = score_continuations(MODEL, questions[::-1], batch_tokens)[::-1]
        for mine, theirs in zip(expected, backwards, strict=True):
            for one, other in zip(mine, theirs, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)


def test_masks_of_a_part_of_the_queries_give_the_same_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shots = tuple(random_ids(20, seed=9))
    questions = [
        [Continuation((*shots, n, *random_ids(4, seed=k)), 21) for k in range(3)] for n in range(3)
    ]
    expected = score_continuations(MODEL, questions, 100)
    monkeypatch.setattr(branches, "MASK_NUMBERS", 500)
    for mine, theirs in zip(score_continuations(MODEL, questions, 100), expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)


def test_what_questions_share_is_computed_once() -> None:
    """Shots, then the context of each question, then what answers have of their own."""
    shots = tuple(random_ids(40, seed=1))
    questions = [
        [Continuation((*shots, n, n + 1, k, k, k), 42) for k in (50, 51, 52)] for n in range(20)
    ]
    batches = plan(questions, 90, shares_context=True)
    assert {batch.prefix for batch in batches} == {shots}
    # Two tokens of its own context, and two of each answer: the last one is never read.
    assert [row.num_tokens - 40 for batch in batches for row in batch.rows] == [8] * 20
    assert [len(batch.rows) for batch in batches] == [11, 9]
    other = [[Continuation((*random_ids(40, seed=5), 1, 2), 41)]]
    assert {len(batch.prefix) for batch in plan(questions + other, 90, True)} == {0, 40}
    assert {len(batch.prefix) for batch in plan(questions, 90, False)} == {0}


def test_equal_answers_have_equal_scores_to_the_last_bit() -> None:
    context = tuple(random_ids(9, seed=0))
    answers = [(1, 2), (1, 2), (1, 2, 3), (1, 2)]  # and one is a prefix of another
    group = [Continuation(context + answer, 9) for answer in answers]
    scores = [
        float(each.logprobs.sum())
        for each in score_continuations(make_model(dtype=torch.float32), [group], 64)[0]
    ]
    assert scores[0] == scores[1] == scores[3] != scores[2]


def test_answers_as_long_as_the_model_reads_are_scored() -> None:
    longest = MODEL.config.max_seq_len
    ids = tuple(random_ids(longest + 1, seed=3))
    group = [Continuation(ids, 1), Continuation(ids[:40], 39), Continuation(ids, longest)]
    for each, scores in zip(group, score_continuations(MODEL, [group], 100)[0], strict=True):
        assert scores.logprobs == pytest.approx(naive(MODEL, each)[0], abs=CLOSE)


def test_padding_behind_short_answers_needs_no_position() -> None:
    """A model with learned positions has none beyond max_seq_len."""
    shape = {"dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "ffn_dim": 16}
    biases = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
    parts = {"norm": "layer", "ffn": "gelu", "positions": "learned"}
    config = ModelConfig(vocab_size=61, max_seq_len=16, **shape, **biases, **parts)
    model = Transformer(config).double()
    init_weights(model, seed=0)
    long, short = tuple(random_ids(16, seed=1)), tuple(random_ids(8, seed=2))
    questions = [
        [Continuation((*long[:14], n, n), 14) for n in (1, 2)],
        [Continuation((*short[:2], n, *short[:6]), 3) for n in (1, 2)],
    ]
    for group, scored in zip(questions, score_continuations(model, questions, 1000), strict=True):
        for each, scores in zip(group, scored, strict=True):
            assert scores.logprobs == pytest.approx(naive(model, each)[0], abs=CLOSE)


def test_uniform_model_gives_every_token_the_same_probability() -> None:
    model = make_model(dtype=torch.float32, tied=False)
    with torch.no_grad():
        model.head.weight.zero_()
    scores = score_continuations(model, [[Continuation((3, 4, 5, 6), 1)]], 10)
    assert scores[0][0].logprobs == pytest.approx(np.full(3, -math.log(61)), abs=1e-14)


def test_nothing_to_score_gives_nothing() -> None:
    assert score_continuations(MODEL, [], 10) == []
    assert score_continuations(MODEL, [[]], 10) == [[]]
