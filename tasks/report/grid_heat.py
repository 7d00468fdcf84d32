"""Draws a table of speeds as a heat map with its scale, as inline SVG for a given width."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from tasks.report.quantities import compact
from tasks.report.scales import shorten, text_width
from tasks.report.svg import rect, svg, text, titled

ROW, TOP, SCALE = 26, 24, 34
STEPS = 24
"""Rectangles of the scale."""


def grid_heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    unit: str,
    width: int,
) -> Markup:
    """One rectangle per value, darker the larger; shades are those of a logarithmic scale from the
    least to the greatest value, which is drawn below. What was not measured is left blank."""
    known = [value for row in values for value in row if value is not None and value > 0]
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    left = min(max(map(text_width, rows), default=0) + 12, width * 0.36)
    cell = (width - left) / max(len(columns), 1)
    marks = [
        text(left + cell * (j + 0.5), TOP - 10, shorten(name, cell - 4), "middle", "muted", 11)
        for j, name in enumerate(columns)
    ]
    for i, name in enumerate(rows):
        y = TOP + ROW * i
        marks.append(text(left - 8, y + ROW / 2 + 4, shorten(name, left - 10), "end"))
        for j, value in enumerate(values[i]):
            if value is None:
                continue
            share = _share(value, low, high)
            shown = compact(value)
            box = rect(left + cell * j + 0.5, y + 0.5, cell - 1, ROW - 1, "heat", **_shade(share))
            fits = text_width(shown, 11) <= cell - 2
            number = text(
                left + cell * (j + 0.5), y + ROW / 2 + 4, shown, "middle",
                "on" if share > 0.8 else None, 11,
            )  # fmt: skip
            title = f"{name}, {columns[j]}: {shown} {unit}"
            marks.append(titled(title, box, number if fits else None))
    bottom = TOP + ROW * len(rows) + 12
    return svg(width, bottom + SCALE, [*marks, *_scale(left, width, bottom, low, high, unit)])


def _scale(left: float, width: float, y: float, low: float, high: float, unit: str) -> list[Markup]:
    step = (width - left) / STEPS
    shades = [
        rect(left + step * i, y, step, 8, "heat", **_shade(i / (STEPS - 1))) for i in range(STEPS)
    ]
    ends = [(low, left, "start"), (high, width, "end")]
    names = [text(x, y + 22, compact(value), anchor, "muted", 11) for value, x, anchor in ends]
    middle = text((left + width) / 2, y + 22, unit, "middle", "muted", 11)
    return [*shades, *names, middle]


def _share(value: float, low: float, high: float) -> float:
    """Where a value lies between both ends of a logarithmic scale."""
    if value <= 0 or high <= low:
        return 1.0 if value >= high else 0.0
    return math.log(value / low) / math.log(high / low)


def _shade(share: float) -> dict[str, str]:
    return {"style": f"fill-opacity:{0.06 + 0.94 * share:.2f}"}
