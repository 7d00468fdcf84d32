"""Texts are compared as sacrebleu and rouge-score do, in scripts of every kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import corpus_bleu, corpus_chrf
from sacrebleu.metrics import CHRF

from tasks.evaluation.text_metrics import (
    ITEM_METRICS,
    corpus_metric,
    is_repetitive,
    rouge,
    token_f1,
    tokens,
)

WORDS = ["the", "cat", "sat", "on", "a", "mat.", "Dogs", "don't,", "ran\n2", "3.5"]
TEXTS = st.lists(st.sampled_from(WORDS)).map(" ".join)


@given(TEXTS, TEXTS, st.sampled_from(["rouge1", "rouge2", "rougeL", "rougeLsum"]))
def test_rouge_of_english_is_that_of_rouge_score(answer: str, right: str, name: str) -> None:
    assert rouge(answer, right, name) == RougeScorer([name]).score(right, answer)[name].fmeasure


def test_rouge_counts_every_script() -> None:
    assert rouge("请关闭灯光。", "请关闭灯光。", "rougeL") == 1
    assert 0 < rouge("我爱 PyTorch 2.0", "他恨 PyTorch 2.0", "rouge1") < 1
    assert rouge("Привет, мир", "привет мир", "rouge2") == 1
    assert rouge("abc", "", "rouge1") == 0
    # Vowel signs, tone marks and points are part of a word.
    for one, other in (("का", "की"), ("ไปมา", "ไม่มา"), ("שָׁלוֹם", "שָׁלַם"), ("ど", "と")):
        assert rouge(one, one, "rouge1") == 1 and rouge(one, other, "rouge1") < 1
    assert len(tokens("จะไปโรงเรียน")) == 11 and len(tokens("मेरी किताब")) == 2


ANSWERS = ["The cat sat on the mat.", "A dog ran home", "", "Birds sing in the early morning"]
RIGHT = ["The cat sat on a mat.", "A dog ran back home", "Fish swim", "Birds sing at early morning"]


def test_bleu_and_chrf_are_those_of_sacrebleu() -> None:
    references = [[right] for right in RIGHT]
    clusters = list("abcd")
    found = {
        name: corpus_metric(name, ANSWERS, references, clusters, "en") for name in ("bleu", "chrf")
    }
    assert found["bleu"]["value"] == corpus_bleu(ANSWERS, [RIGHT]).score
    assert found["chrf"]["value"] == corpus_chrf(ANSWERS, [RIGHT]).score
    assert "tok:13a" in found["bleu"]["signature"] and "version:" in found["bleu"]["signature"]
    for each in found.values():
        assert each["low"] < each["value"] < each["high"]
    second = [[right, answer] for right, answer in zip(RIGHT, ANSWERS, strict=True)]
    streams = [RIGHT, ANSWERS]
    assert corpus_metric("bleu", ANSWERS, second, clusters, "en")["value"] == pytest.approx(
        corpus_bleu(ANSWERS, streams).score
    )


def test_answers_and_references_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 answers need as many references .* got 1 and 2"):
        corpus_metric("bleu", ["a", "b"], [["a"]], ["x", "y"], "en")


def test_answers_of_a_cluster_are_drawn_together_for_bleu_and_chrf() -> None:
    answers, references = ANSWERS * 6, [[right] for right in RIGHT] * 6
    alone, together = (
        corpus_metric("chrf", answers, references, clusters, "en", 400)
        for clusters in ([str(n) for n in range(24)], [str(n % 4) for n in range(24)])
    )
    assert alone["value"] == together["value"]
    assert together["high"] - together["low"] > 1.5 * (alone["high"] - alone["low"])
    assert corpus_metric("chrf", answers, references, ["x"] * 24, "en")["low"] is None


def test_chinese_is_split_into_characters_for_bleu() -> None:
    text = "我们今天喝茶。"
    assert corpus_metric("bleu", [text], [[text]], ["x"], "zh")["value"] == pytest.approx(100)
    assert corpus_metric("bleu", [text], [[text]], ["x"], "en")["value"] == 0
    for language in ("ja", "zh-Hans", "ZH_tw"):
        found = corpus_metric("bleu", [text], [[text]], ["x"], language)
        assert found["value"] == pytest.approx(100)


def test_a_text_too_short_for_bleu_has_chrf_beside_it() -> None:
    """你好 has no 4-gram: BLEU is 0 although the answer is right."""
    assert corpus_metric("bleu", ["你好"], [["你好"]], ["x"], "zh")["value"] == 0
    assert corpus_metric("chrf", ["你好"], [["你好"]], ["x"], "zh")["value"] == 100


def test_published_chrf_of_a_chinese_pair_is_found() -> None:
    """sacrebleu#240: 28.1 by default, 71.7 with n-grams of two characters."""
    pair = ["请关闭灯光。"], [["请关掉灯光。"]]
    assert corpus_metric("chrf", *pair, ["x"], "zh")["value"] == pytest.approx(28.1, abs=0.05)
    assert CHRF(char_order=2).corpus_score(*pair).score == pytest.approx(71.7, abs=0.1)
    assert corpus_metric("bleu", *pair, ["x"], "zh")["value"] == pytest.approx(38.0, abs=0.1)


@pytest.mark.parametrize(
    ("metric", "answer", "right", "score"),
    [
        ("exact_match", " Paris\n", "Paris", 1),
        ("exact_match", "paris", "Paris", 0),
        ("exact_match_folded", "The  Paris!", "paris", 1),
        ("exact_match_folded", "Lyon", "Paris", 0),
        ("number", "so 3 + 4 makes 1,007.0.", "1007", 1),
        ("number", "-7", "7", 0),
        ("number", "none", "none", 0),
        ("f1", "the red fox", "red fox ran", 2 / 3),
        ("f1", "red fox", "the red fox ran", 2 / 3),
        ("f1", "我爱你", "我爱他", 2 / 3),
        ("f1", "", "", 1),
        # Lines are sentences in any order, for rougeLsum alone.
        ("rougeLsum", "c d\na b", "a b\nc d", 1),
        ("rougeL", "c d\na b", "a b\nc d", 0.5),
        ("rouge1", "b a", "a b", 1),
        ("rouge2", "b a", "a b", 0),
        ("f1", "", "x", 0),
    ],
)
def test_answers_compare_as_their_metric_says(
    metric: str, answer: str, right: str, score: float
) -> None:
    assert ITEM_METRICS[metric](answer, right) == pytest.approx(score)


@given(TEXTS, TEXTS)
def test_f1_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert 0 <= token_f1(one, other) == token_f1(other, one) <= 1
    assert token_f1(one, one) == 1


def test_repetition_is_found_and_ordinary_text_is_not() -> None:
    assert is_repetitive("and so on " * 12) and is_repetitive("哈哈" * 12)
    assert not is_repetitive("a short answer") and not is_repetitive(" ".join(RIGHT))
