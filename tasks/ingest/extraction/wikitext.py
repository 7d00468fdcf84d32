"""Extracts the text of wiki pages, by mwparserfromhell: links become their words. Left out:
templates, files, categories, references, formulas."""

from __future__ import annotations

import re
from typing import Any

from tasks.ingest.decoding import decode
from tasks.readers.pages import PageText

NOT_TEXT = re.compile(
    r"^\s*:?(?:file|image|category)\s*:|\|\s*(?:thumb|thumbnail|frameless)\s*(?:\||$)", re.I
)
LEFT_OUT = ("ref", "references", "gallery", "imagemap", "timeline", "score")
MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """The text of a page; headings are lines of their own."""
    import mwparserfromhell

    source, _ = decode(data, charset or "utf-8", False)
    page = mwparserfromhell.parse(source)
    # The library's own `remove` looks through the whole page for each node.
    waiting = [page]
    while waiting:
        code = waiting.pop()
        code.nodes = [node for node in code.nodes if not _is_left_out(node)]
        waiting.extend(child for node in code.nodes for child in node.__children__())
    lines = MAGIC_WORD.sub("", page.strip_code()).split("\n")
    text = "\n".join(line.strip() for line in lines).strip()
    return PageText(re.sub(r"\n{3,}", "\n\n", text))


def _is_left_out(node: Any) -> bool:
    from mwparserfromhell.nodes import Tag, Template, Wikilink

    if isinstance(node, Wikilink):
        return NOT_TEXT.search(f"{node.title}|{node.text or ''}") is not None
    if isinstance(node, Tag):
        return str(node.tag).strip().lower() in LEFT_OUT
    return isinstance(node, Template)
