"""Hashes the shingles of a text in plain Python: the other opinion in tests of the kernels."""

from __future__ import annotations

import re
from itertools import takewhile

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
    sign that stands there at the beginning or the end of a line."""
    units, in_comment, at, left_end, left, right_end, right = [], False, 0, 0, "", 0, ""
    for piece in "".join(" " if TABLES[0][ord(char)] == SPACE else char for char in text).split(
        " "
    ):
        found = units_by_definition(piece)
        if piece and not found:
            before, behind = text[:at].rstrip(" \t"), text[at + len(piece) :].lstrip(" \t\r")
            is_sign = False
            if not before or before[-1] in "\r\n":
                is_sign = piece[0] in "#;%\"'!>." or piece == "--" or piece[:2] in ("//", "/*")
                in_comment = in_comment or piece[:2] == "/*"
                is_sign = is_sign or (piece[0] == "*" and in_comment)
                if not is_sign and piece[0].isascii() and piece[0] not in "/<":
                    if at >= left_end:
                        lines = _paragraph(text[len(before) :])
                        left_end = len(before) + sum(map(len, lines))
                        left = piece[0] if _is_commented(lines, piece[0]) else ""
                    is_sign = piece[0] == left
            in_comment = in_comment and (piece == "/*/" or not piece.endswith("*/"))
            if not is_sign and piece[-1].isascii() and (not behind or behind[0] == "\n"):
                if at >= right_end:
                    lines = _paragraph(text[at:])
                    right_end = at + sum(map(len, lines))
                    signed = [line for line in lines if line.rstrip().endswith(piece[-1])]
                    is_side = len(signed) >= max(3, 0.75 * len(lines))
                    right = piece[-1] if is_side else ""
                is_sign = piece[-1] == right
            if is_sign:
                found = [mix(_sign_hash(piece))]
        units.extend(found)
        at += len(piece) + 1
    return units


def _paragraph(rest: str) -> list[str]:
    """The lines up to the first blank one."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", rest)
    return list(takewhile(lambda line: line.strip(" \t\r\n"), lines))


def _is_commented(lines: list[str], sign: str) -> bool:
    """Whether the lines of a paragraph stand behind this sign and run on."""
    signed = [i for i, line in enumerate(lines) if line.strip(" \t\r").startswith(sign)]
    run_on = [
        i
        for i in signed
        if re.fullmatch(r"[ \t\r]*[^\0- ]+[ \t\r]*\n?", lines[i])
        or (
            i
            and len(lines[i - 1].rstrip("\n").encode()) >= 40
            and re.match(r"[ \t\r]*[^\0- ]+[ \t\r]+[a-z]", lines[i])
        )
    ]
    return len(signed) >= max(3, 0.75 * len(lines)) and 3 * len(run_on) >= len(signed)


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
