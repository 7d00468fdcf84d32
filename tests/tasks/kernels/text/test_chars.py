"""The units of a text against a plain Python reading of their definition."""

from __future__ import annotations

import unicodedata

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.kernels.text.chars import (
    APOSTROPHE,
    LETTER,
    MARK,
    NUM_CODE_POINTS,
    UNSEGMENTED,
    char_classes,
    decode,
    document_units,
    fold_table,
)
from tests.support.data.units_by_definition import MIXED_SCRIPTS, expected_words, is_unsegmented


def units_of(text: str) -> list[tuple[int, int, int]]:
    buf = np.frombuffer(
        b"\xe4x" + text.encode() + b"\xb8y", np.uint8
    )  # bytes around the text must not leak in
    room = len(buf)
    starts, stops, hashes = (
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room, np.uint64),
    )
    count = document_units(
        buf, 2, len(buf) - 2, char_classes(), fold_table(), starts, stops, hashes
    )
    return [(int(starts[i]) - 2, int(stops[i]) - 2, int(hashes[i])) for i in range(count)]


def words_of(text: str) -> list[str]:
    data = text.encode()
    return [data[a:b].decode() for a, b, _ in units_of(text)]


@settings(max_examples=200, deadline=None)
@given(MIXED_SCRIPTS)
@example("don't 'tis' rock'n'roll 90's l’été")
@example("我们it's好 ภาษาไทย 2024年")
@example("a'9 a'_ a’中 a'\u0301 a' 'a")
def test_units_are_those_of_the_definition(text: str) -> None:
    assert words_of(text) == expected_words(text)


def test_words_of_known_texts() -> None:
    assert words_of("It's snake_case, isn't it?") == ["It's", "snake_case", "isn't", "it"]
    assert words_of("我爱你。I love ไทย") == ["我", "爱", "你", "I", "love", "ไ", "ท", "ย"]
    assert words_of("\u200b \n--- ") == []
    assert words_of("ที่") == ["ที่"]


@settings(max_examples=200, deadline=None)
@given(MIXED_SCRIPTS)
def test_hash_sees_folded_text_and_nothing_else(text: str) -> None:
    folds = fold_table()
    by_fold: dict[tuple[int, ...], int] = {}
    for word, (_, _, value) in zip(words_of(text), units_of(text), strict=True):
        folded = tuple(int(folds[ord(c)]) for c in word)
        assert by_fold.setdefault(folded, value) == value
    assert len(set(by_fold.values())) == len(by_fold)


def test_case_variants_share_a_hash() -> None:
    values = {value for _, _, value in units_of("Straße STRAßE straße")}
    assert len(values) == 1
    assert len({value for _, _, value in units_of("ab ba abc")}) == 3


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=12))
@example(b"\xf7\xbf\xbf\xbf")
@example(b"\xe4\xb8")
def test_decoding_never_leaves_the_text_or_the_tables(data: bytes) -> None:
    buf = np.frombuffer(data, np.uint8)
    pos = 0
    while pos < len(buf):
        code_point, after = decode(buf, pos, len(buf))
        assert 0 <= code_point < NUM_CODE_POINTS
        assert pos < after <= len(buf)
        pos = after


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_decoding_gives_back_valid_text(text: str) -> None:
    buf = np.frombuffer(text.encode(), np.uint8)
    decoded, pos = [], 0
    while pos < len(buf):
        code_point, pos = decode(buf, pos, len(buf))
        decoded.append(chr(code_point))
    assert "".join(decoded) == text


def test_tables_hold_for_every_code_point_of_the_basic_plane() -> None:
    classes, folds = char_classes(), fold_table()
    for code_point in (*range(0xD800), *range(0xE000, 0x20000)):
        char = chr(code_point)
        assert (classes[code_point] == 1) == char.isspace()
        if char.isalpha():
            assert classes[code_point] in (LETTER, UNSEGMENTED) or char in "ﾞﾟ", hex(code_point)
        if unicodedata.category(char)[0] == "M":
            assert classes[code_point] == MARK
        if len(char.casefold()) == 1:
            assert chr(folds[code_point]) == char.casefold()
    assert classes[ord("’")] == APOSTROPHE
    assert len(classes) == len(folds) == NUM_CODE_POINTS


def test_script_blocks_agree_with_character_names() -> None:
    classes = char_classes()
    for code_point in (*range(0xD800), *range(0xE000, 0x20000)):
        assert (classes[code_point] == UNSEGMENTED) == is_unsegmented(chr(code_point)), hex(
            code_point
        )
