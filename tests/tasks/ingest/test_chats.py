"""Records of the three common forms become chats whose spans give every turn back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.turns import TURNS_COLUMN, join_turns, messages_of
from tests.support.data.make_artifacts import ingest_files, read_documents, write_jsonl

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Grüße?"},
    {"role": "assistant", "content": "Hallo 👩‍🚀!"},
]
OPENAI = {"id": "1", "messages": MESSAGES, "more": 1}
SHAREGPT = {
    "id": "2",
    "system": "Be short.",
    "conversations": [
        {"from": "human", "value": "Grüße?"},
        {"from": "gpt", "value": "Hallo 👩‍🚀!"},
    ],
}
ALPACA = {"id": "3", "instruction": "Add.", "input": "1 2", "output": "3"}


def ingest_chats(tmp_path: Path, *records: dict[str, Any], **config: Any) -> Any:
    path = write_jsonl(tmp_path / "in" / "a.jsonl", records)
    return ingest_files(tmp_path, "out", [path], text_kind="chat", max_bad_frac=1.0, **config)


def chats(artifact: Any) -> list[list[tuple[str, str]]]:
    return [
        [(m["role"], m["content"]) for m in messages_of(row["text"], row[TURNS_COLUMN])]
        for row in read_documents(artifact)
    ]


def test_three_forms_become_turns(tmp_path: Path) -> None:
    made = ingest_chats(tmp_path, OPENAI, SHAREGPT, ALPACA)
    talk = [("system", "Be short."), ("user", "Grüße?"), ("assistant", "Hallo 👩‍🚀!")]
    assert chats(made) == [talk, talk, [("user", "Add.\n\n1 2"), ("assistant", "3")]]
    first, second, _ = read_documents(made)
    assert first["text"] == second["text"] == "Be short.\n\nGrüße?\n\nHallo 👩‍🚀!"
    assert (first["metadata"], second["metadata"]) == ('{"more":1}', "{}")
    assert [row["source_id"] for row in read_documents(made)] == ["1", "2", "3"]


def test_chats_in_tables_are_those_in_lines(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist([OPENAI]), tmp_path / "in" / "a.parquet")
    made = ingest_files(tmp_path, "out", [tmp_path / "in"], text_kind="chat")
    assert chats(made) == chats(ingest_chats(tmp_path / "lines", OPENAI))


def turns(*contents: Any, roles: str = "ua") -> dict[str, Any]:
    names = {"u": "user", "a": "assistant", "s": "system"}
    cycle = (names[roles[n % len(roles)]] for n in range(len(contents)))
    return {"messages": [{"role": r, "content": c} for r, c in zip(cycle, contents, strict=True)]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (turns("q", "\u200b "), "BLANK_TURN"),
        (turns(), "EMPTY"),
        (turns(" ", ""), "EMPTY"),
        (turns("q"), "NO_ANSWER"),
        (turns("a", "q", roles="au"), "NO_PROMPT"),
        (turns("q", [{"type": "image_url"}]), "NOT_TEXT"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "TOOL_CALLS"),
        (
            {"messages": [*MESSAGES, {"role": "user", "content": "q", "function_call": {"f": 1}}]},
            "TOOL_CALLS",
        ),
    ],
)
def test_what_is_no_chat_to_learn_from_is_dropped_by_reason(
    tmp_path: Path, record: dict[str, Any], reason: str
) -> None:
    made = ingest_chats(tmp_path, record, OPENAI)
    assert {k: v for k, v in made.counters["dropped"].items() if v} == {reason: 1}
    assert made.counters["read"] == 2 and made.counters["kept"] == 1


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"text": "plain"}, "wrong type: no list of turns in text, messages, conversations"),
        ({"messages": ["q"]}, "wrong type: turn 0 is text, not an object"),
        ({"messages": [{"role": "narrator", "content": "q"}]}, "unknown role: turn 0"),
        ({"messages": [{"role": "user", "content": 1}]}, "wrong type: turn 0 is a number"),
        ({"instruction": 1, "output": "x"}, "wrong type: column instruction is a number"),
    ],
)
def test_a_record_of_another_form_is_quarantined(
    tmp_path: Path, record: dict[str, Any], error: str
) -> None:
    made = ingest_chats(tmp_path, record, OPENAI)
    assert made.counters["quarantined"] == 1
    assert error in made.file("quarantine.jsonl").read_text()


def test_parts_of_text_are_one_turn_and_a_silent_system_is_none(tmp_path: Path) -> None:
    record = turns("", [{"type": "text", "text": "q"}, {"type": "text", "text": "!"}], "a")
    for message, role in zip(record["messages"], ("system", "user", "assistant"), strict=True):
        message["role"] = role
    assert chats(ingest_chats(tmp_path, record)) == [[("user", "q!"), ("assistant", "a")]]


def test_turns_are_repaired_before_they_get_their_places(tmp_path: Path) -> None:
    record = turns("\ufeffq\0\r\nr\r", "a\r\nb")
    made = ingest_chats(tmp_path, record)
    assert chats(made) == [[("user", "q\nr"), ("assistant", "a\nb")]]
    assert {k for k, v in made.counters["repaired"].items() if v} == {"NUL", "BOM", "CRLF"}


def test_plain_documents_have_no_column_of_turns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "plain", "messages": MESSAGES}])
    (row,) = read_documents(ingest_files(tmp_path, "out", [path]))
    assert TURNS_COLUMN not in row


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(min_size=1)), min_size=1))
def test_spans_give_back_any_turns(some: list[tuple[str, str]]) -> None:
    some = [(role, text.encode("utf-8", "replace").decode()) for role, text in some]
    found = messages_of(*join_turns(some))
    assert [(m["role"], m["content"]) for m in found] == some


ASK, GOOD, BAD = (
    {"role": role, "content": content}
    for role, content in (("user", "q"), ("assistant", "good"), ("assistant", "bad"))
)
PAIR = [("user", "q"), ("chosen", "good"), ("rejected", "bad")]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": "q", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
    ],
)
def test_every_form_of_a_pair_is_one_document_with_both_answers(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    made = ingest_chats(tmp_path, {**record, "score": 1})
    assert chats(made) == [PAIR]
    assert [row["metadata"] for row in read_documents(made)] == ['{"score":1}']


def test_turns_that_both_answers_follow_are_the_prompt(tmp_path: Path) -> None:
    before = [*MESSAGES, ASK]
    made = ingest_chats(tmp_path, {"chosen": [*before, GOOD], "rejected": [*before, BAD]})
    assert chats(made) == [[(m["role"], m["content"]) for m in MESSAGES] + PAIR]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "SAME_ANSWERS"),
        ({"chosen": [ASK, GOOD], "rejected": [GOOD, ASK, BAD]}, "UNPAIRED"),
        ({"chosen": [ASK, GOOD, ASK, GOOD], "rejected": [ASK, BAD, ASK, GOOD]}, "UNPAIRED"),
        ({"chosen": [], "rejected": [BAD]}, "UNPAIRED"),
        ({"chosen": "a", "rejected": "b"}, "NO_PROMPT"),
        ({"prompt": "q", "chosen": "a", "rejected": " "}, "BLANK_TURN"),
    ],
)
def test_what_is_no_pair_to_learn_from_is_dropped_by_reason(
    tmp_path: Path, record: dict[str, Any], reason: str
) -> None:
    made = ingest_chats(tmp_path, record, OPENAI)
    assert {k: v for k, v in made.counters["dropped"].items() if v} == {reason: 1}
