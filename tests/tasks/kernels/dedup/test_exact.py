"""The exact key sees through case, white space and Unicode form, and through nothing else."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.documentset import text_buffers
from tasks.kernels.dedup.exact import exact_keys, fold_text
from tasks.kernels.dedup.murmur3 import hash_bytes


def keys(*texts: str) -> list[bytes | None]:
    buf, begins = text_buffers(pa.array(texts, pa.large_string()))
    return exact_keys(buf, begins, np.arange(len(texts)))


def hash_of(data: bytes, seed: int = 0) -> bytes:
    return hash_bytes(np.frombuffer(data, np.uint8), seed).tobytes()


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
    assert keys(*texts) == [hash_of(f) if f else None for f in folded]


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
    assert keys(*lines) == [hash_of(f) if (f := fold_text(line)) else None for line in lines]


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


def test_hashes_have_the_verification_value_of_smhasher() -> None:
    hashes = b"".join(hash_of(bytes(range(size)), 256 - size) for size in range(256))
    assert hash_of(hashes)[:4] == (0x6384BA69).to_bytes(4, "little")
