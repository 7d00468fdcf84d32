"""Extracts the text of LaTeX files, by pylatexenc: macros and accents become text, formulas stay as
they are written, comments and the preamble are left out. No other file is included."""

from __future__ import annotations

import re
from typing import Any

from tasks.ingest.decoding import decode
from tasks.readers.pages import PageText

BODY = re.compile(r"\\begin\s*\{document\}(.*?)(?:\\end\s*\{document\}|\Z)", re.DOTALL)

HEADINGS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")
LEFT_OUT = (
    *("cite", "citet", "citep", "ref", "eqref", "autoref", "cref", "Cref", "pageref", "label"),
    *("includegraphics", "maketitle", "today"),
)
"""Macros that pylatexenc writes in signs of its own (headings in capitals behind a §, <ref>), and
those that hold the day of the run."""
ARGUMENTS = {"href": "{{", "hyperref": "[{"}
ENVIRONMENTS = {"thebibliography": "{", "minipage": "[{", "lstlisting": "[", "wrapfigure": "{{"}
"""Macros and environments whose arguments pylatexenc does not know: optional [ and required {."""


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

    plain = [MacroTextSpec(name, "\n\n%(3)s\n\n") for name in HEADINGS]
    plain += [MacroTextSpec(name, "") for name in LEFT_OUT]
    plain += [MacroTextSpec(name, "%(2)s") for name in ARGUMENTS]
    plain += [MacroTextSpec("title", "\n\n%(1)s\n\n"), MacroTextSpec("verb", _verbatim)]
    blocks = [EnvironmentTextSpec("verbatim", _verbatim)]
    blocks += [EnvironmentTextSpec("comment", discard=True)]
    texts = get_default_latex_context_db()
    texts.add_context_category("plain", plain, blocks, prepend=True)
    arguments = known_arguments()
    arguments.add_context_category(
        "plain",
        [std_macro(name, form) for name, form in ARGUMENTS.items()],
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
