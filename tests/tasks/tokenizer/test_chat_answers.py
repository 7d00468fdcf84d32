"""Of a whole chat the assistant's tokens are known, with tags of the template and without."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from llm_core.config import ConfigError
from tasks.tokenizer.chat_template import Answers, ChatTemplate
from tests.support.chat_conversations import checked, conversation, hostile, loaded, loaded_once
from tests.support.chat_templates import CHATML, CHATML_MARKED, INSTRUCTIONS, THOUGHTS
from tests.support.data.foreign_tokenizers import FORMS, publish_tokenizer


@pytest.fixture(scope="module", params=FORMS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_tokenizer(request.param, tmp_path_factory.mktemp(request.param))


def answers_of(folder: Path, template: str, *texts: str) -> tuple[list[str], Answers]:
    """Runs of the assistant's tokens as the vocabulary spells them, and all tokens."""
    chat, tokenizer = loaded_once(folder, template)
    found = chat.encode_answers(conversation(*texts))
    borders = np.flatnonzero(np.diff(found.is_answer, prepend=False, append=False))
    runs = [found.ids[a:b] for a, b in zip(borders[::2], borders[1::2], strict=True)]
    return ["".join(map(tokenizer.name_of, run.tolist())) for run in runs], found


@pytest.mark.parametrize("texts", [["the a", "b"], [" two ", "好 é", "x\n\ny", "</s> <|im_end|"]])
def test_ids_and_answers_are_those_of_transformers(folder: Path, texts: list[str]) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        conversation(*texts),
        chat_template=CHATML_MARKED,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    _, found = answers_of(folder, CHATML_MARKED, *texts)
    num_start = len(found.ids) - len(theirs["input_ids"])
    if "</s>" not in texts[-1]:  # there a text would become a control token
        assert found.ids[num_start:].tolist() == theirs["input_ids"]
        assert found.is_answer[num_start:].tolist() == [m == 1 for m in theirs["assistant_masks"]]
    assert not found.is_answer[:num_start].any()


@checked
@given(texts=st.lists(hostile, min_size=2, max_size=4))
def test_answers_are_found_without_tags_as_with_them(folder: Path, texts: list[str]) -> None:
    (_, plain), (_, marked) = (answers_of(folder, t, *texts) for t in (CHATML, CHATML_MARKED))
    assert np.array_equal(plain.ids, marked.ids)
    assert np.array_equal(plain.is_answer, marked.is_answer)


def test_an_answer_ends_with_the_control_token_that_ends_its_turn(folder: Path) -> None:
    (first, second), _ = answers_of(folder, CHATML, "a", "b", "c", "ab")
    assert first == "b<|im_end|>" and second == "ab<|im_end|>"
    (only,), _ = answers_of(folder, INSTRUCTIONS, "a", "b")
    assert only.endswith("b</s>")


def test_a_template_that_drops_earlier_thoughts_still_shows_its_answers(folder: Path) -> None:
    texts = "a", "<think>\nab</think>b", "c", "<think>\nth</think>d"
    (first, second), _ = answers_of(folder, THOUGHTS, *texts)
    assert first == "b<|im_end|>"
    # The tag that begins thoughts is in the prompt, and nothing to learn.
    assert second.endswith("th</think>d<|im_end|>") and "<think>" not in second


def test_a_template_that_rewrites_what_came_before_asks_for_tags(tmp_path: Path) -> None:
    chat, _ = loaded(publish_tokenizer("gpt2", tmp_path), "{{ messages | length }}" + CHATML)
    with pytest.raises(ConfigError, match=r"\{% generation %\}"):
        chat.encode_answers(conversation("a", "b"))


def test_a_template_writes_the_day_that_it_is_given(tmp_path: Path) -> None:
    folder = publish_tokenizer("gpt2", tmp_path)
    _, tokenizer = loaded(folder, CHATML)
    days = [datetime.datetime(2000, 1, day) for day in (1, 2)]
    first, second = (
        ChatTemplate("{{ strftime_now('%d') }}", folder, tokenizer, lambda day=day: day)
        for day in days
    )
    assert (
        tokenizer.decode(first.encode([])) == "01" and tokenizer.decode(second.encode([])) == "02"
    )
