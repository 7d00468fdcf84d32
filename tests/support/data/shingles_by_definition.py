"""Hashes the shingles of a text in plain Python: the other opinion in tests of the kernels."""

from __future__ import annotations

import numpy as np

from tasks.kernels.text.chars import SPACE, char_classes, document_units, fold_table

TABLES = (char_classes(), fold_table())
MASK = (1 << 64) - 1


def encode(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8"), np.uint8)


def units_by_definition(text: str | bytes) -> list[int]:
    buf = encode(text) if isinstance(text, str) else np.frombuffer(text, np.uint8)
    starts, stops, hashes = (np.zeros(buf.size + 1, t) for t in (np.int64, np.int64, np.uint64))
    return hashes[: document_units(buf, 0, buf.size, *TABLES, starts, stops, hashes)].tolist()


def units_and_signs_by_definition(text: str) -> list[int]:
    """The units of what stands between blanks, one after another; where there is none, the comment
    sign that stands there at the beginning of a line."""
    units, in_comment, at = [], False, 0
    for piece in "".join(" " if TABLES[0][ord(char)] == SPACE else char for char in text).split(
        " "
    ):
        found = units_by_definition(piece)
        if piece and not found:
            before = text[:at].rstrip(" \t")
            if before and before[-1] not in "\r\n":
                in_comment = in_comment and not piece.endswith("/")
            else:
                is_sign = piece[0] in "#;%\"'!>." or piece == "--" or piece[:2] in ("//", "/*")
                in_comment = in_comment or piece[:2] == "/*"
                if is_sign or (piece[0] == "*" and in_comment):
                    found = [mix(_sign_hash(piece))]
                in_comment = in_comment and piece[:2] != "*/"
        units.extend(found)
        at += len(piece) + 1
    return units


def _sign_hash(piece: str) -> int:
    h = 0xCBF29CE484222325
    for char in piece:
        h = ((h ^ int(TABLES[1][ord(char)])) * 0x100000001B3) & MASK
    return h


def mix(h: int) -> int:
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
    return h ^ (h >> 31)


def shingles_by_definition(text: str, n: int) -> list[int]:
    """Big-integer arithmetic, from the units of the general walker."""
    units = units_and_signs_by_definition(text)
    result = []
    for i in range(len(units) - n + 1):
        h = 0
        for unit in units[i : i + n]:
            h = (h * 0x9E3779B97F4A7C15 + unit) & MASK
        result.append(mix(h))
    return result
