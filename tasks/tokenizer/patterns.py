"""Refuses what a `tokenizer.json` must not hold: ids beyond any vocabulary, and patterns that take
forever.

Patterns run in Oniguruma, which backtracks: `(a+)+$` over thirty letters is 2^30 steps. After ten
million it gives up, in a panic in the middle of a text; until then it begins anew at every
character. A repetition multiplies the ways to match when its body can match the same text in
several ways, so what is repeated may hold no repetition of variable length, no choice beyond single
characters, and no back-reference. That refuses every exponential pattern, and some harmless ones;
no published tokenizer that is known has either. What is left is polynomial, with at most `MAX_RUNS`
repetitions in a row. Repetitions that give nothing back (`*+`, `(?>…)`) do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_ID = (1 << 24) - 1
"""Tables by id are as long as the largest id."""
MAX_PATTERN_CHARS = 1 << 14
MAX_GROUPS_DEEP = 32
MAX_REPEATS = 1000
MAX_RUNS = 4

ESCAPE = re.compile(
    r"\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|[kg](?:<[^>]*>|'[^']*')|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{1,2}|.)",
    re.DOTALL,
)
REFERENCE = re.compile(r"\\(?:[1-9]|[kg][<'])")
QUANTIFIER = re.compile(r"([*+?]|\{\d*,?\d*\})([+?]?)")
OPENING = re.compile(r"\((?:\?(?:#[^)]*\)|<?[=!]|>|<[^>]*>|'[^']*'|[a-zA-Z-]*:|[a-zA-Z-]*\)))?")


class BadPattern(ValueError):
    """A pattern that may take forever, or that is not understood; the message says which."""


def check_tokenizer(described: Mapping[str, Any]) -> None:
    """Raises ValueError where the parts of a `tokenizer.json` cannot be used safely."""
    for pattern in _patterns(described):
        check_pattern(pattern)
    model = described.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else []
    added = described.get("added_tokens")
    ids += (
        [token.get("id") for token in added if isinstance(token, Mapping)]
        if isinstance(added, list)
        else []
    )
    if odd := [id for id in ids if not (type(id) is int and 0 <= id <= MAX_ID)]:
        raise ValueError(f"id {str(odd[0])[:40]} is not a whole number up to {MAX_ID:,}")


def _patterns(value: Any) -> Iterator[str]:
    """Every `{"Regex": …}` of a tokenizer, outside of its vocabulary."""
    if isinstance(value, Mapping):
        if isinstance(value.get("Regex"), str):
            yield value["Regex"]
        for name, inner in value.items():
            if name not in ("vocab", "merges"):
                yield from _patterns(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _patterns(inner)


@dataclass
class _Piece:
    """What has been read of a pattern: how many repetitions can give back, and whether it can match
    in several ways."""

    runs: int = 0
    varies: bool = False
    is_single: bool = True
    """Whether it matches one character, or nothing."""


def check_pattern(pattern: str) -> None:
    """Raises BadPattern for a pattern that may take exponential time, and for one that is not
    understood."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadPattern(f"a pattern has more than {MAX_PATTERN_CHARS:,} characters")
    end, _ = _choice(pattern, 0, 0)
    if end < len(pattern):
        raise BadPattern(f"{_shown(pattern)} closes a group that it does not open")


def _choice(pattern: str, at: int, depth: int) -> tuple[int, _Piece]:
    """Alternatives up to the end of their group."""
    if depth > MAX_GROUPS_DEEP:
        raise BadPattern(
            f"{_shown(pattern)} has groups in groups for more than {MAX_GROUPS_DEEP} levels"
        )
    branches = []
    while True:
        at, branch = _sequence(pattern, at, depth)
        branches.append(branch)
        if at >= len(pattern) or pattern[at] != "|":
            break
        at += 1
    several = len(branches) > 1
    return at, _Piece(
        max(branch.runs for branch in branches),
        any(branch.varies for branch in branches) or several,
        all(branch.is_single for branch in branches),
    )


def _sequence(pattern: str, at: int, depth: int) -> tuple[int, _Piece]:
    whole, num_pieces = _Piece(), 0
    while at < len(pattern) and pattern[at] not in "|)":
        at, piece, takes_text = _atom(pattern, at, depth)
        while (
            at < len(pattern)
            and (found := QUANTIFIER.match(pattern, at))
            and found.group() not in ("{}", "{,}")
        ):
            at, piece = found.end(), _repeated(pattern, piece, found.group(1), found.group(2))
        num_pieces += takes_text
        whole.runs += piece.runs
        whole.varies |= piece.varies
        whole.is_single &= piece.is_single
        if whole.runs > MAX_RUNS:
            raise BadPattern(f"{_shown(pattern)} has more than {MAX_RUNS} repetitions in a row")
    whole.is_single &= num_pieces <= 1
    return at, whole


def _repeated(pattern: str, piece: _Piece, times: str, suffix: str) -> _Piece:
    low, high = _bounds(times)
    # In Oniguruma {n,m}+ repeats once more, and does not hold on to what it has.
    if suffix == "+" and times.startswith("{"):
        raise BadPattern(f"{_shown(pattern)} repeats a repetition")
    if high > 1 and piece.varies:
        raise BadPattern(
            f"{_shown(pattern)} repeats what can match in several ways, which may take exponential"
            " time"
        )
    if low > MAX_REPEATS or (high != _ENDLESS and high > MAX_REPEATS):
        raise BadPattern(f"{_shown(pattern)} repeats more than {MAX_REPEATS:,} times")
    if suffix == "+" or low == high:
        return _Piece(piece.runs, piece.varies and suffix != "+", piece.is_single and high <= 1)
    return _Piece(piece.runs + (high > 1), True, piece.is_single and high <= 1)


_ENDLESS = 1 << 60


def _bounds(times: str) -> tuple[int, int]:
    if not times.startswith("{"):
        return {"*": (0, _ENDLESS), "+": (1, _ENDLESS), "?": (0, 1)}[times]
    low, comma, high = times[1:-1].partition(",")
    if len(times) > 16:
        return MAX_REPEATS + 1, MAX_REPEATS + 1
    first = int(low or 0)
    return first, int(high or _ENDLESS) if comma else first


def _atom(pattern: str, at: int, depth: int) -> tuple[int, _Piece, bool]:
    """(place behind it, what it is, whether it takes text) of a character, a class, an escape or a
    group."""
    if pattern[at] == "\\":
        if REFERENCE.match(pattern, at):
            raise BadPattern(f"{_shown(pattern)} refers back to a group")
        if not (escape := ESCAPE.match(pattern, at)):
            raise BadPattern(f"{_shown(pattern)} ends in a backslash")
        return (
            escape.end(),
            _Piece(),
            escape.group() not in (r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G"),
        )
    if pattern[at] == "[":
        return _class_end(pattern, at), _Piece(), True
    if pattern[at] != "(":
        return at + 1, _Piece(), pattern[at] not in "^$"
    opening = OPENING.match(pattern, at)
    assert opening is not None
    if opening.group() == "(" and pattern.startswith("(?", at):
        raise BadPattern(f"{_shown(pattern)} has a group of a kind that is not known here")
    if (
        "x" in opening.group().removeprefix("(?").partition("-")[0]
        and opening.group()[-1] in ":)"
        and "#" not in opening.group()
    ):
        raise BadPattern(f"{_shown(pattern)} is written with comments, which are not read here")
    if opening.group().endswith(")"):  # a comment, or options for what follows
        return opening.end(), _Piece(), False
    end, piece = _choice(pattern, opening.end(), depth + 1)
    if end >= len(pattern):
        raise BadPattern(f"{_shown(pattern)} opens a group that it does not close")
    if opening.group()[2:] in ("=", "!", "<=", "<!"):
        return end + 1, _Piece(), False  # what it has found it keeps, and it takes nothing
    if opening.group() == "(?>":
        piece = _Piece(piece.runs, False, piece.is_single)
    elif piece.is_single and piece.runs == 0 and _is_of_characters(pattern[opening.end() : end]):
        piece = _Piece()  # (a|b), one character of several
    return end + 1, piece, True


def _is_of_characters(body: str) -> bool:
    """Whether a body is a choice of different single characters, such as `a|b|,`."""
    branches = body.split("|")
    return all(len(branch) == 1 and branch not in ".^$" for branch in branches) and len(
        set(branches)
    ) == len(branches)


def _class_end(pattern: str, at: int) -> int:
    """The place behind a character class, which may hold others."""
    depth, start = 0, at
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
            at += pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at + 1)  # the first one is meant as itself
        elif pattern[at] == "]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise BadPattern(f"{_shown(pattern)} has a class from character {start} on that does not end")


def _shown(pattern: str) -> str:
    return f"the pattern {pattern[:60]!r}{'…' * (len(pattern) > 60)}"
