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
_ENDLESS = 1 << 60

ESCAPE = re.compile(
    r"\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|[kg](?:<[^>]*>|'[^']*')|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{1,2}|.)",
    re.DOTALL,
)
REFERENCE = re.compile(r"\\(?:[1-9]|[kg][<'])")
QUANTIFIER = re.compile(r"([*+?]|\{\d*,?\d*\})([+?]?)")
NO_TIMES = ("{}", "{,}")
OPENING = re.compile(r"\((?:\?(?:#[^)]*\)|<?[=!]|>|<[^>]*>|'[^']*'|[a-zA-Z-]*:|[a-zA-Z-]*\)))?")


class BadPattern(ValueError):
    """A pattern that may take forever, or that is not understood; the message says which."""


def check_tokenizer(described: Mapping[str, Any]) -> None:
    """Raises ValueError where the parts of a `tokenizer.json` cannot be used safely."""
    for pattern in _patterns(described):
        check_pattern(pattern)
    model, added = described.get("model"), described.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else []
    if isinstance(added, list):
        ids += [token.get("id") for token in added if isinstance(token, Mapping)]
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
    _Parser(pattern).check()


class _Parser:
    """Reads a pattern once, from left to right; `_at` is the place of the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0

    def check(self) -> None:
        self._choice(0)
        if self._at < len(self._pattern):
            raise self._bad("closes a group that it does not open")

    def _bad(self, what: str) -> BadPattern:
        pattern = self._pattern
        return BadPattern(f"the pattern {pattern[:60]!r}{'…' * (len(pattern) > 60)} {what}")

    def _choice(self, depth: int) -> _Piece:
        """Alternatives up to the end of their group."""
        if depth > MAX_GROUPS_DEEP:
            raise self._bad(f"nests groups more than {MAX_GROUPS_DEEP} levels deep")
        branches = [self._sequence(depth)]
        while self._pattern.startswith("|", self._at):
            self._at += 1
            branches.append(self._sequence(depth))
        return _Piece(
            max(branch.runs for branch in branches),
            len(branches) > 1 or branches[0].varies,
            all(branch.is_single for branch in branches),
        )

    def _sequence(self, depth: int) -> _Piece:
        whole, num_pieces = _Piece(), 0
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            piece, takes_text = self._atom(depth)
            # Oniguruma reads {} and {,} as plain text.
            while (times := QUANTIFIER.match(self._pattern, self._at)) and times[0] not in NO_TIMES:
                self._at, piece = times.end(), self._repeated(piece, times[1], times[2])
            num_pieces += takes_text
            whole.runs += piece.runs
            whole.varies |= piece.varies
            whole.is_single &= piece.is_single
            if whole.runs > MAX_RUNS:
                raise self._bad(f"has more than {MAX_RUNS} repetitions in a row")
        whole.is_single &= num_pieces <= 1
        return whole

    def _repeated(self, piece: _Piece, times: str, suffix: str) -> _Piece:
        low, high = _bounds(times)
        # In Oniguruma {n,m}+ repeats once more, and does not hold on to what it has.
        if suffix == "+" and times.startswith("{"):
            raise self._bad("repeats a repetition")
        if high > 1 and piece.varies:
            raise self._bad(
                "repeats what can match in several ways, which may take exponential time"
            )
        if low > MAX_REPEATS or MAX_REPEATS < high < _ENDLESS:
            raise self._bad(f"repeats more than {MAX_REPEATS:,} times")
        if suffix == "+" or low == high:
            return _Piece(piece.runs, piece.varies and suffix != "+", piece.is_single and high <= 1)
        return _Piece(piece.runs + (high > 1), True, piece.is_single and high <= 1)

    def _atom(self, depth: int) -> tuple[_Piece, bool]:
        """A character, a class, an escape or a group, and whether it takes text."""
        pattern, at = self._pattern, self._at
        if pattern[at] == "\\":
            if REFERENCE.match(pattern, at):
                raise self._bad("refers back to a group")
            if not (escape := ESCAPE.match(pattern, at)):
                raise self._bad("ends in a backslash")
            self._at = escape.end()
            return _Piece(), escape[0] not in (r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G")
        if pattern[at] == "[":
            self._pass_class()
            return _Piece(), True
        if pattern[at] != "(":
            self._at += 1
            return _Piece(), pattern[at] not in "^$"
        return self._group(depth)

    def _group(self, depth: int) -> tuple[_Piece, bool]:
        opening = OPENING.match(self._pattern, self._at)
        assert opening is not None
        sign = opening[0]
        if sign == "(" and self._pattern.startswith("(?", self._at):
            raise self._bad("has a group of an unknown kind")
        options = sign.removeprefix("(?").partition("-")[0]
        if "x" in options and sign[-1] in ":)" and "#" not in sign:
            raise self._bad("uses the option x (comments), which is not supported")
        self._at = begin = opening.end()
        if sign.endswith(")"):  # a comment, or options for what follows
            return _Piece(), False
        piece = self._choice(depth + 1)
        body = self._pattern[begin : self._at]
        if self._at >= len(self._pattern):
            raise self._bad("opens a group that it does not close")
        self._at += 1
        if sign[2:] in ("=", "!", "<=", "<!"):
            return _Piece(), False  # what it has found it keeps, and it takes nothing
        if sign == "(?>":
            return _Piece(piece.runs, False, piece.is_single), True
        # (a|b) is one character of several.
        one_character = piece.is_single and piece.runs == 0 and _is_of_characters(body)
        return _Piece() if one_character else piece, True

    def _pass_class(self) -> None:
        """Go behind a character class, which may hold others."""
        pattern, at, depth = self._pattern, self._at, 0
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
                    self._at = at + 1
                    return
            at += 1
        raise self._bad(f"opens a class at character {self._at} and does not close it")


def _bounds(times: str) -> tuple[int, int]:
    """The least and the largest number of repetitions."""
    if not times.startswith("{"):
        return {"*": (0, _ENDLESS), "+": (1, _ENDLESS), "?": (0, 1)}[times]
    low, comma, high = times[1:-1].partition(",")
    # Python refuses to read numbers of thousands of digits.
    if len(times) > 16:
        return MAX_REPEATS + 1, MAX_REPEATS + 1
    first = int(low or 0)
    return first, int(high or _ENDLESS) if comma else first


def _is_of_characters(body: str) -> bool:
    """Whether a body is a choice of different single characters, such as `a|b|,`."""
    branches = body.split("|")
    distinct = len(set(branches)) == len(branches)
    return distinct and all(len(branch) == 1 and branch not in ".^$" for branch in branches)
