"""Extracts the text of LaTeX files, by pylatexenc: macros and accents become text, formulas stay as
they are written, comments and the preamble are left out. No other file is included."""

from __future__ import annotations

import re

from tasks.ingest.decoding import decode
from tasks.readers.pages import PageText

BODY = re.compile(r"\\begin\s*\{document\}(.*?)(?:\\end\s*\{document\}|\Z)", re.DOTALL)

HEADINGS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")
REFERENCES = ("cite", "citet", "citep", "ref", "eqref", "autoref", "cref", "pageref", "label")
"""Macros that pylatexenc writes in signs of its own: in capitals behind a §, and as <ref>."""


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """The body of a document, or all of a file that has none."""
    from pylatexenc.latex2text import (
        LatexNodes2Text,
        MacroTextSpec,
        get_default_latex_context_db,
    )

    plain = [MacroTextSpec(name, "\n\n%(3)s\n\n") for name in HEADINGS]
    plain += [MacroTextSpec(name, "") for name in REFERENCES]
    macros = get_default_latex_context_db()
    macros.add_context_category("plain", plain, prepend=True)
    source, encoding = decode(data, charset, False)
    body = BODY.search(source)
    converter = LatexNodes2Text(macros, math_mode="verbatim", strict_latex_spaces=True)
    converted = converter.latex_to_text(body[1] if body else source)
    text = "\n".join(line.strip() for line in converted.split("\n")).strip()
    return PageText(re.sub(r"\n{3,}", "\n\n", text), None, encoding.name, encoding.repaired)
