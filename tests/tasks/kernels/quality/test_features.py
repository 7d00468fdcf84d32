"""Features of quality against their definitions, and on the texts that broke other filters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.corpus.documentset import text_buffers
from tasks.definitions.features import COUNTS, FEATURES
from tasks.kernels.quality import c4
from tasks.kernels.quality.features import STOP_WORDS, measure_texts
from tasks.kernels.quality.ngrams import filter_size
from tasks.kernels.text.bitmaps import IS_LETTER, IS_UNSEGMENTED, RARE_LETTERS, char_flags
from tests.support.data.features_by_definition import JOINED, expected_features


def measure(texts: Sequence[str]) -> np.ndarray:
    return measure_texts(*text_buffers(pa.array(texts, pa.large_string())))


def features_of(text: str) -> dict[str, float]:
    return dict(zip(FEATURES, measure([text])[0].tolist(), strict=True))


@settings(max_examples=300, deadline=None)
@given(JOINED)
@example(
    'one two three.\nSee the (end.) Is it? "Yes!"\nour use of Cookies and more.\n\nlorem ipsum is'
    " here."
)
@example("a b a b a b a b a b a b a b a b a b a b a b c")
@example("0 0 []")
@example("Ã© Â\x83 Â« â€™ Ð° \x85\ufffd ñ° 3 + 4 = 7; x^2 `a`|~$ (%)[_]{&*}!?„“”")
@example(
    "Да, нет — Ναι! 漢字ガキ한글ｱ。 a\nHead\n" + "\n".join(map(str, range(20))) * 2 + "\nHead" * 2
)
@example(
    "\n".join(line for i in range(4) for line in ("Title", *map(str, range(20 * i, 20 * i + 20))))
)
@example('one two three. [1]\none two "three"[2]\n[3]')
def test_features_are_those_of_the_definitions(text: str) -> None:
    assert features_of(text) == pytest.approx(expected_features(text), abs=0, rel=1e-15)


@settings(max_examples=60, deadline=None)
@given(st.lists(JOINED, max_size=8), st.integers(0, 8))
def test_a_row_depends_on_its_text_alone(texts: list[str], cut: int) -> None:
    together = measure(texts)
    apart = np.concatenate([measure(texts[:cut]), measure(texts[cut:])])
    assert together.tobytes() == apart.tobytes()


def test_slices_of_arrow_buffers_are_read_at_their_own_offsets() -> None:
    array = pa.array(["skip me", "one one one", "two\n\ntwo", "not me"], pa.large_string())
    assert (
        measure_texts(*text_buffers(array.slice(1, 2))).tobytes()
        == measure(["one one one", "two\n\ntwo"]).tobytes()
    )


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "\u200b", "\u3000\n\t", "---", "\x1c"])
def test_blank_text_has_no_words_and_raises_nothing(text: str) -> None:
    found = features_of(text)
    assert found["num_words"] == 0
    assert found["num_chars"] == len(text)
    assert not any(found[name] for name in FEATURES if name.startswith(("dup_", "top_")))
    assert np.isfinite(list(found.values())).all()


def test_blank_lines_are_not_duplicate_lines() -> None:
    found = features_of("a\n\nb\n\nc")
    assert (found["num_lines"], found["num_paragraphs"]) == (3, 3)
    assert found["dup_line_frac"] == found["dup_paragraph_frac"] == 0


def test_paragraphs_differ_where_their_lines_are_cut_differently() -> None:
    assert features_of("a\nb\n\na\n\nb\n\nab")["dup_paragraph_frac"] == 0
    assert features_of("a\nb\n\na \n  b\n \na")["dup_paragraph_frac"] == pytest.approx(1 / 3)


def test_an_ngram_that_occurs_once_is_no_repetition() -> None:
    found = features_of("Hello world")
    assert not any(found[f"top_{n}gram_char_frac"] for n in (2, 3, 4))
    assert features_of("a a a a a a")["top_2gram_char_frac"] == 1  # covered, never more than all


def test_words_do_not_run_together_in_ngrams() -> None:
    assert features_of("ab c d e f g. a bc d e f g")["dup_5gram_char_frac"] == 0


def test_chinese_is_counted_in_characters_and_ends_its_sentences() -> None:
    text = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。"
    found = features_of(text)
    assert (found["num_words"], found["unsegmented_frac"], found["alphabetic_word_frac"]) == (
        20,
        1,
        1,
    )
    assert found["terminal_line_frac"] == 1
    assert features_of("中文中文中文")["top_2gram_char_frac"] == 1


def test_thai_khmer_and_lao_are_not_one_long_word() -> None:
    for text in ("ภาษาไทยเขียนติดกัน", "ភាសាខ្មែរសរសេរជាប់គ្នា", "ພາສາລາວຂຽນຕິດກັນ"):
        found = features_of(text)
        assert found["unsegmented_frac"] == 1
        assert found["longest_word_chars"] <= 3
        assert found["mean_word_chars"] == 0


@pytest.mark.parametrize(
    "unit",
    [
        "x",
        "a ",
        "QUJD/+",
        "function(e){return e}",
        "中",
        "a\n",
        "ab\n\n",
        "aA",
        ". ",
        "ab ab ba ",
        "word%d ",
    ],
)
def test_time_is_linear_in_hostile_text(unit: str) -> None:
    """A quadratic step over a million items takes hours: longer than any test may."""
    size = 1 << 20
    text = (
        "".join(unit % i for i in range(size // 10)) if "%" in unit else unit * (size // len(unit))
    )
    measure(["warm"])
    found = features_of(text)
    assert found["num_chars"] == len(text)


def test_ten_megabytes_without_a_space_are_one_word() -> None:
    measure(["warm"])
    found = features_of("x" * 10_000_000)
    assert (found["num_words"], found["longest_word_chars"], found["mean_word_chars"]) == (
        1,
        10_000_000,
        10_000_000,
    )


def test_each_document_is_asked_for_the_stop_words_of_its_list() -> None:
    lists = [STOP_WORDS, ("также", "и"), ("的",)]
    texts = ["the и 的 the", "и также, также; Также такжe", "你的，我的 также", "также"]
    rows = measure_texts(
        *text_buffers(pa.array(texts, pa.large_string())), lists, np.array([0, 1, 2, 0])
    )
    columns = [FEATURES.index(name) for name in ("num_stop_words", "num_stop_word_occurrences")]
    assert rows[:, columns].tolist() == [[1, 2], [2, 3], [1, 2], [0, 0]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4))
@example([b"\xff", b"\xe4\xb8", b"\xf0\x9f"])
def test_bytes_of_any_kind_are_measured_as_the_text_they_decode_to(documents: list[bytes]) -> None:
    texts = [document.decode("utf-8", "replace") for document in documents]
    for text, row in zip(texts, measure(texts).tolist() if texts else [], strict=True):
        assert dict(zip(FEATURES, row, strict=True)) == pytest.approx(
            expected_features(text), abs=0, rel=1e-15
        )


@settings(max_examples=100, deadline=None)
@given(st.integers(40, 70), st.text(alphabet="aé中々\u0301'’ .\u3000\n[…", min_size=1, max_size=12))
@example(62, "a'a")
@example(62, "a’a")
@example(62, "a…\u3000中\u0301")
def test_where_a_block_of_bytes_ends_changes_nothing(before: int, text: str) -> None:
    text = "." * before + text + "b." * 30
    assert features_of(text) == pytest.approx(expected_features(text), abs=0, rel=1e-15)


def test_letters_told_by_their_bytes_are_those_of_the_tables() -> None:
    flags = char_flags()
    common = {*range(0xC0, 0x100), *range(0x400, 0x480)} - set(map(ord, "×÷"))
    assert (flags[0x4E00:0xA000] & IS_UNSEGMENTED).all()
    assert (flags[sorted(common)] & IS_LETTER).all()
    text = " ".join(
        "1" + chr(code) + "2"
        for first in (0xB0, 0x3F0, 0x4DB0, 0x9FC0)
        for code in range(first, first + 0x100)
    )
    assert features_of(text) == pytest.approx(expected_features(text), abs=0, rel=1e-15)


def test_every_phrase_of_c4_has_three_letters_that_are_looked_for() -> None:
    assert all(any(rare in phrase for rare in RARE_LETTERS) for phrase in c4.PHRASES)


@pytest.mark.slow
def test_a_document_of_sixteen_megabytes_in_one_line_is_measured() -> None:
    line = "word of one line, 中文 and ไทย; number %d. "
    text = "".join(line % i for i in range((16 << 20) // len(line.encode())))
    measure(["warm"])
    assert features_of(text)["num_lines"] == 1


def test_counts_are_whole_numbers() -> None:
    rows = measure(["The cat and the dog. The cat and the dog.", "中文。", "#{}..."])
    assert np.array_equal(rows[:, : len(COUNTS)], rows[:, : len(COUNTS)].astype(np.int64))


def test_places_in_the_filter_of_pairs_fit_four_bytes() -> None:
    assert [filter_size(2**bits) for bits in (5, 27, 28, 29, 33)] == [
        256,
        2**30,
        2**31,
        2**31,
        2**31,
    ]
