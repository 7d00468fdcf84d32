"""Counts of a suite follow from its rows, and so does what it can tell apart."""

from typing import Any

import numpy as np
import pytest

from tasks.corpus.statistics import detectable_difference
from tasks.evaluation.suite_results import figures


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"item": str(number), "cluster": str(number // 2), "is_truncated": False, **values}


def test_choices_are_counted_where_one_of_them_is_merged_or_the_prompt_is_cut() -> None:
    rights = [True, True, False, True, False, False]
    rows = []
    for number, is_right in enumerate(rights):
        lengths = {"unconditional": -1.0, "tokens": 1, "chars": 1, "bytes": 1, "is_greedy": False}
        choices = [
            {"logprob": -1.0, "is_merged": False} | lengths,
            {"logprob": -2.0 if is_right else -0.5, "is_merged": number == 1} | lengths,
        ]
        rows.append(row(number, label=0, choices=choices, is_truncated=number in (0, 4)))
    found = figures(rows, "choices", ["acc"], "acc", "en", 200)
    assert (found["items"], found["clusters"], found["truncated"]) == (6, 3, 2)
    assert found["merged_frac"] == pytest.approx(1 / 6)
    clusters = [each["cluster"] for each in rows]
    expected = detectable_difference(np.array(rights, float), clusters)
    assert found["detectable_difference"] == expected
    assert expected != detectable_difference(np.array(rights, float))


def test_an_answer_has_the_score_of_its_best_reference_and_its_faults_are_counted() -> None:
    answers = ["red fox", "", "one two three four " * 6, "blue"]
    rows = [
        row(n, answer=answer, references=["nothing", "red fox"], is_cut_off=n == 2)
        for n, answer in enumerate(answers)
    ]
    found = figures(rows, "generation", ["exact_match", "chrf"], "exact_match", "en", 200)
    assert found["metrics"]["exact_match"]["value"] == 0.25
    shares = [found[f"{name}_frac"] for name in ("empty", "cut_off", "repetitive")]
    assert shares == [0.25, 0.25, 0.25]
    assert found["metrics"]["chrf"]["low"] is not None
    assert found["truncated"] == 0
