"""Extracts the text of Jupyter notebooks (nbformat): prose as it is written, code in fences.

Left out: outputs of cells, and raw cells.
"""

from __future__ import annotations

import json
from typing import Any

from tasks.ingest.decoding import decode
from tasks.readers.pages import BrokenPage, PageText


def read(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """All cells of prose and code in their order, with blank lines between them."""
    text, encoding = decode(data, charset, False)
    try:
        notebook = json.loads(text)
        # Version 3 has its cells in worksheets.
        sheets = notebook.get("worksheets") or [notebook]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        kernel = (notebook.get("metadata") or {}).get("kernelspec") or {}
        language = kernel.get("language") or ""
        blocks = [block for cell in cells if (block := _block(cell, str(language)))]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenPage(f"unreadable notebook: not one ({type(error).__name__})") from error
    return PageText("\n\n".join(blocks), None, encoding.name, encoding.repaired)


def _block(cell: dict[str, Any], language: str) -> str:
    source = cell.get("source") or cell.get("input") or ""
    text = ("".join(source) if isinstance(source, list) else str(source)).strip("\n")
    if cell["cell_type"] == "code" and text.strip():
        return f"```{cell.get('language', language)}\n{text}\n```"
    return text if cell["cell_type"] in ("markdown", "heading") else ""
