"""The embedded chats are configured as the guide says."""

from __future__ import annotations

from pathlib import Path

from flows.compose import compose
from tasks.tokenizer.chat_template import ChatTemplate
from tasks.tokenizer.encoder import load_tokenizer
from tests.support.chat_templates import CHATML
from tests.support.data.foreign_tokenizers import publish_tokenizer

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_the_template_of_the_group_is_chatml(tmp_path: Path) -> None:
    given = compose(["tokenizer=chat"]).tokenizer.chat_template
    folder = publish_tokenizer("gpt2", tmp_path)
    tokenizer = load_tokenizer(folder)
    ours, chatml = (ChatTemplate(source, folder, tokenizer) for source in (given, CHATML))
    assert ours.encode(TALK[:1]) == chatml.encode(TALK[:1])
    found, expected = ours.encode_answers(TALK), chatml.encode_answers(TALK)
    assert found.ids.tolist() == expected.ids.tolist() and found.text == expected.text


def test_the_run_learns_answers_of_chats_after_text() -> None:
    config = compose(["run=chat"])
    assert config.source.inputs["chats"].text_kind == "chat"
    data = config.train.data
    assert data.loss_on == "assistant" and [step for step, _ in data.phases] == [0, 250]
