"""Compares generated texts with references: exact match, numbers, token F1, BLEU, chrF, ROUGE.

BLEU and chrF are sacrebleu's, with the tokenizer of the language of the answers and its signature
(Post 2018). ROUGE is rouge-score's F-measure with a tokenizer for all scripts: its own drops all
letters but a to z. Every metric of one answer takes the best of its references; BLEU and chrF are
those of all answers together.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import regex

from tasks.corpus.statistics import bootstrap_ends

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
NORMALISERS: Mapping[str, Callable[[str], str]] = {
    "plain": lambda text: text.strip(),
    "folded": lambda text: " ".join(
        word
        for word in text.casefold().translate(_NO_PUNCTUATION).split()
        if word not in ("a", "an", "the")
    ),
}
"""plain: without white space around. folded: as in SQuAD (Rajpurkar et al. 2016), without case,
ASCII punctuation and English articles."""

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SPACELESS = "".join(
    rf"\p{{{script}}}"
    for script in ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar")
)
"""Scripts without spaces between words: each letter is a token, with the marks on it."""
WORDS = regex.compile(
    rf"[[{_SPACELESS}]--\p{{M}}]\p{{M}}*|[[\p{{L}}\p{{N}}\p{{M}}]--[{_SPACELESS}]]+", regex.V1
)
"""Marks belong to their letters: without them, Hindi का and की would be one word."""


def tokens(text: str) -> list[str]:
    """Lower-case words, and single letters of scripts without spaces. For English those of
    rouge-score."""
    return WORDS.findall(text.lower())


def last_number(text: str) -> float | None:
    """The last number of a text, commas between digits left out."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def token_f1(answer: str, right: str) -> float:
    """Harmonic mean of precision and recall over tokens; 1 where both have none."""
    given, wanted = Counter(tokens(answer)), Counter(tokens(right))
    if not given or not wanted:
        return float(given == wanted)
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total())


def rouge(answer: str, right: str, name: str) -> float:
    """F-measure of rouge1, rouge2, rougeL or rougeLsum (Lin 2004); lines are the sentences of the
    last."""
    from rouge_score.rouge_scorer import RougeScorer

    return float(RougeScorer([name], tokenizer=_AllScripts()).score(right, answer)[name].fmeasure)


def corpus_metric(
    name: str,
    answers: Sequence[str],
    references: Sequence[Sequence[str]],
    clusters: Sequence[str],
    language: str,
    num_samples: int = 1000,
) -> dict[str, Any]:
    """BLEU or chrF of all answers: value, 95 % bootstrap interval over clusters, signature of
    sacrebleu.

    references, clusters: those of each answer. Raises ValueError where there are fewer or more.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if not len(answers) == len(references) == len(clusters):
        raise ValueError(
            f"{len(answers)} answers need as many references and clusters, got {len(references)}"
            f" and {len(clusters)}"
        )
    metric = CHRF() if name == "chrf" else BLEU(tokenize=_bleu_tokenizer(language), force=True)
    # sacrebleu takes streams: the first reference of every answer, then the second.
    most = max(map(len, references))
    # None where an answer has fewer; its annotations do not say that it takes them.
    streams: list[Any] = [
        [own[n] if n < len(own) else None for own in references] for n in range(most)
    ]
    score = metric.corpus_score(list(answers), streams)
    low, high = None, None
    names, owners = np.unique(clusters, return_inverse=True)
    if len(names) > 1:
        # Its own bootstrap fails where some resamples score exactly 0.
        of_answers = np.array(metric._extract_corpus_statistics(list(answers), streams), np.float64)
        counts = np.zeros((len(names), of_answers.shape[1]))
        np.add.at(counts, owners, of_answers)
        drawn = np.random.default_rng(0).integers(len(counts), size=(num_samples, len(counts)))
        sums = (counts[rows].sum(0).tolist() for rows in drawn)
        scores = [float(metric._compute_score_from_stats(each).score) for each in sums]
        low, high = bootstrap_ends(np.array(scores), len(names))
    signature = str(metric.get_signature())
    return {"value": score.score, "low": low, "high": high, "signature": signature}


def is_repetitive(text: str) -> bool:
    """Whether more than half of its 4-grams of tokens occurred before, in 8 or more of them."""
    words = tokens(text)
    grams = [tuple(words[n : n + 4]) for n in range(len(words) - 3)]
    return len(grams) >= 8 and len(set(grams)) < len(grams) / 2


def _same(answer: str, right: str, name: str) -> bool:
    normalise = NORMALISERS[name]
    return normalise(answer) == normalise(right)


def _bleu_tokenizer(language: str) -> str:
    """language: with or without script and country, as in zh-Hans."""
    # Its tokenizers of Japanese and Korean need dictionaries; characters need none.
    by_letter = dict.fromkeys(("ja", "ko", "th", "lo", "km", "my"), "char")
    return ({"zh": "zh"} | by_letter).get(re.split("[-_]", language.lower())[0], "13a")


class _AllScripts:
    """What rouge-score takes as a tokenizer."""

    def tokenize(self, text: str) -> list[str]:
        return tokens(text)


ITEM_METRICS: Mapping[str, Callable[[str, str], float]] = {
    "exact_match": lambda answer, right: float(_same(answer, right, "plain")),
    "exact_match_folded": lambda answer, right: float(_same(answer, right, "folded")),
    "number": lambda answer, right: float(last_number(answer) == last_number(right) is not None),
    "f1": token_f1,
    **{name: partial(rouge, name=name) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
}
"""(answer, reference) → from 0 to 1, for one item."""
CORPUS_METRICS = ("bleu", "chrf")
TEXT_METRICS = (*ITEM_METRICS, *CORPUS_METRICS)
