"""Tells whether a text has anything to see: white space and zero-width characters alone are
nothing."""

from __future__ import annotations

import re

VISIBLE = re.compile(
    "[^\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]"
)
"""A character that shows: neither white space nor zero-width."""


def shows(text: str) -> bool:
    """Whether a text has a character that shows."""
    return VISIBLE.search(text) is not None
