"""Extracts the text of LaTeX files, by pylatexenc: macros and accents become text, formulas stay as
they are written, comments and the preamble are left out. No other file is included."""

from __future__ import annotations

import re
from typing import Any

from tasks.ingest.decoding import decode
from tasks.readers.pages import PageText

BODY = re.compile(r"\\begin\s*\{document\}(.*?)(?:\\end\s*\{document\}|\Z)", re.DOTALL)

SECTIONS = ("section", "subsection", "subsubsection")
HEADINGS = ("part", "chapter", *SECTIONS, "paragraph", "subparagraph")
CITATIONS = ("cite", "citet", "citep", "citealp", "nocite", "parencite", "textcite", "autocite")
REFERENCES = ("ref", "eqref", "autoref", "cref", "Cref", "pageref", "label")
MACROS = {
    **dict.fromkeys(HEADINGS, ("*[{", "\n\n%(3)s\n\n")),
    **dict.fromkeys(CITATIONS, ("*[[{", "")),
    **dict.fromkeys(REFERENCES, ("*{", "")),
    **dict.fromkeys(("maketitle", "today"), ("", "")),
    "bibitem": ("[{", ""),
    "bibliographystyle": ("{", ""),
    "caption": ("*[{", "%(3)s"),
    "href": ("{{", "%(2)s"),
    "hyperref": ("[{", "%(2)s"),
    "includegraphics": ("*[[{", ""),
    "title": ("[{", "\n\n%(2)s\n\n"),
}
"""{macro: (its arguments, its text)}, where pylatexenc does not know the arguments, writes signs of
its own (headings in capitals behind a §, <ref>), or the day of the run."""
ENVIRONMENTS = {"thebibliography": "{", "minipage": "[{", "lstlisting": "[", "wrapfigure": "{{"}
"""{environment: arguments that are not its text}; [ is optional, { is required."""


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """The body of a document, or all of a file that has none."""
    from pylatexenc.latex2text import (
        EnvironmentTextSpec,
        LatexNodes2Text,
        MacroTextSpec,
        get_default_latex_context_db,
    )
    from pylatexenc.latexwalker import get_default_latex_context_db as known_arguments
    from pylatexenc.macrospec import std_environment, std_macro

    macros = [MacroTextSpec(name, text) for name, (_, text) in MACROS.items()]
    macros.append(MacroTextSpec("verb", _verbatim))
    blocks = [EnvironmentTextSpec("verbatim", _verbatim)]
    blocks += [EnvironmentTextSpec("comment", discard=True)]
    texts = get_default_latex_context_db()
    texts.add_context_category("plain", macros, blocks, prepend=True)
    arguments = known_arguments()
    arguments.add_context_category(
        "plain",
        [std_macro(name, form) for name, (form, _) in MACROS.items()],
        [std_environment(name, form) for name, form in ENVIRONMENTS.items()],
        prepend=True,
    )
    source, encoding = decode(data, charset, False)
    body = BODY.search(source)
    converter = LatexNodes2Text(texts, math_mode="verbatim", strict_latex_spaces=True)
    converted = converter.latex_to_text(body[1] if body else source, latex_context=arguments)
    text = "\n".join(line.strip() for line in converted.split("\n")).strip()
    return PageText(re.sub(r"\n{3,}", "\n\n", text), None, encoding.name, encoding.repaired)


def _verbatim(node: Any) -> str:
    return str(node.nodeargd.verbatim_text)
