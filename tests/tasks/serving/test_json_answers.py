"""Answers to a JSON schema are JSON of that schema, from a model that writes at random."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.support.served_models import NAME, Served

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "好"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "x"}]


def schema(of: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": of}}


def test_every_answer_follows_the_schema(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model=NAME, messages=MESSAGES, n=6, seed=1, max_tokens=300, response_format=schema(SCHEMA)
    )
    texts = [choice.message.content or "" for choice in made.choices]
    assert len(set(texts)) > 1
    for choice, text in zip(made.choices, texts, strict=True):
        assert choice.finish_reason == "stop"
        value = json.loads(text)
        assert set(value) == {"name", "age", "tags"} and len(value["name"]) <= 8
        assert 0 <= value["age"] <= 150 and set(value["tags"]) <= {"a", "好"}


def test_json_objects_without_a_schema_are_objects(client: openai.OpenAI) -> None:
    for seed in range(2):
        made = client.chat.completions.create(
            model=NAME,
            messages=MESSAGES,
            seed=seed,
            max_tokens=60,
            response_format={"type": "json_object"},
        )
        text = made.choices[0].message.content or ""
        assert text.startswith("{")
        if made.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"response_format": schema({"type": "nothing"})}, "not a JSON schema"),
        ({"response_format": schema({"$ref": "http://elsewhere/x"})}, "not a JSON schema"),
        ({"response_format": {"type": "json_schema"}}, "has no json_schema"),
        ({"response_format": schema(SCHEMA), "extra_body": {"min_tokens": 5}}, "exclude"),
    ],
)
def test_what_is_no_schema_is_refused_and_others_are_answered(
    client: openai.OpenAI, change: Any, reason: str
) -> None:
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 2}
    with pytest.raises(openai.BadRequestError, match=reason):
        client.chat.completions.create(**(asked | change))
    assert client.chat.completions.create(**asked).choices  # type: ignore[call-overload]


@pytest.mark.parametrize("pattern", ["^a{1000000}$", "^((a{1000}){1000}){1000}$"])
def test_a_pattern_takes_a_fraction_of_a_second_of_the_engine_at_most(
    server: Served, pattern: str
) -> None:
    answers = server.service.json_answers
    assert answers.allowed({"type": "integer"})([]).any()
    assert answers.allowed({"type": "string", "pattern": pattern})([]).any()
