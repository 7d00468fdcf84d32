"""Texts that differ by encoding alone have one view, and its offsets lead back to the text."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.documentset import text_buffers
from tasks.kernels.text.view import KEEP, View, _first_change, _tables, view_of
from tests.support.data.any_bytes import BYTES

COMPOSED = [
    chr(c)
    for c in range(0x80, 0xD7A4)
    if unicodedata.is_normalized("NFC", chr(c))
    and len(unicodedata.normalize("NFD", chr(c))) > 1
    and (c < 0xAC00 or c % 61 == 0)
]
PIECES = st.sampled_from(
    [
        *"aé '-7漢字—“’\u0661（，\u212b\u00ad\u200d\ufe0f\u200b\U0001f600",
        *("e\u0301", "ＡＢ", "１２", "ｶﾞ", "\u1112\u1161\u11ab"),
        "plain words on many lines " * 3,
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def _view(text: str, signs: bool = True) -> tuple[str, View]:
    data = text.encode()
    view = view_of(np.frombuffer(data, np.uint8), np.array([0, len(data)]), signs)
    return view.values.tobytes().decode(), view


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*COMPOSED, "a", " "]), max_size=12).map("".join))
def test_decomposed_text_is_composed_as_unicodedata_does(text: str) -> None:
    if any(unicodedata.decimal(c, None) is not None for c in text):
        return
    assert _view(unicodedata.normalize("NFD", text), signs=False)[0] == text


@pytest.mark.parametrize(
    ("text", "plain", "with_signs"),
    [
        ("ma\u00adtin \u200dx\ufe0f", "matin x", "matin x"),
        ("Ｐｈｏｎｅ：１２３", "Phone：123", "Phone：123"),
        ("ｶﾞｷﾞ ｱ", "ガギ ア", "ガギ ア"),
        ("a—b ‘c’ “d” «e»", "a—b ‘c’ “d” «e»", 'a-b \'c\' "d" "e"'),
        ("（０１０）ｘ＠ｙ．ｃｎ", "（010）x＠y．cn", "(010)x@y.cn"),
        ("٠١२", "012", "012"),
        ("a\u200bb 漢，。", "a\u200bb 漢，。", "a\u200bb 漢，。"),
        ("\u212b \uf900 क\u093c", "Å 豈 क\u093c", "Å 豈 क\u093c"),
    ],
)
def test_forms_of_signs_letters_and_digits_are_those_of_one_keyboard(text, plain, with_signs):
    assert (_view(text, signs=False)[0], _view(text)[0]) == (plain, with_signs)


def test_every_character_that_changes_is_looked_up() -> None:
    """The ranges of bytes that are passed over hold no character that the tables change."""
    for signs in (False, True):
        changing = np.flatnonzero(_tables(signs)[0] != KEEP).tolist()
        for place in (0, 63):
            for code in changing:
                data = b"a" * place + chr(code).encode() + b"a" * 80
                values = np.frombuffer(data, np.uint8)
                assert _first_change(values, 0, len(data), _tables(signs)[0]) == place, hex(code)


def test_text_that_is_its_own_view_is_not_copied() -> None:
    for text in ("plain text", "déjà vu, 漢字、ひらがな", ""):
        values, begins = text_buffers(pa.array([text], pa.large_string()))
        view = view_of(values, begins, signs=True)
        assert np.shares_memory(view.values, values) or not text
        assert len(view.places) == 0 and np.array_equal(view.begins, begins)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.data())
def test_offsets_of_characters_lead_back_to_what_they_were_made_of(text: str, data) -> None:
    seen, view = _view(text)
    first = data.draw(st.integers(0, len(seen)))
    last = data.draw(st.integers(first, len(seen)))
    start, end = (np.array([len(seen[:place].encode())]) for place in (first, last))
    if first == last:
        return
    low, high = int(view.original_starts(start)[0]), int(view.original_ends(end)[0])
    assert 0 <= low < high <= len(text.encode())
    assert _view(text.encode()[low:high].decode())[0] == seen[first:last]


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_documents_are_seen_alone(texts: list[str]) -> None:
    values, begins = text_buffers(pa.array(["before e", *texts], pa.large_string()).slice(1))
    view = view_of(values, begins, signs=True)
    alone = [_view(text)[0].encode() for text in texts]
    ends = np.cumsum([0, *map(len, alone)]) + view.begins[0]
    assert view.begins.tolist() == ends.tolist()
    assert view.values[view.begins[0] : view.begins[-1]].tobytes() == b"".join(alone)
    assert (view.original_starts(view.begins[:-1]) >= begins[:-1]).all()


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_view_of_a_view_is_itself(text: str) -> None:
    seen, _ = _view(text)
    assert _view(seen)[0] == seen


@settings(max_examples=100, deadline=None)
@given(BYTES)
def test_bytes_that_are_no_text_keep_their_order(data: bytes) -> None:
    view = view_of(np.frombuffer(data, np.uint8), np.array([0, len(data)]), True)
    assert (np.diff(view.places) > 0).all() and (view.starts >= view.ends).all()
