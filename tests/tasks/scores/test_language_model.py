"""The n-gram model against Kneser–Ney by its definition."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.runtime.artifact import ArtifactMismatch
from tasks.scores.language_model import NgramModel, train_ngram_model
from tasks.scores.unit_rows import UnitRows
from tests.support.data.kneser_ney import BEGIN, UNKNOWN, KneserNey
from tests.support.data.sample_documents import sample_texts

TEXTS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=9), min_size=1, max_size=12)


def rows_of(texts: list[str]) -> UnitRows:
    return UnitRows.of_texts(pa.array(texts, pa.large_string()), 1 << 30)


def model_of(texts: list[str], order: int) -> NgramModel:
    return train_ngram_model(rows_of(texts), order)


def scores_of(model: NgramModel, texts: list[str]) -> np.ndarray:
    return model.log10_probabilities(rows_of(texts))


def expected(oracle: KneserNey, words: list[str]) -> float:
    known = [word if word in oracle.vocabulary else UNKNOWN for word in words]
    row = [BEGIN, *known, "</s>"]
    return sum(math.log10(oracle.probability(tuple(row[:i]), row[i])) for i in range(1, len(row)))


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 5))
def test_probabilities_are_those_of_the_definition(
    reference: list[list[str]], others: list[list[str]], order: int
) -> None:
    if not any(reference):
        return
    oracle = KneserNey(reference, order)
    others = [*others, ["a", "unheard", "b"], []]
    found = scores_of(
        model_of([" ".join(t) for t in reference], order), [" ".join(t) for t in others]
    )
    assert found == pytest.approx([expected(oracle, text) for text in others], rel=1e-5)


@pytest.mark.parametrize("order", [2, 3])
def test_estimated_discounts_are_those_of_the_definition(order: int) -> None:
    # Enough text that counts of counts are there: the fall-back would hide a wrong estimate.
    words = [
        unit.lower()
        for unit in " ".join(sample_texts(120, 300)).split()
        if unit.isalpha() and unit.isascii()
    ]
    reference = [words[i : i + 50] for i in range(0, len(words), 50)]
    oracle = KneserNey(reference, order)
    assert oracle.discounts[1] != (0.0, 0.5, 1.0, 1.5) != oracle.discounts[2]
    texts = [words[5:25], words[100:90:-1], ["unheard"]]
    found = scores_of(
        model_of([" ".join(t) for t in reference], order), [" ".join(t) for t in texts]
    )
    assert found == pytest.approx([expected(oracle, text) for text in texts], rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.integers(1, 4))
def test_probabilities_of_what_may_follow_sum_to_one(
    reference: list[list[str]], order: int
) -> None:
    if not any(reference):
        return
    model = model_of([" ".join(t) for t in reference], order)
    vocabulary = [*"abcdef", "unheard"]
    known = [w for w in "abcdef" if any(w in text for text in reference)]
    for context in [[], ["a"], ["a", "b"], ["b", "b", "a"]]:
        # p(word | context) is what a text costs more with the word, its end left out: end costs are
        # taken off.
        sums = 10 ** log10_next(model, context, [*known, "unheard", None])
        assert sums.sum() == pytest.approx(1, abs=1e-5), (context, vocabulary)


def log10_next(model: NgramModel, context: list[str], words: list[str | None]) -> np.ndarray:
    """log10 p of each word after a context at the beginning of a text; None is the end."""
    whole = scores_of(model, [" ".join(context)])[0]
    end = log10_end(model, context)
    before = whole - end
    found = []
    for word in words:
        if word is None:
            found.append(end)
        else:
            longer = [*context, word]
            found.append(
                scores_of(model, [" ".join(longer)])[0] - log10_end(model, longer) - before
            )
    return np.array(found)


def log10_end(model: NgramModel, context: list[str]) -> float:
    """log10 p(end | context) by the trie alone, walked in Python."""
    nodes = {
        (int(key >> np.uint64(32)), int(key & np.uint64(0xFFFFFFFF))): i
        for i, key in enumerate(model.keys)
        if i
    }
    hashes = rows_of([" ".join(context)]).units
    history = [1, *model.word_ids(hashes).tolist()][-(model.order - 1) :] if model.order > 1 else []
    total = 0.0
    for start in range(len(history) + 1):
        node: int | None = 0
        for word in history[start:]:
            node = nodes.get((node, word)) if node is not None else None
        if node is None:
            continue
        if (node, 2) in nodes:
            return total + float(model.log10_probs[nodes[node, 2]])
        total += float(model.log10_weights[node])
    raise AssertionError("the end is in every model")


def test_a_text_it_has_read_is_likelier_than_its_words_in_another_order() -> None:
    text = "the river runs down to the sea and the sea does not run over"
    shuffled = " ".join(sorted(text.split()))
    model = model_of([text, "a river is long", "the sea is wide"], 3)
    likely, unlikely, foreign = scores_of(model, [text, shuffled, "xq zv " * 7])
    assert likely > unlikely > foreign


def test_scripts_without_spaces_are_read_by_the_letter() -> None:
    model = model_of(["今天天气很好我们去公园", "明天天气不好"], 3)
    rows = rows_of(["天气很好", "好很气天"])
    assert rows.begins.tolist() == [0, 4, 8]
    likely, unlikely = model.log10_probabilities(rows)
    assert likely > unlikely


def test_a_saved_model_is_the_same_and_saving_is_repeatable(tmp_path: Path) -> None:
    model = model_of(sample_texts(20, 400), 3)
    for name in ("a", "b"):
        model.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    texts = sample_texts(5, 900)
    assert (
        scores_of(NgramModel.load(tmp_path / "a"), texts).tolist()
        == scores_of(model, texts).tolist()
    )
    (tmp_path / "torn").write_bytes((tmp_path / "a").read_bytes()[:100])
    with pytest.raises(ArtifactMismatch, match="torn"):
        NgramModel.load(tmp_path / "torn")


def test_a_model_does_not_depend_on_the_order_of_its_texts() -> None:
    texts = sample_texts(8, 200)
    models = [
        model_of(list(order), 3)
        for order in itertools.islice(itertools.permutations(texts), 0, 500, 167)
    ]
    assert len({scores_of(model, texts).tobytes() for model in models}) == 1


def test_no_words_make_no_model() -> None:
    with pytest.raises(ValueError, match="has no word"):
        model_of(["", "…"], 2)
