"""Numbers C4's rules on lines: phrases and names of reasons that the kernel and the cuts of lines
agree on.

Raffel et al. 2020, section 2.2; `tasks.kernels.quality.c4` says what the readings are.
"""

from __future__ import annotations

LONG_WORD, NO_END_MARK, TOO_FEW_WORDS, JAVASCRIPT, POLICY = (
    "C4_LONG_WORD",
    "C4_NO_END_MARK",
    "C4_TOO_FEW_WORDS",
    "C4_JAVASCRIPT",
    "C4_POLICY",
)
"""Reasons for which a line goes, in the order of C4's published code."""

LONG_WORD_CHARS = 1000
MIN_LINE_WORDS = {"c4_paper": 3, "c4_code": 5, "c4_fineweb": 3}
SCRIPT_PHRASE = "javascript"
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
CITATION_MARKS = ("[edit]", "[citation needed]")
MAX_CITATION_DIGITS = 63
"""Digits of the longest `[12]` that is a citation mark."""
