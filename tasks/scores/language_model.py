"""Trains and evaluates n-gram language models with modified Kneser–Ney smoothing: exact counts,
NumPy only.

Interpolated modified Kneser–Ney (Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques
for Language Modeling", section 4.1.6; the same estimate as KenLM, Heafield et al. 2013): the
highest order uses counts, lower orders the number of different words before an n-gram (counts where
it begins a text), each order three discounts from its counts of counts, and the lowest is
interpolated with a uniform distribution over the known words, the end, and one unknown word. All
words of the reference are known: unknown words are as rare as unseen ones, so foreign text and
noise are unlikely, not cheap.

Texts are rows of units (`tasks.kernels.text.chars`: words; single letters in scripts without
spaces), lower-cased, without punctuation, with a beginning and an end. Files: safetensors (`keys`
uint64, `log10_probs`, `log10_weights` float32 by node, `words` uint64 sorted unit hashes), never
pickled. Cost: one sort of the reference per order, 16 bytes per distinct n-gram. Left out: pruning,
quantisation, sentence borders inside a text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from llm_core.json_files import UnreadableJson, parse_json
from tasks.runtime.artifact import ArtifactMismatch
from tasks.scores.unit_rows import UnitRows

DISCOUNT_FALLBACK = (0.5, 1.0, 1.5)
"""Where counts of counts are too few to estimate discounts; KenLM's default fall-back."""
MAX_NODES = 2**32 - 1
ARRAYS = ("words", "keys", "log10_probs", "log10_weights")


@dataclass(frozen=True)
class NgramModel:
    """A trie of n-grams; see `tasks.kernels.models.ngram_lm` for its arrays."""

    order: int
    words: np.ndarray
    keys: np.ndarray
    log10_probs: np.ndarray
    log10_weights: np.ndarray

    @cached_property
    def slots(self) -> np.ndarray:
        from tasks.kernels.models.ngram_lm import fill_slots

        return fill_slots(self.keys, len(self.keys))

    def word_ids(self, hashes: np.ndarray) -> np.ndarray:
        """Ids of unit hashes, `UNKNOWN` where the reference has no such unit."""
        from tasks.kernels.models.ngram_lm import FIRST_WORD, UNKNOWN

        place = np.searchsorted(self.words, hashes)
        place[place == len(self.words)] = 0
        known = self.words[place] == hashes if len(self.words) else np.zeros(len(hashes), bool)
        return np.where(known, place + FIRST_WORD, UNKNOWN)

    def log10_probabilities(self, rows: UnitRows) -> np.ndarray:
        """log10 p of each row with its end, float64."""
        from tasks.kernels.models.ngram_lm import score_words

        scores = np.zeros(len(rows))
        tables = (self.slots, self.keys, self.log10_probs, self.log10_weights)
        score_words(self.word_ids(rows.units), rows.begins, self.order, *tables, scores)
        return scores

    def save(self, file: Path) -> None:
        from safetensors.numpy import save

        about = json.dumps({"kind": "ngram-model", "order": self.order})
        # One entry only: the order of several would differ from run to run.
        file.write_bytes(save({n: getattr(self, n) for n in ARRAYS}, {"textmill": about}))

    @classmethod
    def load(cls, file: Path) -> NgramModel:
        """Raises ArtifactMismatch for a file that is not such a model."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "numpy") as tensors:
                about = parse_json((tensors.metadata() or {}).get("textmill", "{}"))
                if about.get("kind") != "ngram-model":
                    raise ArtifactMismatch(
                        f"{file} is not an n-gram model; rebuild it with force=[scores]"
                    )
                return cls(int(about["order"]), *(tensors.get_tensor(name) for name in ARRAYS))
        except (SafetensorError, UnreadableJson, AttributeError) as error:
            raise ArtifactMismatch(
                f"{file} is damaged ({error}); rebuild it with force=[scores]"
            ) from error


def train_ngram_model(rows: UnitRows, order: int) -> NgramModel:
    """The model of these rows. Raises ValueError where they have no unit, or n-grams beyond 32
    bits."""
    from tasks.kernels.models.ngram_lm import BEGIN, END, FIRST_WORD, UNKNOWN

    if len(rows.units) == 0:
        raise ValueError("the reference has no words; give more text")
    words, ids = np.unique(rows.units, return_inverse=True)
    num_words = len(words) + FIRST_WORD
    tokens, starts = _framed(ids + FIRST_WORD, rows.begins, BEGIN, END)

    # Level n - 1 of each list is about n-grams. ends[i]: node of the n-gram that ends at token i, 0
    # where the text is too short.
    prefixes, last_words = [np.zeros(num_words, np.int64)], [np.arange(num_words)]
    suffixes, counts = [np.zeros(num_words, np.int64)], [np.bincount(tokens, minlength=num_words)]
    ends, first_node, begun = tokens + 1, 1, [np.arange(num_words) == BEGIN]
    position = np.arange(len(tokens)) - starts
    for n in range(2, order + 1):
        here = np.flatnonzero(position >= n - 1)
        keys = (ends[here - 1].astype(np.uint64) << np.uint64(32)) | tokens[here].astype(np.uint64)
        keys, first, inverse, count = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        first_node += len(counts[-1])
        if first_node + len(keys) > MAX_NODES:
            raise ValueError(
                "the reference has more than 2^32 distinct n-grams; lower max_reference_bytes or"
                " order"
            )
        shorter = ends[here][first]
        ends = np.zeros(len(tokens), np.int64)
        ends[here] = inverse + first_node
        prefixes.append((keys >> np.uint64(32)).astype(np.int64))
        last_words.append((keys & np.uint64(0xFFFFFFFF)).astype(np.int64))
        suffixes.append(shorter)
        counts.append(count)
        begun.append(position[here][first] == n - 1)

    node_begin = np.cumsum([1, *(len(c) for c in counts)])
    num_nodes = int(node_begin[-1])
    keys, probs, weights = np.zeros(num_nodes, np.uint64), np.ones(num_nodes), np.ones(num_nodes)
    for n in range(1, order + 1):
        level = slice(int(node_begin[n - 1]), int(node_begin[n]))
        adjusted = counts[n - 1].astype(np.float64)
        if n < order:
            different = np.bincount(suffixes[n] - level.start, minlength=len(adjusted))
            # A text's beginning has no word before it: there the count itself stands in.
            adjusted = np.where(begun[n - 1], adjusted, different)
        in_distribution = np.ones(len(adjusted), bool)
        if n == 1:
            in_distribution = last_words[0] != BEGIN
            adjusted[BEGIN] = 0
        discounts = _discounts(adjusted[in_distribution])
        discount = discounts[np.minimum(adjusted, 3).astype(np.int64)]
        prefix = prefixes[n - 1]
        totals = np.bincount(prefix, adjusted, num_nodes)
        left = np.bincount(prefix, discount, num_nodes)
        seen = totals > 0
        weights[seen] = left[seen] / totals[seen]
        own = (adjusted - discount) / np.where(totals > 0, totals, 1)[prefix]
        shorter_probs = probs[suffixes[n - 1]] if n > 1 else 1 / (num_words - 1)
        probs[level] = own + weights[prefix] * shorter_probs
        keys[level] = (prefix.astype(np.uint64) << np.uint64(32)) | last_words[n - 1].astype(
            np.uint64
        )
    assert UNKNOWN == 0 and keys[0] == 0
    return NgramModel(
        order, words, keys, np.log10(probs).astype(np.float32), np.log10(weights).astype(np.float32)
    )


def _framed(
    ids: np.ndarray, places: np.ndarray, begin: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids with a beginning and an end around each text, and for each token where its text
    begins."""
    num_texts = len(places) - 1
    text = np.repeat(np.arange(num_texts), np.diff(places))
    tokens = np.empty(len(ids) + 2 * num_texts, np.int64)
    tokens[np.arange(len(ids)) + 2 * text + 1] = ids
    first = places[:-1] + 2 * np.arange(num_texts)
    tokens[first] = begin
    tokens[places[1:] + 2 * np.arange(num_texts) + 1] = end
    return tokens, np.repeat(first, np.diff(places) + 2)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """What is taken from n-grams of count 0, 1, 2, and 3 or more (Chen and Goodman 1998, equation
    26)."""
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    found = DISCOUNT_FALLBACK
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        estimate = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 < d <= k for k, d in enumerate(estimate, 1)):
            found = estimate
    return np.array([0.0, *found])
