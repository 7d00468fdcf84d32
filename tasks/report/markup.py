"""HTML and SVG as values: how does text get into the page without ever becoming markup?

`tag` escapes every child and attribute that is not already `Markup`, so a section cannot forget to.
Characters that would be invisible or would turn the page around (controls, bidi overrides, lone
surrogates) are shown by their code point. What it leaves out: templates, streaming, validation of
tag names.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from llm_core.printing import ACTING

_UNSEEN = re.compile(f"[{ACTING}\u200e\u200f\ufffe\uffff]")
_VOID = frozenset(("meta", "br", "hr", "col", "wbr"))


class Markup(str):
    """Text that is HTML already and goes into the page as it is. Only this module makes it from
    strings."""

    __slots__ = ()


def escape(value: Any) -> Markup:
    """Any value as harmless HTML text; Markup stays what it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(visible(str(value)), quote=True))


def visible(text: str) -> str:
    """Text whose control characters can be seen and can do nothing."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def join(children: Iterable[Any], separator: str = "") -> Markup:
    """Children one after another, escaped; None and nested lists are allowed, so sections can leave
    pieces out."""
    return Markup(escape(separator).join(_flatten(children)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """One element. `class_` stands for class, `_` in other names for `-`; None or False leaves an
    attribute out."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join(children)}</{name}>")


def constant(source: str) -> Markup:
    """A literal of this program's own source (a style sheet, a doctype) as markup. Never give it
    data."""
    return Markup(source)


def foreign(value: Any) -> Markup:
    """A name or text from the data, kept from reordering what stands around it."""
    return tag("bdi", str(value))


def _flatten(children: Iterable[Any]) -> list[Markup]:
    flat: list[Markup] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, (list, tuple)):
            flat.extend(_flatten(child))
        else:
            flat.append(escape(child))
    return flat


def _plain(value: Any) -> Any:
    """Coordinates with one decimal, without the trailing zero: pages stay small and equal
    everywhere."""
    if isinstance(value, float):
        return f"{round(value, 1) + 0.0:.6g}"
    return "true" if value is True else value
