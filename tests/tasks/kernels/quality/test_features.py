"""Features against a naive reading of their definitions in plain Python, and the cases that broke
other filters."""

from __future__ import annotations

import re
import time
from collections import Counter
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
from tests.tasks.kernels.text.test_chars import MIXED_SCRIPTS, expected_words, is_unsegmented

LONG_WORD = "w" * 1001
TERMINALS = ".?!…‼⁇⁈⁉。．｡！？؟۔।॥։;׃።፧፨᠃᠉၊။។៕།༎᙮\"'”’」』"
WORDS = (
    "the",
    "The",
    "be",
    "a",
    "that",
    "don't",
    "x_1",
    "12",
    "中",
    "文",
    "ก็",
    "naïve",
    "…",
    "...",
    "#",
    "-",
    "•",
    "{",
)
ENDINGS = (
    " ",
    "  ",
    "\n",
    "\n\n",
    ".\n",
    " \n \n",
    "...\n",
    "?” ",
    "。\n",
    "\u3000\n",
    '."\n',
    "! ",
)
REPETITIVE_TEXT = st.lists(
    st.tuples(st.sampled_from(WORDS[:7] + WORDS[8:10]), st.sampled_from(ENDINGS[:4])), max_size=60
)
LINES_OF_TEXT = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(ENDINGS)), max_size=40)
PHRASE_TEXT = st.lists(
    st.sampled_from(
        (
            *c4.PHRASES,
            *(
                "JavaScript",
                "Use Cookies",
                "Lorem ",
                "ipsum",
                "one two three.",
                "\n",
                " ",
                "use ",
                LONG_WORD,
            ),
            *(
                "[12]",
                "[]",
                "[edit]",
                "[citation needed]",
                "[1",
                "]",
                "{",
                "?) ",
                '."',
                "é\u3000",
                "four five six!",
            ),
        )
    ),
    max_size=12,
)
JOINED = st.one_of(
    MIXED_SCRIPTS,
    REPETITIVE_TEXT.map(lambda pairs: "".join(w + e for w, e in pairs)),
    LINES_OF_TEXT.map(lambda pairs: "".join(w + e for w, e in pairs)),
    PHRASE_TEXT.map("".join),
)


def measure(texts: Sequence[str]) -> np.ndarray:
    return measure_texts(*text_buffers(pa.array(texts, pa.large_string())))


def features_of(text: str) -> dict[str, float]:
    return dict(zip(FEATURES, measure([text])[0].tolist(), strict=True))


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def duplicates(items: Sequence[object], sizes: Sequence[int]) -> tuple[int, int]:
    later = [i for i, item in enumerate(items) if item in items[:i]]
    return len(later), sum(sizes[i] for i in later)


def covered_chars(words: Sequence[str], n: int, which: set[tuple[str, ...]]) -> int:
    covered = set()
    for i in range(len(words) - n + 1):
        if tuple(words[i : i + n]) in which:
            covered |= set(range(i, i + n))
    return sum(len(words[i]) for i in covered)


def expected_features(text: str) -> dict[str, float]:
    lines = [line.strip() for line in text.split("\n")]
    paragraphs = [p.split("\n") for p in re.split(r"\n{2,}", "\n".join(lines).strip("\n")) if p]
    lines = [line for line in lines if line]
    words = expected_words(text)
    segmented = [w for w in words if not is_unsegmented(w[0])]
    chars_of_lines, chars_of_words = sum(map(len, lines)), sum(map(len, words))
    dup_lines, dup_line_chars = duplicates(lines, [len(x) for x in lines])
    dup_paragraphs, dup_paragraph_chars = duplicates(
        paragraphs, [sum(map(len, p)) for p in paragraphs]
    )
    expected: dict[str, float] = {
        "num_chars": len(text),
        "num_words": len(words),
        "num_lines": len(lines),
        "num_paragraphs": len(paragraphs),
        "num_stop_words": len(set(words) & set(STOP_WORDS)),
        "num_stop_word_occurrences": sum(word in STOP_WORDS for word in words),
        "longest_word_chars": max(map(len, words), default=0),
        **expected_c4(lines),
        "c4_num_curly_braces": text.count("{"),
        "c4_num_lorem_ipsum_lines": sum(
            "lorem ipsum" in ascii_lower(CITATION.sub("", line)) for line in lines
        ),
        "mean_word_chars": ratio(sum(map(len, segmented)), len(segmented)),
        "unsegmented_frac": ratio(len(words) - len(segmented), len(words)),
        "alphabetic_word_frac": ratio(
            sum(any((c.isalpha() or is_unsegmented(c)) and c not in "ﾞﾟ" for c in w) for w in words),
            len(words),
        ),
        "hash_per_word": ratio(text.count("#"), len(words)),
        "ellipsis_per_word": ratio(text.count("...") + text.count("…"), len(words)),
        "newline_per_word": ratio(text.count("\n"), len(words)),
        "bullet_line_frac": ratio(sum(line[0] in "•‣▶◀◦■□▪▫–-*" for line in lines), len(lines)),
        "ellipsis_line_frac": ratio(sum(line.endswith(("…", "...")) for line in lines), len(lines)),
        "terminal_line_frac": ratio(sum(line[-1] in TERMINALS for line in lines), len(lines)),
        "short_line_frac": ratio(sum(len(line) <= 30 for line in lines), len(lines)),
        "dup_line_frac": ratio(dup_lines, len(lines)),
        "dup_line_char_frac": ratio(dup_line_chars, chars_of_lines),
        "dup_paragraph_frac": ratio(dup_paragraphs, len(paragraphs)),
        "dup_paragraph_char_frac": ratio(dup_paragraph_chars, chars_of_lines),
    }
    for n in range(2, 11):
        ngrams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        repeated = {ngram for ngram, count in ngrams.items() if count > 1}
        if n < 5:
            top = {ngram for ngram, _ in ngrams.most_common(1)} & repeated
            expected[f"top_{n}gram_char_frac"] = ratio(covered_chars(words, n, top), chars_of_words)
        else:
            expected[f"dup_{n}gram_char_frac"] = ratio(
                covered_chars(words, n, repeated), chars_of_words
            )
    return expected


def ascii_lower(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


CITATION = re.compile(r"\[[0-9]{0,63}\]|\[edit\]|\[citation needed\]")


def expected_c4(lines: Sequence[str]) -> dict[str, float]:
    """C4's clean_page line by line, in the order of its published code, with our splitter of
    sentences in place of punkt."""
    kept, sentences, forbidden = Counter[str](), Counter[str](), Counter[str]()
    for original in lines:
        if any(len(word) > 1000 for word in original.split()):
            continue
        line = CITATION.sub("", original)
        lower = ascii_lower(line)
        num_sentences = len(
            [piece for piece in re.split(r"""(?<=[.?!])["')\].?!]*\s+""", line) if piece.strip()]
        )
        for variant, least, words in (
            ("paper", 3, line.split()),
            ("code", 5, line.split()),
            ("fineweb", 3, original.split()),
        ):
            if variant != "fineweb" and (
                not line.endswith((".", "?", "!", '"')) or line.endswith("...")
            ):
                continue
            if len(words) < least:
                continue
            # The code looks for lorem ipsum, then for javascript, which drops the line, then for
            # braces.
            forbidden[variant] += "lorem ipsum" in lower or (
                "javascript" not in lower and "{" in line
            )
            if not any(phrase in lower for phrase in c4.BOILERPLATE):
                kept[variant] += 1
                sentences[variant] += num_sentences
    return {
        "c4_num_sentences": sentences["paper"],
        "c4_code_num_sentences": sentences["code"],
        "c4_code_num_forbidden_lines": forbidden["code"],
        "c4_fineweb_num_sentences": sentences["fineweb"],
        "c4_fineweb_num_forbidden_lines": forbidden["fineweb"],
        "c4_kept_line_frac": ratio(kept["paper"], len(lines)),
        "c4_code_kept_line_frac": ratio(kept["code"], len(lines)),
        "c4_fineweb_kept_line_frac": ratio(kept["fineweb"], len(lines)),
    }


@settings(max_examples=300, deadline=None)
@given(JOINED)
@example(
    'one two three.\nSee the (end.) Is it? "Yes!"\nour use of Cookies and more.\n\nlorem ipsum is'
    " here."
)
@example("a b a b a b a b a b a b a b a b a b a b a b c")
@example("0 0 []")
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
    size = 1 << 20
    text = (
        "".join(unit % i for i in range(size // 10)) if "%" in unit else unit * (size // len(unit))
    )
    measure(["warm"])
    started = time.process_time()
    found = features_of(text)
    # A quadratic step over a million items takes hours; the margin is for slow machines.
    assert time.process_time() - started < 5
    assert found["num_chars"] == len(text)


def test_ten_megabytes_without_a_space_are_one_word() -> None:
    measure(["warm"])
    started = time.process_time()
    found = features_of("x" * 10_000_000)
    assert time.process_time() - started < 5
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
def test_a_document_of_sixteen_megabytes_in_one_line_takes_seconds() -> None:
    line = "word of one line, 中文 and ไทย; number %d. "
    text = "".join(line % i for i in range((16 << 20) // len(line.encode())))
    measure(["warm"])
    started = time.process_time()
    assert features_of(text)["num_lines"] == 1
    assert time.process_time() - started < 16  # 1 MB/s, where ordinary text has 60


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
