"""Invented telephone numbers in sentences are told from what looks like them."""

from __future__ import annotations

from benchmarks.data import phone_holdout, phone_templates
from benchmarks.data.phone_sentences import SETS, measure, sentences


def test_recall_and_precision_hold_on_sentences_that_no_word_was_chosen_by() -> None:
    result, _ = measure(24, "holdout")
    assert result["holdout_recall"] >= 0.97 and result["holdout_precision"] >= 0.97  # type: ignore[operator]


def test_sets_share_no_sentence_and_come_again_as_they_were() -> None:
    for language, templates in phone_holdout.PHONES.items():
        shared = set(templates.splitlines()) & set(phone_templates.PHONES[language].splitlines())
        assert shared == set()
    for name in SETS:
        assert list(sentences(3, name)) == list(sentences(3, name))


def test_places_of_numbers_are_their_bytes() -> None:
    for _, text, start, end in sentences(5, "development"):
        if start >= 0:
            number = text.encode()[start:end].decode()
            assert sum(c.isdigit() for c in number) >= 9
