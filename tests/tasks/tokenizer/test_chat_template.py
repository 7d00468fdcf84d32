"""A chat becomes the ids that transformers makes of it, whatever text the messages spell, and with
exactly one start token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from llm_core.config import ConfigError
from tasks.tokenizer.chat_template import load_chat_template
from tasks.tokenizer.encoder import load_tokenizer
from tasks.tokenizer.template_files import NoTemplate
from tests.support.chat_conversations import checked, conversation, hostile, loaded, loaded_once
from tests.support.chat_templates import CHATML, INSTRUCTIONS, TIGHT
from tests.support.data.foreign_tokenizers import CONTROLS, FORMS, publish_tokenizer


@pytest.fixture(scope="module", params=FORMS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_tokenizer(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("template", [CHATML, INSTRUCTIONS])
def test_ids_are_those_of_transformers(folder: Path, template: str) -> None:
    chat, tokenizer = loaded(folder, template)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for texts in (["the a"], [" two  spaces ", "好 é", "x\n\ny"], ["[INST] <s", "|im", "> 👩"]):
        messages = conversation(*texts)
        expected = theirs.apply_chat_template(
            messages,
            chat_template=template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        start = list(tokenizer.start_ids)
        # Where the template leaves the start out, transformers does so too.
        expected = expected if expected[:1] == start else start + expected
        assert chat.encode(messages) == expected


@checked
@given(texts=st.lists(hostile, min_size=1, max_size=3))
@pytest.mark.parametrize("template", [CHATML, INSTRUCTIONS, TIGHT])
def test_text_of_messages_never_becomes_a_control_token(
    folder: Path, template: str, texts: list[str]
) -> None:
    chat, tokenizer = loaded_once(folder, template)
    controls = {tokenizer._model.token_to_id(control) for control in CONTROLS}
    ids, plain = chat.encode(conversation(*texts)), chat.encode(conversation(*"q" * len(texts)))
    assert [id for id in ids if id in controls] == [id for id in plain if id in controls]


@checked
@given(text=hostile)
def test_hostile_text_comes_back_letter_for_letter(folder: Path, text: str) -> None:
    chat, tokenizer = loaded_once(folder, CHATML)
    ids = chat.encode(conversation(f"({text})"))
    assert f"({text})" in tokenizer.decode(ids)


@pytest.mark.parametrize("template", [CHATML, "{{ bos_token }}" + CHATML, INSTRUCTIONS])
@pytest.mark.parametrize("text", ["hello", "<s>", "<s><s>"])
def test_a_chat_has_exactly_one_start_token(folder: Path, template: str, text: str) -> None:
    chat, tokenizer = loaded(folder, template)
    ids = chat.encode(conversation(text))
    (start,) = tokenizer.start_ids
    assert ids[0] == start and ids.count(start) == 1


def test_a_template_comes_from_the_settings_the_file_or_the_config(tmp_path: Path) -> None:
    folder = publish_tokenizer("gpt2", tmp_path / "model", chat_template="config")
    tokenizer = load_tokenizer(folder)

    def rendered(file: Path | None = None) -> str:
        template = load_chat_template(folder, tokenizer, file)
        return tokenizer.decode(template.encode(conversation("x")))

    assert rendered() == "config"
    (folder / "chat_template.jinja").write_text("beside")
    assert rendered() == "beside"
    (tmp_path / "own.jinja").write_text("own")
    assert rendered(tmp_path / "own.jinja") == "own"


def test_a_model_without_a_template_says_how_to_give_one(tmp_path: Path) -> None:
    folder = publish_tokenizer("gpt2", tmp_path)
    with pytest.raises(NoTemplate, match=r"serve\.chat_template=FILE"):
        load_chat_template(folder, load_tokenizer(folder), None)
    with pytest.raises(ConfigError, match=r"chat_template \(.*nowhere\) is not a file"):
        load_chat_template(folder, load_tokenizer(folder), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (INSTRUCTIONS, "only user and assistant speak"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe|has no attribute"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[9].content.upper() }}", "undefined|no element"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_what_a_template_refuses_is_said_in_one_line(
    tmp_path: Path, template: str, reason: str
) -> None:
    chat, _ = loaded(publish_tokenizer("gpt2", tmp_path), template)
    with pytest.raises(ConfigError, match=reason) as error:
        chat.encode([{"role": "system", "content": "x"}])
    assert "\n" not in str(error.value)


def test_a_broken_template_is_refused_when_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not valid Jinja"):
        loaded(publish_tokenizer("gpt2", tmp_path), "{% for %}")
