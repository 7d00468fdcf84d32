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
        self._known: dict[tuple[int, int], int] = {}
        """The position that takes these digits and is followed by these: ends of numbers are alike
        in most expressions, and are one position."""
        begin, self._needed, self._each = 0, 0, 0
        for expressions, grows in (
            (needed, 0),
            (whole, 0),
            (beginnings, ALL_DIGITS),
            (undecided, ALL_DIGITS),
        ):
            for expression in dict.fromkeys(expressions):
                # A number that has begun so stays here, and one that is so takes no digit more.
                end = self._position(grows, 1 << len(self._takes))
                tokens = _tokens(expression)
                begin |= self._begin(tokens, len(tokens) - 1, end)[0]
                self._needed |= end if expressions is needed else 0
                self._each |= end if expressions is undecided else 0
        taken = np.array(self._takes)
        self._taking = [
            int.from_bytes(np.packbits(taken >> digit & 1, bitorder="little").tobytes(), "little")
            for digit in range(10)
        ]
        self._states = {begin: 0}
        self._positions = [begin]
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
                known[state] = (
                    _EACH if matched & self._each else _UNKNOWN if matched & self._needed else _NO
                )
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
        taking = [self._positions[state] & some for some in self._taking]
        left, after = taking[digit], 0
        while left:
            lowest = left & -left
            after |= self._after[lowest.bit_length() - 1]
            left ^= lowest
        number = self._states.setdefault(after, len(self._positions))
        if number == len(self._positions):
            self._positions.append(after)
            if 10 * number == len(self._next):
                self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
        for other in range(10):
            if taking[other] == taking[digit]:
                self._next[10 * state + other] = 10 * number

    def _position(self, digits: int, after: int) -> int:
        self._takes.append(digits)
        self._after.append(after)
        return 1 << len(self._takes) - 1

    def _shared(self, digits: int, after: int) -> int:
        if (digits, after) not in self._known:
            self._known[digits, after] = self._position(digits, after)
        return self._known[digits, after]

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
