"""Fits the baselines of a model: add-one smoothed unigram and bigram models of the training tokens.

unigram: p(t) = (c(t) + 1) / (N + V).   bigram: p(t | s) = (c(s, t) + 1) / (c(s) + V).

The training tokens are one stream in which every document ends with the end-of-text id; that id is
also the context of a document's first token. So contexts and tokens have the same counts. Pairs are
counted only where the scored documents ask for them: memory is that of the scored tokens, never V².
Cost: one pass over the training tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def score_ngrams(
    train_tokens: Iterable[np.ndarray],
    documents: Sequence[np.ndarray],
    vocab_size: int,
    eos_id: int,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Bits (float64) of every token of every document, by the unigram and by the bigram model.

    train_tokens: the training stream in pieces of any size.
    """
    flat = np.concatenate([np.asarray(tokens, np.int64) for tokens in documents])
    contexts = np.concatenate(
        [np.append(eos_id, np.asarray(tokens[:-1], np.int64)) for tokens in documents]
    )
    asked, place = np.unique(contexts * vocab_size + flat, return_inverse=True)
    counts, pair_counts = np.zeros(vocab_size, np.int64), np.zeros(len(asked), np.int64)
    last = np.array([eos_id], np.int64)
    for piece in train_tokens:
        # The pair across two pieces counts too.
        stream = np.concatenate([last, np.asarray(piece, np.int64)])
        last = stream[-1:]
        counts += np.bincount(stream[1:], minlength=vocab_size)
        pairs = stream[:-1] * vocab_size + stream[1:]
        found = np.minimum(np.searchsorted(asked, pairs), len(asked) - 1)
        pair_counts += np.bincount(found[asked[found] == pairs], minlength=len(asked))
    unigram = np.log2(counts.sum() + vocab_size) - np.log2(counts[flat] + 1)
    bigram = np.log2(counts[contexts] + vocab_size) - np.log2(pair_counts[place] + 1)
    borders = np.cumsum([len(tokens) for tokens in documents])[:-1]
    return np.split(unigram, borders), np.split(bigram, borders)
