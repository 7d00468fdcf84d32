"""What does a regular expression say of a row of digits? The answer for every row, as a table of
ten columns.

Number plans are written as regular expressions over digits. `Automaton` takes many of them at once
and tells which ones match a row as a whole (subset construction over sets of positions);
`PrefixMachine` takes one and tells how far it matches from the start and what its groups hold, with
the priorities of a backtracking matcher (Pike's ordered threads, with the groups as a part of the
state). Cost: milliseconds to build for a country; to ask, one look-up for each digit. Left out:
whatever plans do not use (look-around, back references, lazy repetition), which raises ValueError.
"""

from __future__ import annotations

import re._constants as codes
import re._parser as parser
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

ALL_DIGITS = (1 << 10) - 1
MAX_ROW_DIGITS = 20
"""Longer rows are not asked for: prefix machines stop there."""

Groups = tuple[int, ...]
"""Where each group begins and ends, two numbers a group, -1 where it took no part."""


@dataclass
class _Program:
    """Nodes of a pattern: a digit of some, a choice in order of preference, a border of a group,
    the end of the row, a match."""

    digits: list[int] = field(default_factory=list)
    """Bits of the digits that a node takes; 0 for other nodes."""
    after: list[list[int]] = field(default_factory=list)
    """The nodes that follow, the preferred first."""
    border: list[int] = field(default_factory=list)
    """Place in Groups that a node sets, or -1."""
    ends: list[bool] = field(default_factory=list)
    """Does the node hold at the end of the row only?"""

    def add(self, after: list[int], digits: int = 0, border: int = -1, ends: bool = False) -> int:
        self.digits.append(digits)
        self.after.append(after)
        self.border.append(border)
        self.ends.append(ends)
        return len(self.after) - 1

    def compile(self, pattern: str) -> tuple[int, int]:
        """First node and node of the match. Raises ValueError for what number plans do not use."""
        match = self.add([])
        return self._sequence(list(parser.parse(pattern)), match), match

    def _sequence(self, items: Iterable, follows: int) -> int:  # type: ignore[type-arg]
        for code, argument in reversed(list(items)):
            follows = self._item(code, argument, follows)
        return follows

    def _item(self, code, argument, follows: int) -> int:  # type: ignore[no-untyped-def]
        if code is codes.LITERAL or code is codes.IN:
            members = [(code, argument)] if code is codes.LITERAL else argument
            return self.add([follows], digits=_digits(members))
        if code is codes.BRANCH:
            return self.add([self._sequence(branch, follows) for branch in argument[1]])
        if code is codes.SUBPATTERN:
            group, _, _, inside = argument
            if group is None:
                return self._sequence(inside, follows)
            closed = self.add([follows], border=2 * group - 1)
            return self.add([self._sequence(inside, closed)], border=2 * group - 2)
        if code is codes.MAX_REPEAT:
            fewest, most, inside = argument
            if most is codes.MAXREPEAT:
                first = self.add([])
                self.after[first] = [self._sequence(inside, first), follows]
            else:
                first = follows
                for _ in range(most - fewest):
                    first = self.add([self._sequence(inside, first), follows])
            for _ in range(fewest):
                first = self._sequence(inside, first)
            return first
        if code is codes.AT and argument in (codes.AT_END, codes.AT_END_STRING):
            return self.add([follows], ends=True)
        raise ValueError(
            f"pattern with {code} ({argument}) is none of a number plan; such packages of number"
            " plans are not read"
        )


def _digits(members: Iterable) -> int:  # type: ignore[type-arg]
    bits = 0
    for code, argument in members:
        if code is codes.LITERAL:
            bits |= 1 << argument - 48 if 48 <= argument <= 57 else 0
        elif code is codes.RANGE:
            bits |= sum(1 << c - 48 for c in range(max(48, argument[0]), min(57, argument[1]) + 1))
        elif code is codes.CATEGORY and argument is codes.CATEGORY_DIGIT:
            bits |= ALL_DIGITS
        else:
            raise ValueError(f"digits written as {code} ({argument}) are none of a number plan")
    return bits


class Automaton:
    """Which of many patterns match a row of digits as a whole, and which match a beginning of
    it."""

    def __init__(self, whole: Iterable[str], beginnings: Iterable[str] = ()) -> None:
        self._program = _Program()
        self.bits: dict[tuple[str, bool], int] = {}
        """(pattern, as a beginning?) to its bit in `matched`."""
        starts, sticky = [], 0
        self._match_bits: dict[int, int] = {}
        for pattern, begins in [*((p, False) for p in whole), *((p, True) for p in beginnings)]:
            if (pattern, begins) not in self.bits:
                bit = self.bits[pattern, begins] = 1 << len(self.bits)
                start, match = self._program.compile(pattern)
                starts.append(start)
                self._match_bits[match] = bit
                sticky |= bit if begins else 0
        self._build(starts, sticky)

    def _closure(self, node: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
        """Bits of the nodes that take a digit, and of the patterns that match, from here without a
        digit."""
        if node not in known:
            known[node] = (0, 0)  # for a loop that comes back here without a digit
            positions, matched = (
                (1 << node, 0) if self._program.digits[node] else (0, self._match_bits.get(node, 0))
            )
            for follows in self._program.after[node] if not self._program.digits[node] else ():
                more, also = self._closure(follows, known)
                positions, matched = positions | more, matched | also
            known[node] = positions, matched
        return known[node]

    def _build(self, starts: list[int], sticky: int) -> None:
        known: dict[int, tuple[int, int]] = {}
        program = self._program
        following = [
            self._closure(after[0], known) if digits else (0, 0)
            for digits, after in zip(program.digits, program.after, strict=True)
        ]
        first = [self._closure(start, known) for start in starts]
        states = {(0, 0): 0}
        begin = (_union(positions for positions, _ in first), _union(bits for _, bits in first))
        queue = [(0, 0), begin]
        states.setdefault(begin, 1)
        steps: list[list[int]] = []
        for positions, matched in queue:
            targets = [[0, matched & sticky] for _ in range(10)]
            while positions:
                lowest = positions & -positions
                positions ^= lowest
                node = lowest.bit_length() - 1
                more, bits = following[node]
                for digit in range(10):
                    if program.digits[node] >> digit & 1:
                        targets[digit][0] |= more
                        targets[digit][1] |= bits
            row = []
            for target in targets:
                state = target[0], target[1]
                if state not in states:
                    states[state] = len(queue)
                    queue.append(state)
                row.append(states[state])
            steps.append(row)
        self.step = np.array(steps, np.int32)
        """Next state by state and digit; begins in state 1, 0 matches nothing and never will."""
        self.matched = [bits for _, bits in queue]
        """Bits of the patterns that match a row which ends in the state."""


def _union(sets: Iterable[int]) -> int:
    union = 0
    for bits in sets:
        union |= bits
    return union


class PrefixMachine:
    """How far a pattern matches from the start of a row, and what its groups hold, as `re.match`
    says.

    `step[state, digit]` leads on from state 0 until the row ends or `settled[state]` says that
    nothing can change any more; `results[state]` is the answer then.
    """

    def __init__(self, pattern: str) -> None:
        self._program = _Program()
        start, self._match = self._program.compile(pattern)
        num_borders = max(self._program.border, default=-1) + 1
        Pending = tuple[tuple[int, Groups], ...]
        nothing: Groups = (-1,) * num_borders
        queue: list[tuple[int, Pending, tuple[int, Groups]]] = [
            (0, ((start, nothing),), (-1, nothing))
        ]
        states = {queue[0]: 0}
        self.results: list[tuple[int, Groups]] = []
        """End of the match (-1 for none) and groups, of a row that ends in the state."""
        steps = []
        for depth, pending, best in queue:
            ended = self._threads(pending, depth, True, best)[1]
            self.results.append(ended)
            threads, best = self._threads(pending, depth, False, best)
            row = []
            for digit in range(10):
                pending = tuple(
                    (self._program.after[node][0], groups)
                    for node, groups in threads
                    if self._program.digits[node] >> digit & 1
                )
                state = (
                    (depth + 1, pending, best)
                    if pending and depth < MAX_ROW_DIGITS
                    else (0, (), best)
                )
                if state not in states:
                    states[state] = len(queue)
                    queue.append(state)
                row.append(states[state])
            steps.append(row)
        self.step = np.array(steps, np.int32)
        """Next state by state and digit; begins in state 0."""
        self.settled = np.array([not pending for _, pending, _ in queue], np.bool_)
        """Can nothing change any more?"""

    def _threads(
        self,
        pending: tuple[tuple[int, Groups], ...],
        depth: int,
        at_end: bool,
        best: tuple[int, Groups],
    ) -> tuple[list[tuple[int, Groups]], tuple[int, Groups]]:
        """The nodes that take a digit, the preferred first, up to the first match; and the best
        match so far."""
        threads: list[tuple[int, Groups]] = []
        seen: set[int] = set()
        stack = list(reversed(pending))
        while stack:
            node, groups = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node == self._match:
                return threads, (depth, groups)
            border = self._program.border[node]
            if self._program.digits[node]:
                threads.append((node, groups))
            elif not self._program.ends[node] or at_end:
                if border >= 0:
                    groups = (*groups[:border], depth, *groups[border + 1 :])
                stack.extend((follows, groups) for follows in reversed(self._program.after[node]))
        return threads, best
