"""Items of a suite are compared whole where they are short; a file that is not one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError, build
from tasks.contamination.config import ContaminationConfig
from tasks.runtime.keys import canonical_json, key_config
from tests.support.data.contaminated import (
    ANSWER,
    CLEAN,
    QUESTION,
    WORDS,
    find_in_parts,
    suite_item,
)


def test_a_short_item_is_looked_for_as_a_whole_and_a_tiny_one_not_at_all(tmp_path: Path) -> None:
    short, tiny = "What does the fox say in the old song?", "2 + 2 ="
    texts = [
        f"{CLEAN} {short} {CLEAN}",
        f"{CLEAN} what does the fox say in the new song",
        f"{CLEAN} 2 + 2 = 4",
    ]
    artifact, rows, _ = find_in_parts(
        tmp_path, [texts], [suite_item(short), suite_item(tiny, name="q2")]
    )
    assert [row["kept"] for row in rows] == [False, True, True]
    assert artifact.metrics["suites"]["rivers"]["too_short"] == 1


def test_the_answer_counts_with_its_question_and_never_alone(tmp_path: Path) -> None:
    short = "Which river is it?"
    texts = [f"{short}\n{ANSWER}", ANSWER, f"{short} {CLEAN}", f"{QUESTION} Answer: {ANSWER}"]
    _, rows, hits = find_in_parts(
        tmp_path, [texts], [suite_item(short, ANSWER), suite_item(QUESTION, ANSWER, "q2")]
    )
    assert [row["kept"] for row in rows] == [False, False, True, False]
    by_document = {(hit["item"], int(hit["document"], 16)): hit["with_answer"] for hit in hits}
    # The answer's own words reach 13 units; an answer shorter than that needs words of its
    # question.
    assert by_document[("q1", 0)] and by_document[("q2", 3)]
    brief = "the Danube of course"
    assert [
        r["kept"]
        for r in find_in_parts(
            tmp_path, [[brief, f"{QUESTION} {brief}"]], [suite_item(QUESTION, brief)]
        )[1]
    ] == [True, False]
    _, rows, hits = find_in_parts(
        tmp_path, [[f"{short} {brief}", short, brief]], [suite_item(short, brief)]
    )
    assert [row["kept"] for row in rows] == [False, True, True] and hits[0]["with_answer"]


def test_answers_may_be_lists_or_numbers_of_choices(tmp_path: Path) -> None:
    short = "Which river is it?"
    items = [
        {
            "id": 1,
            "question": short,
            "answer": ["the river Rhine of all rivers", "the river Danube of all rivers"],
            "choices": None,
        },
        {
            "id": 2,
            "question": "Which lake is it?",
            "answer": 1,
            "choices": ["lake of Como in Italy", "lake of Constance it is"],
        },
    ]
    texts = [
        f"{short} The river Danube of all rivers",
        "Which lake is it? Lake of Constance it is!",
        "Which lake is it? Lake of Como in Italy",
    ]
    _, rows, hits = find_in_parts(tmp_path, [texts], items, suite={"choices": "choices"})
    assert [row["kept"] for row in rows] == [False, False, True]
    assert [hit["item"] for hit in hits] == ["1", "2"]


def test_a_phrase_of_many_documents_is_none_of_the_suite_but_a_whole_item_always_is(
    tmp_path: Path,
) -> None:
    phrase = " ".join(WORDS[:13])
    question = f"{phrase} {' '.join(WORDS[50:70])}"
    texts = [f"{CLEAN} {phrase} tail {i}" for i in range(11)]
    artifact, rows, _ = find_in_parts(tmp_path, [texts[:5], texts[5:]], [suite_item(question)])
    assert all(row["kept"] for row in rows) and artifact.metrics["ignored_ngrams"] == 1
    assert not any(
        row["kept"]
        for row in find_in_parts(tmp_path, [[CLEAN, *texts[:10]]], [suite_item(question)])[1][1:]
    )
    copies = [CLEAN, *(f"{question} {i}" for i in range(12))]
    assert [
        row["kept"] for row in find_in_parts(tmp_path, [copies], [suite_item(question)])[1]
    ] == [True] + [False] * 12
    assert not any(
        r["kept"]
        for r in find_in_parts(
            tmp_path, [[CLEAN, *texts]], [suite_item(question)], max_ngram_documents=None
        )[1][1:]
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ngram_units": 1}, "ngram_units .1."),
        ({"min_units": 14}, "min_units .14. must be from 1 to ngram_units .13."),
        ({"max_ngram_documents": 0}, "max_ngram_documents .0."),
        ({"min_item_frac": 2}, "min_item_frac .2"),
        ({"action": "delete"}, "not a choice"),
        ({"suites": {"a": {"path": "x", "choices": "c"}}}, "needs answer"),
        ({"suites": {"a": {}}}, "suites.a.path has no value"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(ContaminationConfig, values)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no item"),
        (
            [{"prompt": "x"}],
            r"suites.rivers.question \(question\) is not text in record 1 .*its columns are prompt",
        ),
        ([{"question": 5}], "is not text in record 1"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(
    lines: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        find_in_parts(tmp_path, [[CLEAN]], lines)
    assert "\n" not in str(refused.value)


def test_the_place_of_a_suite_is_not_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    config = build(ContaminationConfig, {"suites": {"a": {"path": str(tmp_path / "a.jsonl")}}})
    assert str(tmp_path) not in canonical_json(key_config(config))
    assert config.input_files() == {"a": tmp_path / "a.jsonl"}
