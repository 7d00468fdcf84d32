"""Numbers as people read them: counts, bytes, shares, durations, intervals; and a tolerant view of
metrics.

A value that is not there is `NOT_MEASURED`, never zero and never a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

NOT_MEASURED = "not measured"
MINUS = "\u2212"
NARROW = "\u202f"
"""Narrow no-break space, between a number and its unit."""


class Facts:
    """Metrics by path. A missing or mistyped entry reads as None, an empty group or an empty
    table."""

    def __init__(self, values: Any) -> None:
        self._values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}

    def value(self, *path: str) -> Any:
        found: Any = self._values
        for name in path:
            if not isinstance(found, Mapping):
                return None
            found = found.get(name)
        return found

    def number(self, *path: str) -> float | None:
        return number(self.value(*path))

    def each(self, *names: str) -> list[float | None]:
        return [self.number(name) for name in names]

    def text(self, *path: str) -> str | None:
        found = self.value(*path)
        return None if found is None else str(found)

    def group(self, *path: str) -> dict[str, Any]:
        """A group in the order of its names, which is that of an artifact read from disk."""
        found = self.value(*path)
        if not isinstance(found, Mapping):
            return {}
        return {str(name): found[name] for name in sorted(found, key=str)}

    def items(self, *path: str) -> list[tuple[str, Facts]]:
        """The members of a group of groups, in the order of their names."""
        return [(name, Facts(value)) for name, value in self.group(*path).items()]

    def largest_first(
        self, *path: str, by: Sequence[str] = ("documents",)
    ) -> list[tuple[str, Facts]]:
        """The members of a group of groups, by the number at the path `by`."""
        return sorted(self.items(*path), key=lambda item: -(item[1].number(*by) or 0))

    def rows(self, *path: str) -> list[Facts]:
        """The entries of a list of groups."""
        return [Facts(row) for row in self.sequence(*path) if isinstance(row, Mapping)]

    def sequence(self, *path: str) -> Sequence[Any]:
        found = self.value(*path)
        return found if isinstance(found, (list, tuple)) else ()

    def numbers(self, *path: str) -> list[float]:
        """The entries of a list that are numbers."""
        return [n for value in self.sequence(*path) if (n := number(value)) is not None]


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return None


def numbers(group: Mapping[str, Any]) -> dict[str, float]:
    """The entries of a group that are numbers."""
    return {str(k): n for k, v in group.items() if (n := number(v)) is not None}


def most_first(group: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The entries of a group that are numbers, the largest first."""
    return sorted(numbers(group).items(), key=lambda item: (-item[1], item[0]))


def count(value: float | None) -> str:
    return fixed(value, 0)


def fixed(value: float | None, digits: int = 3) -> str:
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, in plain notation where it is readable, with
    thousands marked."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent >= digits - 1:
        scale = 10 ** (exponent - digits + 1)
        return f"{round(value / scale) * scale:,.0f}".replace("-", MINUS)
    if exponent < -4:
        return f"{value:.{digits - 1}e}".replace("-", MINUS)
    return f"{value:.{digits - 1 - exponent}f}".replace("-", MINUS)


def compact(value: float | None) -> str:
    """A count in three digits and a letter: 3.21 M."""
    if value is None:
        return NOT_MEASURED
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{significant(value / unit)}{NARROW}{letter}"
    return count(value) if value == round(value) else significant(value)


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return NOT_MEASURED
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{significant(value / scale)}{NARROW}{unit}"
    return f"{value:,.0f}{NARROW}B"


def share(part: float | None, whole: float | None) -> str:
    """`part` as a percentage of `whole`."""
    if part is None or whole is None:
        return NOT_MEASURED
    if whole == 0:
        return "–"
    return percent(part / whole)


def percent(fraction: float | None) -> str:
    if fraction is None:
        return NOT_MEASURED
    if fraction in (0, 1):
        return f"{100 * fraction:.0f}{NARROW}%"
    if abs(fraction) < 0.0005:
        return f"<{NARROW}0.1{NARROW}%"
    # Never round what is not whole up to 100 %.
    shown = min(fraction, 0.999) if fraction < 1 else fraction
    return f"{100 * shown:.1f}{NARROW}%"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOT_MEASURED
    if seconds < 60:
        return f"{significant(seconds)}{NARROW}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NARROW}min {rest:02d}{NARROW}s"
    return f"{minutes // 60}{NARROW}h {minutes % 60:02d}{NARROW}min"


def moment(text: str) -> str:
    """An ISO time stamp in UTC as people write it; any other text as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(\+00:00|Z)", text)
    return f"{match[1]} {match[2]} UTC" if match else text


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """An interval, from – to."""
    if low is None or high is None:
        return NOT_MEASURED
    between = " to " if low < 0 else "–"  # a dash before a minus reads badly
    return f"{fixed(low, digits)}{between}{fixed(high, digits)}"


def plural(amount: float | None, noun: str, many: str | None = None) -> str:
    many = many or f"{noun}s"
    if amount is None:
        return f"an unmeasured number of {many}"
    return f"{count(amount)} {noun if amount == 1 else many}"
