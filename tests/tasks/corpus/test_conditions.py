"""Conditions that choose documents: functions of one row, checked before anything is read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from llm_core.config import ConfigError
from tasks.corpus.conditions import COLUMNS, check_condition, chosen_rows


def documents(**columns: list[str | None]) -> pa.Table:
    size = max(map(len, columns.values()))
    return pa.table(
        {name: pa.array(columns.get(name, [None] * size), pa.string()) for name in COLUMNS}
    )


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("source = 'wiki'", [True, False, False]),
        ("source <> 'wiki'", [False, True, False]),
        ("metadata->>'kind' in ('prose', 'verse')", [False, True, False]),
        ("metadata->'a'->>'b' = 'c' or language ilike 'EN'", [False, False, True]),
        ("language = 'en' and not starts_with(source, 'w')", [False, False, False]),
        ("coalesce(source, '') = ''", [False, False, True]),
    ],
)
def test_a_condition_chooses_rows_and_null_does_not(condition: str, chosen: list[bool]) -> None:
    check_condition("positives", condition)
    table = documents(
        source=["wiki", "web", None],
        metadata=["{}", '{"kind":"prose"}', '{"a":{"b":"d"}}'],
        language=["de", "de", "en"],
    )
    assert chosen_rows(table, condition).tolist() == chosen


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("sorce = 'wiki'", "did you mean source"),
        ("random() < 0.5", "random, which may differ"),
        ("current_date > added_at", "is not a column"),
        ("now()::text > added_at", "now, which may differ"),
        ("(select true)", "subquery"),
        ("row_number() over () < 3", "window"),
        ("count(*) > 1", "many rows"),
        ("source = ", "not a condition"),
        ("true from documents; drop table documents", "condition"),
        ("true from documents limit 1", "condition"),
        ("true from documents where true --", "one condition"),
        ("*", "star"),
        ("text in (select content from read_text('/etc/hostname'))", "subquery"),
        ("", "not a condition"),
    ],
)
def test_what_is_no_function_of_one_document_is_refused(condition: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        check_condition("scores.classifiers.good.positives", condition)
    assert str(refused.value).startswith("scores.classifiers.good.positives") and "\n" not in str(
        refused.value
    )


def test_a_condition_that_fails_on_a_row_names_the_condition_and_no_text() -> None:
    table = documents(source=["secret@example.org"], text=["secret text"])
    with pytest.raises(ConfigError, match="positives") as refused:
        chosen_rows(table, "cast(source as integer) > 3", "positives")
    assert "secret" not in str(refused.value)
