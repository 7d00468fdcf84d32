"""Sorts rows of digits into classes that expressions of number plans cannot tell apart.

A finite automaton over digits reads all expressions of a plan at once (positions of Glushkov, 1961;
subset construction). Numbers that end in one state match the same expressions, so one of them is
judged for all of its class. States are made when a number first reaches them, as RE2 does. Cost: a
few nanoseconds a digit; milliseconds once for a plan.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

import numpy as np

ALL_DIGITS = (1 << 10) - 1
CHUNK = 1 << 15
"""Numbers that are walked together: their columns stay in the cache."""
_TOKEN = re.compile(r"\\d|\d|\[[^]]+\]|\(\?:|\{\d+(?:,\d+)?\}|[(|)?^$]")
_TIMES = re.compile(r"\{(\d+)(?:,(\d+))?\}")
_PLAIN_CLASS, _PARTS = re.compile(r"\[(?:\d-\d|\d)+\]|\d"), re.compile(r"\d-\d|\d")
_UNKNOWN, _NO, _YES, _EACH = -1, 0, 1, 2

Judge = Callable[[np.ndarray], np.ndarray]
"""Verdicts on numbers, int64 to booleans."""


class DigitClasses:
    """The automaton of some expressions, and the verdicts on its classes."""

    def __init__(
        self,
        needed: Iterable[str],
        whole: Iterable[str] = (),
        beginnings: Iterable[str] = (),
        undecided: Iterable[str] = (),
    ) -> None:
        """needed: expressions of whole numbers; what none of them matches is turned down.

        whole: other expressions of whole numbers. beginnings: expressions of first digits.
        undecided: the same, of numbers that are judged each for itself; a `$` in one of them is
        passed over. Raises ValueError for what no number plan has.
        """
        self._takes: list[int] = []
        """Bits of the digits that each position takes; the positions that follow."""
        self._after: list[int] = []
        begin = 0
        self._needed, self._each = set[int](), set[int]()
        """Places of the positions with which such expressions end."""
        for expressions, grows in (
            (needed, 0),
            (whole, 0),
            (beginnings, ALL_DIGITS),
            (undecided, ALL_DIGITS),
        ):
            for expression in dict.fromkeys(expressions):
                read, end = _positions(expression), len(self._takes)
                # A number that has begun so stays here, and one that is so takes no digit more.
                self._takes += [grows, *read.takes[1:]]
                self._after += [after << end for after in read.after]
                begin |= read.begin << end
                if expressions is needed or expressions is undecided:
                    (self._needed if expressions is needed else self._each).add(end)
        first = frozenset(_places(begin))
        self._states = {first: 0}
        self._positions = [first]
        """The positions of each state."""
        self._behind: dict[int, tuple[int, ...]] = {}
        """Places of the positions that follow one, once they were asked for."""
        self._next = np.full(10, -1, np.int32)
        """Ten times the next state, at ten times a state plus a digit; -1 until it is made."""
        self._verdicts: dict[object, np.ndarray] = {}

    def judged(
        self, numbers: np.ndarray, num_digits: int, judge: Judge, question: object = None
    ) -> np.ndarray:
        """Verdicts of a judge on the last digits (so many) of numbers, which it is given whole
        (int64). A question always has the same judge."""
        verdicts = np.empty(len(numbers), np.int8)
        for start in range(0, len(numbers), CHUNK):
            some = numbers[start : start + CHUNK]
            verdicts[start : start + CHUNK] = self._judged(some, num_digits, judge, question)
        each = np.flatnonzero(verdicts == _EACH)
        if len(each):
            verdicts[each] = judge(numbers[each])
        return verdicts == _YES

    def _judged(
        self, numbers: np.ndarray, num_digits: int, judge: Judge, question: object
    ) -> np.ndarray:
        states = self.of(numbers, num_digits)
        known = self._verdicts.get(question, np.zeros(0, np.int8))
        if len(known) < len(self._positions):
            unknown = np.full(len(self._next) // 10 - len(known), _UNKNOWN, np.int8)
            known = self._verdicts[question] = np.concatenate([known, unknown])
        if (known[states] == _UNKNOWN).any():
            new, first = np.unique(states, return_index=True)
            for state in new[known[new] == _UNKNOWN].tolist():
                matched = self._positions[state]
                if matched & self._each:
                    known[state] = _EACH
                elif not matched & self._needed:
                    known[state] = _NO
            first = first[known[new] == _UNKNOWN]
            known[states[first]] = judge(numbers[first])
        return known[states]

    def of(self, numbers: np.ndarray, num_digits: int) -> np.ndarray:
        """The classes of the last digits (so many) of numbers (int64)."""
        from tasks.kernels.pii.automata import walk

        reached, done = np.empty(len(numbers), np.int64), 0
        while done < len(numbers):
            done, step = walk(numbers, done, num_digits, self._next, reached)
            if step >= 0:
                self._make(*divmod(step, 10))
        return reached // 10

    def _make(self, state: int, digit: int) -> None:
        """Finds what follows a state on a digit, and on all digits that the same positions take."""
        alike, after = ALL_DIGITS, set[int]()
        for place in self._positions[state]:
            takes = self._takes[place]
            if takes >> digit & 1:
                alike &= takes
                behind = self._behind.get(place)
                if behind is None:
                    behind = self._behind[place] = _places(self._after[place])
                after.update(behind)
            else:
                alike &= ~takes
        positions = frozenset(after)
        number = self._states.setdefault(positions, len(self._positions))
        if number == len(self._positions):
            self._positions.append(positions)
            if 10 * number == len(self._next):
                self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
        for other in range(10):
            if alike >> other & 1:
                self._next[10 * state + other] = 10 * number


class _Positions:
    """The positions of one expression, as bits; the first is its end, which follows itself."""

    takes: list[int]
    """Bits of the digits that each position takes."""
    after: list[int]
    """The positions that follow each one."""
    begin: int
    """The positions with which the expression begins."""

    def __init__(self, expression: str) -> None:
        tokens = _tokens(expression)
        prefix = _prefix(tokens)
        if prefix:
            # Plans have most expressions twice, alone and behind a prefix.
            rest = _positions(expression[prefix + len("(?:") : -1])
            self.takes, self.after, self.begin = [*rest.takes], [*rest.after], rest.begin
            for token in reversed(tokens[:prefix]):
                self.begin = self._position(_digits(token), self.begin)
            return
        self.takes, self.after = [0], [1]
        self._known: dict[int, int] = {}
        """The position that takes these digits and is followed by these, both in one number: ends
        of numbers are alike in most alternatives, and are one position. Tuples as keys would take
        as long again, since the garbage collector looks through all that it tracks."""
        self.begin = self._begin(tokens, len(tokens) - 1, 1)[0]

    def _position(self, digits: int, after: int) -> int:
        self.takes.append(digits)
        self.after.append(after)
        return 1 << len(self.takes) - 1

    def _shared(self, digits: int, after: int) -> int:
        key = after << 10 | digits
        found = self._known.get(key, 0)
        if not found:
            found = self._known[key] = self._position(digits, after)
        return found

    def _begin(self, tokens: list[str], at: int, follows: int) -> tuple[int, int]:
        """Reads alternatives from their last token back: (the positions with which they begin,
        where those of `follows` come behind them; the token that opens them, or -1)."""
        found, first = 0, follows
        while at >= 0 and tokens[at][0] != "(":
            if tokens[at] == "|":
                found, first = found | first, follows
            elif tokens[at] not in "^$":  # a whole number begins and ends there anyway
                times, behind = _TIMES.fullmatch(tokens[at]), first
                fewest, most = (int(times[1]), int(times[2] or times[1])) if times else (1, 1)
                if tokens[at] == "?":
                    fewest = 0
                at -= tokens[at] == "?" or times is not None
                for n in range(most):
                    begun, opens = (
                        self._begin(tokens, at - 1, first)
                        if tokens[at] == ")"
                        else (self._shared(_digits(tokens[at]), first), at)
                    )
                    first = begun | (behind if n < most - fewest else 0)
                at = opens
            at -= 1
        return found | first, at


@functools.lru_cache(maxsize=4096)
def _positions(expression: str) -> _Positions:
    return _Positions(expression)


def _prefix(tokens: list[str]) -> int:
    """How many digits stand before the group that is all of the rest, or 0."""
    count, depth = 0, 0
    while count < len(tokens) and tokens[count].isdigit():
        count += 1
    for place in range(count, len(tokens)):
        depth += (tokens[place][0] == "(") - (tokens[place] == ")")
        if depth == 0:
            return count if tokens[count] == "(?:" and place == len(tokens) - 1 else 0
    return 0


def _places(bits: int) -> tuple[int, ...]:
    """The places of the bits of a number that are one."""
    places = []
    while bits:
        lowest = bits & -bits
        places.append(lowest.bit_length() - 1)
        bits ^= lowest
    return tuple(places)


@functools.lru_cache(maxsize=4096)
def _tokens(expression: str) -> list[str]:
    tokens = _TOKEN.findall(expression)
    if sum(map(len, tokens)) != len(expression):
        raise ValueError(f"no expression of a number plan ({expression}); install phonenumbers 9")
    return tokens


@functools.lru_cache(maxsize=4096)
def _digits(token: str) -> int:
    """Bits of the digits of which a token stands for one."""
    if _PLAIN_CLASS.fullmatch(token):  # faster than compiling hundreds of expressions
        ends = ((int(part[0]), int(part[-1])) for part in _PARTS.findall(token))
        return functools.reduce(int.__or__, ((2 << b) - (1 << a) for a, b in ends))
    return sum(1 << digit for digit in range(10) if re.fullmatch(token, str(digit)))
