"""Splits text into units in plain Python: the other opinion in tests of the kernels."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

MIXED_SCRIPTS = st.text(
    st.one_of(
        st.sampled_from("aZé_9'’ \n\t.,#-…\u200b\u200d\u00ad"),
        st.sampled_from("中文字。々〇ひらカター゙ｶﾞ"),
        st.sampled_from("ไทยที่ນີ້ខ្មែរမြန်မာ"),
        st.sampled_from("עברית नमस्ते İßΣς한국어𝔘𝟙𠀀🙂\U000e0101"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=60,
)


def is_unsegmented(char: str) -> bool:
    scripts = (
        "CJK UNIFIED",
        "CJK COMPATIBILITY IDEOGRAPH",
        "HIRAGANA",
        "KATAKANA",
        "HALFWIDTH KATAKANA",
    )
    scripts += (
        "THAI ",
        "LAO ",
        "KHMER ",
        "MYANMAR ",
        "IDEOGRAPHIC NUMBER ZERO",
        "IDEOGRAPHIC ITERATION",
    )
    scripts += ("IDEOGRAPHIC CLOSING", "HENTAIGANA")
    category = unicodedata.category(char)
    in_script = unicodedata.name(char, "").startswith(scripts)
    return (in_script and not is_mark(char) and category in ("Lo", "Lm", "Nl")) or 0x20000 <= ord(
        char
    ) <= 0x3FFFD


def is_mark(char: str) -> bool:
    joiner = (
        char in "\u00ad\u200c\u200d\u2060ﾞﾟ"
        or 0xFE00 <= ord(char) < 0xFE10
        or 0xE0100 <= ord(char) < 0xE01F0
    )
    return joiner or unicodedata.category(char)[0] == "M"


def is_word_char(char: str) -> bool:
    return (
        is_mark(char) or unicodedata.category(char)[0] in "LN" or unicodedata.category(char) == "Pc"
    )


def expected_words(text: str) -> list[str]:
    words: list[str] = []
    inside = ""  # "", "word" or "unit": what the previous character belongs to
    for i, char in enumerate(text):
        follows = text[i + 1] if i + 1 < len(text) else ""
        if is_unsegmented(char):
            words.append(char)
            inside = "unit"
        elif inside == "unit" and is_mark(char):
            words[-1] += char
        elif is_word_char(char):
            if inside == "word":
                words[-1] += char
            else:
                words.append(char)
            inside = "word"
        elif (
            inside == "word"
            and char in "'’"
            and follows
            and not is_unsegmented(follows)
            and follows.isalpha()
        ):
            words[-1] += char
        else:
            inside = ""
    return words
