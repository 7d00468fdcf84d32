"""The compiled encoder gives the ids of `tokenizers`, or says that it cannot."""

from __future__ import annotations

import time
import unicodedata
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

import tasks.tokenizer.fast_bpe
from tasks.tokenizer.bpe import train_bpe, train_wordpiece
from tasks.tokenizer.encoder import FAST_FROM_CHARS, Tokenizer
from tasks.tokenizer.fast_bpe import FastEncoder, _classes, fast_encoder
from tests.support.data.hostile_texts import HOSTILE, PIECES
from tests.support.data.sample_documents import sample_texts

SIGNS = [
    *PIECES,
    "'",
    "'S",
    "'ſ",
    "'LL",
    "'re",
    "1234",
    "٣",
    "!" * 33,
    "\n" * 5,
    " " * 33,
    "\t" * 32 + "\n",
    "x" * 65,
    "\x85",
    "\u200d",
    "가",
]
texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(SIGNS), max_size=20).map("".join))


@pytest.fixture(scope="module", params=["bounded", "gpt2", "gpt4", "llama3", "wordpiece"])
def both(request: pytest.FixtureRequest) -> tuple[FastEncoder, Tokenizer]:
    rows = sample_texts(60, 800)
    tokenizer = Tokenizer(
        train_wordpiece(rows, 1200)
        if request.param == "wordpiece"
        else train_bpe(rows, 700, request.param)
    )
    fast = fast_encoder(tokenizer._model)
    assert fast is not None
    return fast, tokenizer


@settings(max_examples=300, deadline=None)
@given(texts)
def test_any_text_gives_the_ids_of_the_reference(
    both: tuple[FastEncoder, Tokenizer], text: str
) -> None:
    fast, tokenizer = both
    ids = fast.encode_batch([text, text])
    assert [None if i is None else i.tolist() for i in ids] == [
        tokenizer.encode_whole([text])[0].tolist()
    ] * 2


def test_the_sample_and_hostile_texts_too(both: tuple[FastEncoder, Tokenizer]) -> None:
    fast, tokenizer = both
    rows = ["", *sample_texts(300, 1500), *HOSTILE, ""]
    for text, ours, theirs in zip(
        rows, fast.encode_batch(rows), tokenizer.encode_whole(rows), strict=True
    ):
        assert ours is not None and np.array_equal(ours, theirs), text[:40]


def test_a_full_table_changes_nothing(
    both: tuple[FastEncoder, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TABLE_SLOTS", 256), ("MAX_WORD_BYTES", 500), ("MAX_WORD_IDS", 200)):
        monkeypatch.setattr(tasks.tokenizer.fast_bpe, name, value)
    _, tokenizer = both
    small = fast_encoder(tokenizer._model)
    assert small is not None
    rows = sample_texts(60, 1000)
    for _ in range(3):
        assert [ids.tolist() for ids in small.encode_batch(rows) if ids is not None] == [
            ids.tolist() for ids in tokenizer.encode_whole(rows)
        ]


def test_a_document_with_an_endless_word_goes_to_the_reference(
    both: tuple[FastEncoder, Tokenizer],
) -> None:
    fast, tokenizer = both
    rows = ["before", "x" * 3000 + " end", "after"]
    found = fast.encode_batch(rows)
    assert found[0] is not None and found[2] is not None
    assert (found[1] is None) == (fast._limits[0] > 64)
    many = [*rows, *sample_texts(100, 3000)]
    assert sum(map(len, many)) > FAST_FROM_CHARS
    assert [i.tolist() for i in tokenizer.encode_batch(many)] == [
        i.tolist() for i in tokenizer.encode_whole(many)
    ]


def test_other_tokenizers_have_no_fast_encoder() -> None:
    assert fast_encoder(train_bpe(["a b"], 300, "none")) is None
    model = train_wordpiece(["a b"], 600)
    model.model.max_input_chars_per_word = 100
    assert fast_encoder(model) is None
    model = train_bpe(["a b"], 300)
    model.normalizer = normalizers.NFC()
    assert fast_encoder(model) is None


def test_an_encoder_that_differs_is_given_up_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(train_bpe(sample_texts(20, 500), 400))
    rows = sample_texts(200, 1500)
    monkeypatch.setattr(
        FastEncoder, "encode_batch", lambda self, texts: [np.zeros(1, np.int32) for _ in texts]
    )
    with pytest.warns(UserWarning, match="gives other ids than `tokenizers`"):
        found = tokenizer.encode_batch(rows)
    assert [i.tolist() for i in found] == [i.tolist() for i in tokenizer.encode_whole(rows)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.encode_batch(rows)


def test_character_classes_are_those_of_unicode_where_python_knows_the_character() -> None:
    from tasks.kernels.tokenizer.bpe import LETTER, NUMBER

    table = _classes(True)
    for code in [*range(0, 0x3000, 7), *range(0x3000, 0x20000, 101), 0x20000, 0xE0100]:
        category = unicodedata.category(chr(code))
        if category[0] in "LMN":
            assert table[code] == (NUMBER if category[0] == "N" else LETTER), hex(code)
        elif category not in ("Cn", "Cs"):
            assert table[code] not in (NUMBER, LETTER), hex(code)


def test_wordpiece_of_long_han_words_takes_no_longer_than_of_short_ones() -> None:
    tokenizer = Tokenizer(train_wordpiece(sample_texts(60, 800), 1200))
    fast = fast_encoder(tokenizer._model)
    assert fast is not None
    han = [chr(0x4E00 + 7919 * i % 20000) for i in range(20_000)]
    took = {}
    for size in (4, 64):
        text = " ".join("".join(han[i : i + size]) for i in range(0, len(han), size))
        assert np.array_equal(
            fast.encode_batch([text[:3000]])[0], tokenizer.encode_whole([text[:3000]])[0]
        )
        times = []
        for _ in range(3):
            fast._forget()
            begin = time.process_time()
            fast.encode_batch([text])
            times.append(time.process_time() - begin)
        took[size] = min(times)
    assert took[64] < 3 * took[4]
