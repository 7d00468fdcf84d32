"""Names what C4 takes out: numbers, phrases, reasons and the parameters of its published readings.

Raffel et al. 2020, section 2.2; `tasks.kernels.quality.c4` says what the readings are.
"""

from __future__ import annotations

REASONS = ("C4_LONG_WORD", "C4_NO_END_MARK", "C4_TOO_FEW_WORDS", "C4_JAVASCRIPT", "C4_POLICY")
"""Reasons for which a line goes, in the order of C4's published code."""

LONG_WORD_CHARS = 1000
READINGS = {"c4_paper": (3, True), "c4_code": (5, True), "c4_fineweb": (3, False)}
"""{reading: (least words of a line, whether it needs an end mark)}. Words are counted without
citation marks where ends are asked for, as in the codes."""
SCRIPT_PHRASE = "javascript"
POLICY_PHRASES = (
    *("terms of use", "privacy policy", "cookie policy"),
    *("uses cookies", "use of cookies", "use cookies"),
)
CITATION_MARKS = ("[edit]", "[citation needed]")
MAX_CITATION_DIGITS = 63
"""Digits of the longest `[12]` that is a citation mark."""
