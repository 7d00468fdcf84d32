"""Tokenizers of published folders: special tokens are named in several files, in several forms, or
nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.tokenizer.bpe import train_bpe
from tasks.tokenizer.encoder import load_tokenizer
from tasks.tokenizer.files import NAMING_FILES, read_tokenizer
from tasks.tokenizer.importing import import_tokenizer, imported_files
from tests.support.data.foreign_tokenizers import CONTROLS, FORMS, Form, publish_tokenizer

TOKENIZER, SPECIAL_MAP, GENERATION, MODEL = NAMING_FILES
EOS, PAD = 0, 1
"""Ids of `</s>` and `[PAD]` below."""


def publish(folder: Path, files: dict[str, Any], eos: str = "</s>", pad: str = "[PAD]") -> Path:
    """A byte-level tokenizer with two special tokens, and JSON files beside it."""
    text = train_bpe(["some words, few"], 300).to_str()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        text.replace("<|endoftext|>", eos).replace("<|pad|>", pad)
    )
    for name in NAMING_FILES:
        (folder / name).unlink(missing_ok=True)
        if name in files:
            (folder / name).write_text(json.dumps(files[name]))
    return folder


def as_object(token: str) -> dict[str, Any]:
    return {
        "__type": "AddedToken",
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "special": True,
    }


@pytest.mark.parametrize(
    ("files", "pad"),
    [
        ({TOKENIZER: {"eos_token": "</s>"}}, EOS),
        ({TOKENIZER: {"eos_token": "</s>", "pad_token": None}}, EOS),
        ({TOKENIZER: {"eos_token": as_object("</s>"), "pad_token": as_object("[PAD]")}}, PAD),
        ({TOKENIZER: {"eos_token": "</s>", "pad_token": "[added later]"}}, EOS),
        ({SPECIAL_MAP: {"eos_token": as_object("</s>"), "pad_token": "[PAD]"}}, PAD),
        (
            {
                TOKENIZER: {"eos_token": None},
                SPECIAL_MAP: {"eos_token": "</s>", "pad_token": "[PAD]"},
            },
            PAD,
        ),
        ({TOKENIZER: {"tokenizer_class": "X"}, GENERATION: {"eos_token_id": [EOS, 7]}}, EOS),
        ({TOKENIZER: {}, MODEL: {"eos_token_id": EOS, "pad_token_id": PAD}}, PAD),
        (
            {GENERATION: {"eos_token_id": None, "pad_token_id": -1}, MODEL: {"eos_token_id": EOS}},
            EOS,
        ),
    ],
)
def test_special_tokens_are_found_wherever_and_however_they_are_named(
    files: dict[str, Any], pad: int, tmp_path: Path
) -> None:
    loaded = load_tokenizer(publish(tmp_path, files))
    assert (loaded.eos_id, loaded.pad_id) == (EOS, pad)
    assert loaded.decode(loaded.encode("</s> some")) == "</s> some" and EOS not in loaded.encode(
        "</s>"
    )
    assert set(files) <= set(imported_files(tmp_path)), (
        "what names a token is in the key of an import"
    )
    if (
        files.get(TOKENIZER, {}).get("pad_token") != "[added later]"
    ):  # an import has a setting to correct it with
        imported = import_tokenizer(tmp_path, None, None)
        assert (imported.eos_token, imported.pad_token) == ("</s>", ["</s>", "[PAD]"][pad])


shapes = st.sampled_from(
    [
        "</s>",
        "[PAD]",
        "gone",
        None,
        5,
        True,
        [],
        {},
        {"content": None},
        as_object("</s>"),
        as_object("[PAD]"),
    ]
)
numbers = st.sampled_from(
    [EOS, PAD, None, -1, 10**30, True, "0", 1.0, [], [PAD, EOS], [None, 10**30, EOS], {"a": 1}]
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "eos_token": shapes,
        "pad_token": shapes,
        "eos_token_id": numbers,
        "pad_token_id": numbers,
    },
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(files=st.dictionaries(st.sampled_from(NAMING_FILES), objects, max_size=4))
def test_a_published_folder_loads_or_says_in_a_line_what_it_lacks(
    files: dict[str, Any], tmp_path: Path
) -> None:
    publish(tmp_path, files)
    try:
        loaded = load_tokenizer(tmp_path)
    except ConfigError as error:
        assert "has no end of text" in str(error) and "eos_token in tokenizer_config.json" in str(
            error
        )
        assert "\n" not in str(error)
    else:
        assert {loaded.eos_id, loaded.pad_id} <= {EOS, PAD}


def test_a_folder_without_any_name_has_ours_or_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"has no end of text: <\|endoftext\|> is not in its vocabulary; name a token",
    ):
        load_tokenizer(publish(tmp_path, {}))
    ours = load_tokenizer(publish(tmp_path, {}, "<|endoftext|>", "<|pad|>"))
    assert (ours.eos_id, ours.pad_id) == (EOS, PAD)


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"\xff", b"3"])
@pytest.mark.parametrize("name", ["tokenizer.json", *NAMING_FILES])
def test_a_damaged_file_of_a_published_folder_is_named(
    name: str, content: bytes, tmp_path: Path
) -> None:
    publish(tmp_path, {})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}\) is not (JSON|a JSON object)"):
        load_tokenizer(tmp_path)


def test_truncation_and_padding_of_a_published_folder_leave_texts_whole(tmp_path: Path) -> None:
    model = train_bpe(["some words, few"], 300)
    model.enable_truncation(5)
    model.enable_padding(length=90, pad_id=1, pad_token="<|pad|>")
    model.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert (
        loaded.decode(loaded.encode("more than five tokens of text"))
        == "more than five tokens of text"
    )
    assert 1 not in loaded.encode("short")


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "BPE", "Unigram"])
def test_a_model_without_the_token_for_what_it_does_not_know_is_refused(
    kind: str, tmp_path: Path
) -> None:
    vocab: Any = [["a", 0.0]] if kind == "Unigram" else {"a": 0}
    model = {"type": kind, "vocab": vocab, "unk_token": "[UNK]"} | (
        {"merges": []} if kind == "BPE" else {}
    )
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": []}))
    with pytest.raises(ConfigError, match="is not a tokenizer that `tokenizers` reads"):
        read_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("form", FORMS)
def test_text_that_spells_a_special_token_stays_text_in_every_form(
    form: Form, tmp_path: Path
) -> None:
    """In the last form special tokens are pieces of a unigram model, as in T5."""
    tokenizer = load_tokenizer(publish_tokenizer(form, tmp_path))
    for text in (" ".join(CONTROLS), "</s>", "a</s>b<s>"):
        ids = tokenizer.encode(text).tolist()
        assert not {tokenizer.name_of(id) for id in ids} & set(CONTROLS)
        assert tokenizer.decode(ids).removeprefix(" ") == text
