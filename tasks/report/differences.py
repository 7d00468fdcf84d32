"""Two similar excerpts with the words marked that only one of them has.

Words are compared in order (Ratcliff and Obershelp, difflib); scripts without spaces are compared
character by character. How a text continues after its excerpt is not known, so the end of
the other one is not marked there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from markupsafe import Markup, escape

MAX_CHARS = 2000
"""Excerpts are short by contract; the comparison is quadratic, so a longer one is cut."""
EXCERPT_CHARS = 300
"""What `tasks.documents.duplicate_examples` keeps of a text; imported from there, all that it
imports would be in the key of reports."""
_UNIT = re.compile(
    r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|\w+|\s+|.", re.DOTALL
)


def mark_differences(first: str, second: str) -> tuple[Markup, Markup]:
    """Both texts as markup; what the other lacks stands in <mark>."""
    first_goes_on, second_goes_on = len(first) >= EXCERPT_CHARS, len(second) >= EXCERPT_CHARS
    a, b = (_UNIT.findall(text[:MAX_CHARS]) for text in (first, second))
    left: list[Markup] = []
    right: list[Markup] = []
    for operation, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        same, last = operation == "equal", (a1, b1) == (len(a), len(b))
        left.append(_piece(a[a0:a1], same or (last and second_goes_on)))
        right.append(_piece(b[b0:b1], same or (last and first_goes_on)))
    return Markup().join(left), Markup().join(right)


def _piece(units: Iterable[str], same: bool) -> Markup:
    text = "".join(units)
    words = text.strip()
    if same or not words:
        return escape(text)
    # Spaces around a difference are not the difference.
    before, after = text.split(words, 1)
    return Markup("{}<mark>{}</mark>{}").format(before, words, after)
