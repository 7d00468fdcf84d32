"""The exact key sees through case, white space and Unicode form, and through nothing else."""

from __future__ import annotations

import hashlib
import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from tasks.corpus.documentset import text_buffers
from tasks.kernels.dedup.blake2 import HASH_WORDS, LANES_ROOM, ROOM, hash_spans
from tasks.kernels.dedup.exact import exact_keys, fold_text
from tasks.kernels.text.addresses import pointers


def keys(*texts: str) -> list[bytes | None]:
    buf, begins = text_buffers(pa.array(texts, pa.large_string()))
    return exact_keys(buf, begins, np.arange(len(texts)))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.text(max_size=30)
        | st.text(st.sampled_from("aA \t\n\x1f\u2003ÀßȺΣςé\u0301漢🄰ﬁ한\u1161"), max_size=30)
        | st.lists(
            st.sampled_from(
                [
                    "@AZ[`az{",
                    "a",
                    "word ",
                    " ",
                    "\n" + 9 * " ",
                    "\x08\t\r\x0e",
                    "\x1b\x1c \x1f!",
                    "\x7f",
                    "é",
                ]
            )
        ).map("".join),
        max_size=4,
    )
)
def test_compiled_keys_are_hashes_of_the_folded_text(texts: list[str]) -> None:
    folded = [fold_text(text) for text in texts]
    assert keys(*texts) == [
        hashlib.blake2b(f, digest_size=16).digest() if f else None for f in folded
    ]


def test_words_are_normalised_as_in_their_text() -> None:
    blanks = [chr(c) for c in range(0x3001) if chr(c).isspace()]
    characters = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000]
    for i, blank in enumerate(blanks):
        text = "".join(f"{blank}{c}\u0301{blank}\u0323{c}e{blank}\u0301" for c in characters[i::97])
        assert fold_text(text).decode() == " ".join(
            unicodedata.normalize("NFC", text.casefold()).split()
        )


def test_every_character_folds_the_same_in_both_ways() -> None:
    characters = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000]
    lines = ["".join(characters[i : i + 8]) for i in range(0, len(characters), 8)]
    assert keys(*lines) == [
        hashlib.blake2b(f, digest_size=16).digest() if (f := fold_text(line)) else None
        for line in lines
    ]


def test_case_space_and_unicode_form_do_not_count() -> None:
    assert (
        len(
            set(
                keys(
                    "Die STRASSE ist  lang.",
                    " die Straße\nist lang. ",
                    "\u00a0die straße ist lang.\u2028",
                )
            )
        )
        == 1
    )
    assert len(set(keys("Café", "cafe\u0301", "CAFÉ"))) == 1


def test_punctuation_counts() -> None:
    assert len(set(keys("C", "C++", "C#", "c ++"))) == 4


def test_blank_texts_have_no_key() -> None:
    assert keys("", " ", "\n\t\u3000") == [None, None, None]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.integers(0, 3) | st.integers(120, 140) | st.integers(250, 260) | st.integers(0, 3000),
        max_size=30,
    )
)
def test_hashes_of_spans_are_those_of_hashlib(sizes: list[int]) -> None:
    # Lanes that end at different blocks, whole blocks among the last ones, and spans that are
    # passed over.
    ends = np.cumsum(sizes, dtype=np.int64)
    data = np.random.default_rng(len(sizes)).integers(
        0, 256, int(ends[-1]) if sizes else 0, np.uint8
    )
    spans = np.stack([ends - sizes, ends], 1) if sizes else np.zeros((0, 2), np.int64)
    spans[1::5] = -1
    hashes = np.zeros((len(sizes), HASH_WORDS), np.uint64)
    hash_all(data, spans, np.empty(ROOM, np.uint64), np.empty(LANES_ROOM, np.int64), hashes)
    expected = [
        hashlib.blake2b(data[a:b].tobytes(), digest_size=16).digest() if a >= 0 else bytes(16)
        for a, b in spans.tolist()
    ]
    assert [row.tobytes() for row in hashes] == expected


@njit
def hash_all(data, spans, room, lanes, hashes):  # type: ignore[no-untyped-def]
    hash_spans(
        pointers(data),
        pointers(spans),
        0,
        len(spans),
        pointers(room),
        pointers(lanes),
        pointers(hashes),
    )
