"""Marks at the beginnings and ends of lines, and which paragraphs came before.

A line is what stands between newlines, trimmed of white space; blank lines are none. A paragraph is a maximal run of lines with
no blank line between, and equals another when their lines do. Exact: equality is by content, not by hash.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.interning import intern_pair, pair_key, table_mask

BULLETS = "•‣▶◀◦■□▪▫–-*"
"""RedPajama's ten, `-` of DataTrove and `*` of dolma."""

TERMINALS = ".?!…‼⁇⁈⁉。．｡！？؟۔।॥։;׃።፧፨᠃᠉၊။។៕།༎᙮" + "\"'”’」』"
"""Ends of sentences in many scripts, and the quotation marks that may close one (C4 has the ASCII ones)."""

_DOT = ord(".")


@inner
def ends_in_dots(buf, start, stop):  # type: ignore[no-untyped-def]
    """Whether a span ends in `...`."""
    return stop - start >= 3 and buf[stop - 1] == _DOT and buf[stop - 2] == _DOT and buf[stop - 3] == _DOT


@inner
def duplicate_paragraphs(lines, num_lines, counts, table, generation):  # type: ignore[no-untyped-def]
    """(paragraphs that came before, their characters). `counts` has room for one number more than lines.

    lines: as tasks.kernels.scan fills them. A paragraph is a path in the tree whose edges are line ids; equal paragraphs end in
    the same node.
    """
    chars, ids, paragraphs = lines
    mask = table_mask(num_lines)
    num_nodes, dup, dup_chars = np.int64(1), 0, 0
    for i in range(num_lines + 1):
        counts[i] = 0
    node, paragraph_chars = np.int64(0), 0
    for i in range(num_lines):
        child = intern_pair(pair_key(node, ids[i]), num_nodes, table, generation, mask)
        num_nodes += child == num_nodes
        node = child
        paragraph_chars += chars[i]
        if i + 1 == num_lines or paragraphs[i + 1] != paragraphs[i]:
            if counts[node] > 0:
                dup += 1
                dup_chars += paragraph_chars
            counts[node] += 1
            node, paragraph_chars = np.int64(0), 0
    return dup, dup_chars
