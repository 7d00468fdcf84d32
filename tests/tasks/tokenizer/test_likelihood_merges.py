"""WordPiece by likelihood merges the pairs that the published score names."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.likelihood_merges import join, learn_merges, split_words
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.sample_documents import sample_texts, write_documents

MARK = "→"


def merges_by_definition(
    words: dict[tuple[str, ...], int], num_merges: int, min_count: int
) -> list[str]:
    """Everything is counted again for each merge, in exact fractions."""
    current = [(list(word), times) for word, times in words.items()]
    known = {piece for word in words for piece in word}
    learnt: list[str] = []
    while len(learnt) < num_merges:
        pieces, pairs = Counter[str](), Counter[tuple[str, str]]()
        for word, times in current:
            for piece in word:
                pieces[piece] += times
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        frequent = {pair: count for pair, count in pairs.items() if count >= min_count}
        if not frequent:
            break
        scores = {
            pair: Fraction(count, pieces[pair[0]] * pieces[pair[1]])
            for pair, count in frequent.items()
        }
        pair = min(frequent, key=lambda pair: (-scores[pair], -frequent[pair], pair))
        merged = pair[0] + pair[1].removeprefix(MARK)
        current = [(join(word, pair, merged), times) for word, times in current]
        if merged not in known:
            known.add(merged)
            learnt.append(merged)
    return learnt


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 30), max_size=12),
    st.integers(1, 3),
)
def test_merges_are_those_of_the_definition(words: dict[str, int], min_count: int) -> None:
    split = split_words(Counter(words), MARK)
    expected = merges_by_definition(split, 40, min_count)
    assert learn_merges(split, MARK, 40, min_count) == expected


def test_merges_of_real_text_are_those_of_the_definition() -> None:
    split = split_words(Counter(" ".join(sample_texts(20, 600)).split()), MARK)
    assert learn_merges(split, MARK, 60) == merges_by_definition(split, 60, 2)


def test_pieces_that_only_occur_together_come_before_frequent_pairs() -> None:
    split = split_words(Counter({"th": 50, "te": 50, "hh": 50, "qu": 3}), MARK)
    assert learn_merges(split, MARK, 1) == ["qu"]


def test_a_tokenizer_by_likelihood_round_trips_and_has_other_pieces(tmp_path: Path) -> None:
    documents = write_documents(tmp_path, sample_texts(40, 800))
    vocabularies = []
    for score in ("count", "likelihood"):
        (out_dir := tmp_path / score).mkdir()
        config = TokenizerConfig("wordpiece", 1000, merge_score=score)  # type: ignore[arg-type]
        metrics = train_tokenizer(documents, out_dir, config).metrics
        assert (metrics["vocab_size"], metrics["round_trip_frac"]) == (1000, 1.0)
        vocabularies.append((out_dir / "tokenizer.json").read_text("utf-8"))
    assert vocabularies[0] != vocabularies[1]


def test_the_score_is_refused_for_other_kinds() -> None:
    with pytest.raises(ConfigError, match=r"merge_score \(likelihood\) is for kind=wordpiece"):
        TokenizerConfig("bpe", merge_score="likelihood")
