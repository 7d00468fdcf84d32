"""Writes values as inline HTML: names from the data, code, amounts; and makes characters visible.

All other HTML stands in `templates/` and in `svg.py`. Data never goes into the text of a Markup,
only into its `format` and `join`, which escape it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup

from llm_core.printing import ACTING
from tasks.report.quantities import count

_UNSEEN = re.compile(f"[{ACTING}\u200e\u200f\ufffe\uffff]")


def visible(text: str) -> str:
    """Text whose control characters, bidi overrides and lone surrogates can be seen and can do
    nothing."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def foreign(value: object) -> Markup:
    """A name or text from the data, kept from reordering what stands around it."""
    return Markup("<bdi>{}</bdi>").format(str(value))


def listed(names: Iterable[str]) -> Markup:
    return Markup(", ").join(foreign(name) for name in names)


def breakable(name: str) -> Markup:
    """A name from configuration, which may break where it is joined."""
    return Markup("_<wbr>").join(name.split("_"))


def code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(breakable(text))


def hashed(text: str) -> Markup:
    """A digest or identifier, which never breaks."""
    return Markup('<code class="hash">{}</code>').format(text)


def aside(text: str) -> Markup:
    return Markup('<span class="aside">{}</span>').format(text)


def amount(value: float | None, largest: float) -> Markup:
    """A count in a table cell, with a small bar that shows it next to the largest of its column."""
    share = 0.0 if value is None or largest <= 0 else min(max(value / largest, 0.0), 1.0)
    bar = '<i class="inline-bar" style="--w:{:.1f}%"></i><span class="amount">{}</span>'
    return Markup(bar).format(100 * share, count(value))
