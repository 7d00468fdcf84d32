"""Baselines are the add-one models that counting by hand gives."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.ngrams import score_ngrams

EOS, VOCAB = 0, 6
texts = st.lists(st.integers(1, VOCAB - 1), max_size=12)


def naive_ngrams(
    train: list[list[int]], documents: list[list[int]]
) -> tuple[list[list[float]], list[list[float]]]:
    unigrams: Counter[int] = Counter()
    contexts: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    for document in train:
        previous = EOS
        for token in document:
            unigrams[token] += 1
            contexts[previous] += 1
            pairs[previous, token] += 1
            previous = token
    total = sum(unigrams.values())
    by_unigram = [
        [-math.log2((unigrams[t] + 1) / (total + VOCAB)) for t in document]
        for document in documents
    ]
    by_bigram = [
        [
            -math.log2((pairs[s, t] + 1) / (contexts[s] + VOCAB))
            for s, t in zip([EOS, *document[:-1]], document, strict=True)
        ]
        for document in documents
    ]
    return by_unigram, by_bigram


@given(
    st.lists(texts, min_size=1, max_size=6),
    st.lists(texts, min_size=1, max_size=5),
    st.integers(1, 7),
)
def test_baselines_match_counting_in_plain_python(
    train: list[list[int]], documents: list[list[int]], piece: int
) -> None:
    train, documents = [[*text, EOS] for text in train], [[*text, EOS] for text in documents]
    flat = np.array([token for document in train for token in document])
    pieces = [flat[begin : begin + piece] for begin in range(0, len(flat), piece)]
    got = score_ngrams(pieces, [np.array(document) for document in documents], VOCAB, EOS)
    for ours, theirs in zip(got, naive_ngrams(train, documents), strict=True):
        for mine, naive in zip(ours, theirs, strict=True):
            assert mine.tolist() == pytest.approx(naive, abs=1e-12)


def test_probabilities_of_every_context_sum_to_one() -> None:
    train = [np.append(np.random.default_rng(0).integers(0, VOCAB, 300), EOS)]
    unigram, _ = score_ngrams(train, [np.arange(VOCAB)], VOCAB, EOS)
    assert (2.0 ** -unigram[0]).sum() == pytest.approx(1)
    for context in range(VOCAB):
        _, bigram = score_ngrams(
            train, [np.array([context, token]) for token in range(VOCAB)], VOCAB, EOS
        )
        assert sum(2.0 ** -bits[1] for bits in bigram) == pytest.approx(1)
