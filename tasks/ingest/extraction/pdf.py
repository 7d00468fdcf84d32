"""Extracts the text layer of PDF files, by PDFium, in the order of pages.

Lines stay lines, but those whose last word is broken by a hyphen are joined to the next. A file of
pictures has no text layer, and so no text.
"""

from __future__ import annotations

import re

from tasks.readers.pages import BrokenPage, PageText

LINE_END_HYPHEN = re.compile("[\x02\ufffe](?:\r?\n)?(?=(.?))")
"""What PDFium writes for a hyphen at the end of a line, and for the end of the line."""


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """All pages, with blank lines between them."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
        pages = [page.get_textpage().get_text_bounded() for page in document]
    except pypdfium2.PdfiumError as error:
        raise BrokenPage(f"unreadable pdf: {str(error).rstrip('.')}") from error
    title = document.get_metadata_dict().get("Title", "").strip() or None
    return PageText("\n\n".join(map(join_words, pages)), title)


def join_words(page: str) -> str:
    """The text of a page with words that were broken joined; before a capital the hyphen stays."""
    text = LINE_END_HYPHEN.sub(lambda hyphen: "" if hyphen[1].islower() else "-", page)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()
