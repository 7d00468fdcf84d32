"""Names the features that are measured of every document, in the order of their columns.

The names alone, so that a configuration can be checked without compiling a kernel;
tasks.kernels.quality.features says what they mean.
"""

from __future__ import annotations

COUNTS = (
    *("num_chars", "num_words", "num_lines", "num_paragraphs", "num_stop_words"),
    *("longest_word_chars", "c4_num_sentences", "c4_num_curly_braces", "c4_num_lorem_ipsum_lines"),
    *("c4_code_num_sentences", "c4_code_num_forbidden_lines"),
    *("c4_fineweb_num_sentences", "c4_fineweb_num_forbidden_lines", "num_stop_word_occurrences"),
)
FRACTIONS = (
    *("mean_word_chars", "unsegmented_frac", "alphabetic_word_frac"),
    *("hash_per_word", "ellipsis_per_word", "newline_per_word", "bullet_line_frac"),
    *("ellipsis_line_frac", "terminal_line_frac", "short_line_frac"),
    *("dup_line_frac", "dup_line_char_frac", "dup_paragraph_frac", "dup_paragraph_char_frac"),
    *("c4_kept_line_frac", "c4_code_kept_line_frac", "c4_fineweb_kept_line_frac"),
    *(f"top_{n}gram_char_frac" for n in range(2, 5)),
    *(f"dup_{n}gram_char_frac" for n in range(5, 11)),
    *("body_dup_line_frac", "body_dup_line_char_frac", "bare_line_frac", "punctuation_frac"),
    *("symbol_frac", "digit_frac", "mojibake_frac", "other_script_frac", "sign_frac"),
    "mean_sentence_words",
)
FEATURES = COUNTS + FRACTIONS
"""Columns of a feature row, in order. `mean_word_chars` is over words only, and 0 where all units
are unsegmented letters."""
