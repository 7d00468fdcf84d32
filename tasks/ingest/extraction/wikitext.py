"""Extracts the text of wiki pages, by mwparserfromhell: links become their words. Left out:
templates, files, categories, references, formulas."""

from __future__ import annotations

import re

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
    for link in page.filter_wikilinks(recursive=True):
        # A link within one that was removed is gone already.
        if NOT_TEXT.search(f"{link.title}|{link.text or ''}") and page.contains(link):
            page.remove(link)
    for tag in page.filter_tags(recursive=True):
        if str(tag.tag).strip().lower() in LEFT_OUT and page.contains(tag):
            page.remove(tag)
    lines = MAGIC_WORD.sub("", page.strip_code()).split("\n")
    text = "\n".join(line.strip() for line in lines).strip()
    return PageText(re.sub(r"\n{3,}", "\n\n", text))
