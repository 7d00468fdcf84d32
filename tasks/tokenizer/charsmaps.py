"""Checks whether the table of character replacements in a tokenizer would stop the library that
reads it.

`tokenizers` takes the `Precompiled` normalizer of sentencepiece on trust: a table that is cut off
or damaged makes it panic, when it is read or at the first text that leads out of it. The table is
base 64 of: bytes of a trie (uint32, little-endian), the trie, and replacements in UTF-8, each ended
by NUL. The trie is a double array (Yata, Morita, Aoe 2007; darts-clone): a unit of 32 bits has a
label, an offset to the children, and whether the first of these is a leaf, whose value is a place
among the replacements. Every unit that some text could reach is walked once, whole levels at a
time. Left out: whether the replacements make sense.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import numpy as np

_BYTES = np.arange(1, 256)


def damaged_charsmap(normalizer: Any) -> str | None:
    """What is wrong with the first damaged table in the `normalizer` of a `tokenizer.json`, or
    None."""
    for table in _charsmaps(normalizer):
        try:
            content = base64.b64decode(table, validate=True)
        except (binascii.Error, TypeError, ValueError):
            return "it is not base 64"
        if found := _damage(content):
            return found
    return None


def _charsmaps(normalizer: Any) -> Iterator[Any]:
    if isinstance(normalizer, dict):
        if normalizer.get("type") == "Precompiled":
            yield normalizer.get("precompiled_charsmap")
        members = normalizer.get("normalizers")
        for member in members if isinstance(members, list) else ():
            yield from _charsmaps(member)


def _damage(content: bytes) -> str | None:
    size = int.from_bytes(content[:4], "little")
    if len(content) < 8 or size % 4 or not 4 <= size <= len(content) - 4:
        return f"a trie of {size} bytes in {len(content)}"
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    replacements = content[4 + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        return f"replacements that are not UTF-8 ({error.reason})"
    # As in darts-clone: bit 9 says that the offset counts in steps of 256; bit 31 marks a value,
    # which no byte equals.
    offsets = units >> 10 << ((units & 1 << 9) >> 6)
    labels = units & (1 << 31 | 0xFF)
    seen = np.zeros(len(units), bool)
    bases = offsets[:1]
    while len(bases):
        children = bases[:, None] ^ _BYTES
        if bases.max() >= len(units) or children.max() >= len(units):
            return "a trie that leads out of itself"
        nodes = np.unique(children[labels[children] == _BYTES])
        nodes = nodes[~seen[nodes]]
        seen[nodes] = True
        bases = nodes ^ offsets[nodes]
        leaves = bases[units[nodes] >> 8 & 1 == 1]
        if len(leaves) and leaves.max() >= len(units):
            return "a trie that leads out of itself"
        for place in (units[leaves] & (1 << 31) - 1).tolist():
            if place > len(replacements) or (
                place < len(replacements) and replacements[place] & 0xC0 == 0x80
            ):
                return "a replacement that is not there"
    return None
