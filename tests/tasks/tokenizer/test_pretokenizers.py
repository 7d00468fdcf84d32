"""Known cuts are those of the models they are named after, and words between them are encoded as
within the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tokenizers import Regex, normalizers, pre_tokenizers

from tasks.tokenizer.bpe import train_bpe
from tasks.tokenizer.encoder import Tokenizer
from tasks.tokenizer.pretokenizers import PATTERNS, byte_level, word_cuts
from tests.support.data.hostile_texts import HOSTILE, any_text
from tests.support.data.sample_documents import sample_texts

NAMES = ("gpt2", "gpt4", "llama3", "none")


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(train_bpe(sample_texts(40, 600), 500, request.param))


@settings(max_examples=150, deadline=None)
@given(any_text)
def test_texts_come_back_and_words_give_the_ids_of_the_whole(
    tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.tolist() == tokenizer._model.encode(text, add_special_tokens=False).ids


def test_hostile_and_sample_texts_too(tokenizer: Tokenizer) -> None:
    texts = [*HOSTILE, *sample_texts(200, 600)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.decode(ids) == text
        assert ids.tolist() == tokenizer._model.encode(text, add_special_tokens=False).ids


def test_words_are_remembered_wherever_borders_are_known() -> None:
    for name in NAMES:
        assert (Tokenizer(train_bpe(["a b"], 300, name))._words is None) == (name == "none")


def test_gpt2_in_its_own_spelling_cuts_by_its_expression() -> None:
    spelled = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS["gpt2"]), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    )
    for text in [*HOSTILE, *sample_texts(50, 600)]:
        assert byte_level("gpt2").pre_tokenize_str(text) == spelled.pre_tokenize_str(text)


def test_digits_stay_in_groups_of_three_but_for_gpt2() -> None:
    words = {
        name: [w for w, _ in byte_level(name).pre_tokenize_str("12345678")]
        for name in ("bounded", "gpt2", "gpt4")
    }
    assert words == {
        "bounded": ["123", "456", "78"],
        "gpt2": ["12345678"],
        "gpt4": ["123", "456", "78"],
    }


def test_without_cuts_merges_cross_words() -> None:
    tokenizer = Tokenizer(train_bpe(["of the people "] * 40, 300, "none"))
    assert len(tokenizer.encode("of the people ")) == 1


def test_words_are_not_cut_where_something_looks_across_them() -> None:
    model = train_bpe(["a b"], 300)
    model.normalizer = normalizers.NFC()
    assert word_cuts(model) is None
    model = train_bpe(["a b"], 300)
    model.add_tokens(["a b"])
    assert word_cuts(model) is None
