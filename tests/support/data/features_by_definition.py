"""Computes the features of quality in plain Python, and draws texts that have them.

The other opinion in tests of the kernels: every feature is read off its definition.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st

from tasks.definitions.scripts import SCRIPTS
from tasks.kernels.quality import c4
from tasks.kernels.quality.features import STOP_WORDS
from tasks.kernels.text.scripts import script_table
from tests.support.data.units_by_definition import MIXED_SCRIPTS, expected_words, is_unsegmented

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
    expected |= expected_marks(text, words, lines)
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


def expected_marks(text: str, words: Sequence[str], lines: Sequence[str]) -> dict[str, float]:
    solid = [
        char
        for before, char in zip(" " + text, text, strict=False)
        if not char.isspace() and (char != before or unicodedata.category(char)[0] not in "PS")
    ]
    category = [unicodedata.category(char)[0] for char in solid]
    copies, last, nearest = Counter(lines), dict[str, int](), dict[str, int]()
    for i, line in enumerate(lines):
        nearest[line] = min(nearest.get(line, 16), i - last.get(line, -16))
        last[line] = i
    body = [line for line in lines if copies[line] < 3 or nearest[line] < 16]
    dup, dup_chars = duplicates(body, list(map(len, body)))
    ends = re.findall(r"""[.?!]["')\].?!]*\s|[‼⁇⁈⁉。．｡！？؟۔।॥։።፧፨᠃᠉၊།༎᙮៕]""", text)
    scripts = Counter(
        "HAN" if script in ("KANA", "HANGUL") else script
        for char in text[:1000]
        if (script := SCRIPTS[script_table()[ord(char)]]) != "OTHER"
    )
    damage = re.findall(r"[ÂÃÐÑ][\x80-\x9f¡-ª¬®-º¼-¿]|â€|[\x80-\x9f\ufffd]", text)
    return {
        "body_dup_line_frac": ratio(dup, len(body)),
        "body_dup_line_char_frac": ratio(dup_chars, sum(map(len, body))),
        "bare_line_frac": ratio(
            sum(len(line) <= 30 and line[-1] not in TERMINALS for line in lines), len(lines)
        ),
        "punctuation_frac": ratio(category.count("P"), len(solid)),
        "symbol_frac": ratio(category.count("S"), len(solid)),
        "digit_frac": ratio(sum(char in "0123456789" for char in solid), len(solid)),
        "sign_frac": ratio(
            sum(c in "PS" for c in category) + sum(c in "0123456789" for c in solid), len(solid)
        ),
        "mojibake_frac": ratio(sum(map(len, damage)), len(text)),
        "other_script_frac": ratio(
            sum(scripts.values()) - max(scripts.values(), default=0), sum(scripts.values())
        ),
        "mean_sentence_words": ratio(len(words), len(ends) + 1),
    }


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
