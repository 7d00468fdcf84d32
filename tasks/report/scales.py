"""Places things in a chart: axes, ticks, and how much room a text takes.

Ticks are 1, 2 or 5 times a power of ten (Heckbert, Graphics Gems I), so that they can be read
aloud. Text widths are estimates from above, because a static page cannot ask the browser: labels
are shortened, never overlapped.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass

from tasks.report.quantities import MINUS, NARROW

FONT_SIZE = 12
MAX_LOG_TICKS = 8


@dataclass(frozen=True)
class Axis:
    """A map from values to pixels, with its ticks. A log axis needs values above zero."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            fraction = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            fraction = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * min(max(fraction, 0.0), 1.0)


def linear_axis(
    low: float, high: float, start: float, end: float, num_ticks: int = 5, snap: bool = True
) -> Axis:
    """An axis that holds low…high; with `snap` it ends on ticks. Equal ends are moved apart."""
    largest = max(abs(low), abs(high))
    # Nearer than a double can divide into ticks is equal.
    if not high - low > max(largest * 1e-9, 1e-200):
        margin = largest * 0.1 if largest > 1e-200 else 1.0
        low, high = low - margin, high + margin
    step = _nice_step((high - low) / max(num_ticks, 1))
    if snap:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Multiples are rounded so that 3 · 0.1 reads 0.3.
    digits = max(0, -math.floor(math.log10(step)))
    return Axis(
        low, high, start, end, tuple(round(i * step, digits) for i in range(first, last + 1))
    )


def log_axis(low: float, high: float, start: float, end: float) -> Axis:
    """A logarithmic axis with ticks at powers of ten, thinned to `MAX_LOG_TICKS`, or at 1, 2, 5
    where there are few."""
    low = max(low, 1e-12)
    if not high > low:
        low, high = low / 2, low * 2
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    powers = [10.0**e for e in decades if low <= 10.0**e <= high]
    fine = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    ticks = fine if len(powers) < 3 and len(fine) <= MAX_LOG_TICKS else powers
    every = max(1, math.ceil(len(ticks) / MAX_LOG_TICKS))
    return Axis(low, high, start, end, tuple(ticks[::every]), log=True)


def tick_text(value: float) -> str:
    """A tick with as few characters as possible: 2 k, 0.25, 1.5 M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale and value / scale == round(value / scale, 2):
            return f"{value / scale:g}{NARROW}{letter}".replace("-", MINUS)
    return f"{value:.6g}".replace("-", MINUS)


def text_width(text: str, font_size: float = FONT_SIZE) -> float:
    """About how wide a text is, in pixels, rather too much than too little."""
    ems = 0.0
    for char in text:
        if unicodedata.combining(char):
            continue
        if unicodedata.east_asian_width(char) in "WF":
            ems += 1.0
        elif char in "iIlj.,:;'|! \u202f":
            ems += 0.36
        elif char.isdigit():
            ems += 0.65
        elif char.isupper() or char in "mwMW@%_":
            ems += 0.74
        else:
            ems += 0.6
    return ems * font_size


def shorten(text: str, room: float) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    text = " ".join(text.split())
    if text_width(text) <= room:
        return text
    # Long names come from outside: look at no more of them than could fit.
    kept = text[: int(room / (0.3 * FONT_SIZE)) + 1]
    while kept and text_width(kept + "…") > room:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def _nice_step(rough: float) -> float:
    """The smallest round step that is not much finer than asked: a few ticks more are better than
    an empty half of the axis."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.75)
