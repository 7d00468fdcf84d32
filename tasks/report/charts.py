"""Draws charts as inline SVG: bars, stacks, histogram, lines, forest, heat.

Each is a pure function of its data and a width, so a figure can be drawn twice, once for a wide
column and once for a phone, and the style sheet shows the one that fits. Colours are classes of the
page (light, dark and print); every mark carries a <title> with its full name, value and unit, which
browsers show when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from llm_core.printing import percent
from tasks.report.quantities import count
from tasks.report.scales import Axis, linear_axis, log_axis, shorten, text_width, tick_text
from tasks.report.svg import Rows, line, rect, svg, tag, text, titled, whisker, x_axis, y_axis

WIDE = 820
NARROW_WIDTH = 380
"""Widths charts are drawn for: a page column, and a phone or half a column."""
Chart = Callable[[int], Markup]
"""A chart of given data, to be drawn for a width."""


@dataclass(frozen=True)
class Mark:
    """One labelled value: a bar, or a point. `whole` is drawn pale behind a bar; `low` and `high`
    as a whisker; `against`, a value to compare a point with, as a dash across its row."""

    label: str
    value: float
    shown: str
    title: str
    whole: float | None = None
    low: float | None = None
    high: float | None = None
    against: float | None = None
    tone: str = "a"


@dataclass(frozen=True)
class Stack:
    """A labelled bar of parts, one after the other."""

    label: str
    parts: Sequence[tuple[str, float, str]]
    """(tone, amount, title) of each."""
    shown: str


@dataclass(frozen=True)
class Series:
    """A named line; `dots` marks each point."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: str = "a"
    dots: bool = False


@dataclass(frozen=True)
class Reference:
    """A value to compare with, drawn as a dashed line."""

    name: str
    value: float
    tone: str = "r1"


def bars(amounts: Sequence[Mark], width: int) -> Markup:
    """Horizontal bars from zero on one scale. The label stands beside its bar, or above it where
    the width is small."""
    largest = max((max(b.value, b.whole or 0, b.high or 0) for b in amounts), default=0) or 1
    rows = Rows.fit([b.label for b in amounts], [b.shown for b in amounts], width)
    axis = Axis(0, largest, rows.left, rows.right, ())
    marks = []
    for i, bar in enumerate(amounts):
        middle, drawn = rows.middle(i), []
        for value, tone in ((bar.whole, f"{bar.tone} pale"), (bar.value, bar.tone)):
            if value is not None:
                # An amount above zero is never invisible.
                length = max(
                    axis.at(value) - rows.left, 1.5 if value > 0 and tone == bar.tone else 0.0
                )
                drawn.append(rect(rows.left, middle - 5, length, 10, tone, rx=1.5))
        if bar.low is not None and bar.high is not None:
            drawn += whisker(axis.at(bar.low), axis.at(bar.high), middle, "whisker")
        marks.append(rows.row(i, bar.label, bar.shown, bar.title, *drawn))
    return svg(width, rows.row_height * len(amounts) + 4, marks)


def stacks(rows: Sequence[Stack], width: int, limit: Reference | None = None) -> Markup:
    """Bars of parts from zero on one scale; each part can be pointed at. limit: a dashed line."""
    ends = [sum(amount for _, amount, _ in row.parts) for row in rows]
    largest = max([*ends, limit.value if limit else 0.0], default=0.0) or 1
    places = Rows.fit([row.label for row in rows], [row.shown for row in rows], width)
    axis = Axis(0, largest, places.left, places.right - 2, ())
    marks = []
    for i, row in enumerate(rows):
        drawn, begin = [], 0.0
        for tone, amount, title in row.parts:
            x = axis.at(begin)
            begin += amount
            part = rect(x, places.middle(i) - 7, axis.at(begin) - x, 14, tone)
            drawn.append(titled(f"{row.label}, {title}", part))
        marks.append(places.row(i, row.label, row.shown, f"{row.label}: {row.shown}", *drawn))
    bottom = places.row_height * len(rows) + 4
    if limit:
        x = axis.at(limit.value)
        marks.append(titled(limit.name, line(x, 0, x, bottom, f"reference {limit.tone}")))
    return svg(width, bottom, marks)


def forest(
    estimates: Sequence[Mark], references: Sequence[Reference], unit: str, width: int
) -> Markup:
    """Values with intervals on one axis, and dashed lines to compare them with."""
    ends = [x for e in estimates for x in (e.value, e.low, e.high, e.against) if x is not None]
    ends += [r.value for r in references]
    rows = Rows.fit([e.label for e in estimates], [e.shown for e in estimates], width)
    low, high = min(ends), max(ends)
    margin = (high - low) * 0.04
    left, right, num_ticks = rows.left + 6, rows.right - 6, 6 if width > 500 else 4
    axis = linear_axis(low - margin, high + margin, left, right, num_ticks, snap=False)
    bottom = rows.row_height * len(estimates) + 4
    marks = [line(axis.at(t), 0, axis.at(t), bottom, "grid") for t in axis.ticks]
    for reference in references:
        x = axis.at(reference.value)
        drawn = line(x, 0, x, bottom, f"reference {reference.tone}")
        marks.append(titled(f"{reference.name}: {reference.value:.3f} {unit}", drawn))
    for i, one in enumerate(estimates):
        middle, pieces = rows.middle(i), []
        if one.low is not None and one.high is not None:
            pieces = whisker(axis.at(one.low), axis.at(one.high), middle, f"interval {one.tone}")
        if one.against is not None:
            x = axis.at(one.against)
            pieces.append(line(x, middle - 8, x, middle + 8, "reference r1"))
        dot = tag("circle", cx=axis.at(one.value), cy=middle, r=4, class_=f"dot {one.tone}")
        marks.append(rows.row(i, one.label, one.shown, one.title, *pieces, dot))
    marks += x_axis(axis, bottom, unit, tick_text)
    return svg(width, bottom + 38, marks)


def histogram(
    edges: Sequence[float],
    counts: Sequence[float],
    width: int,
    *,
    x_label: str,
    noun: str,
    log: bool = False,
    behind: Sequence[float] | None = None,
    shown: Callable[[float], str] = tick_text,
    tick: Callable[[float], str] = tick_text,
) -> Markup:
    """Counts between edges, one more edge than counts; `behind`, as many counts again, stands pale
    behind them.

    On a log axis a first edge at zero is drawn at half the second.
    """
    edges, whole = list(edges), list(behind or counts)
    if log and edges[0] <= 0:
        edges[0] = next((e for e in edges if e > 0), 1.0) / 2
    # Empty bins at both ends are not drawn.
    used = [i for i, (n, m) in enumerate(zip(counts, whole, strict=True)) if n > 0 or m > 0] or [0]
    first, last = used[0], used[-1]
    left, top, bottom = 46, 22, 196 if width > 500 else 176
    x_scale = (log_axis if log else linear_axis)(edges[first], edges[last + 1], left, width - 12)
    y_scale = linear_axis(0, max([*counts, *whole], default=0) or 1, bottom, top, 4)
    marks = y_axis(y_scale, left, width - 12, noun)
    for i in range(first, last + 1):
        x0, x1 = x_scale.at(edges[i]), x_scale.at(edges[i + 1])
        of_all = f" of {count(whole[i])}" if behind else ""
        title = f"{shown(edges[i])} to {shown(edges[i + 1])}: {count(counts[i])}{of_all} {noun}"
        pieces = [rect(x0, top, x1 - x0, bottom - top, "target")]
        for n, tone in (((whole[i], "a pale"),) if behind else ()) + ((counts[i], "a"),):
            y, bar_width = y_scale.at(n), max(x1 - x0 - 1, 0.5)
            pieces.append(rect(x0 + 0.5, y, bar_width, bottom - y, tone, rx=1.5))
        marks.append(titled(title, *pieces))
    marks += x_axis(x_scale, bottom, x_label, tick)
    return svg(width, bottom + 38, marks)


def lines(
    series: Sequence[Series],
    width: int,
    *,
    x_label: str,
    y_label: str,
    references: Sequence[Reference] = (),
    from_zero: bool = False,
    log: bool = False,
) -> Markup:
    """Lines over a common x, which may be logarithmic; every point can be pointed at."""
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    ys += [r.value for r in references] + ([0.0] if from_zero else [])
    left, right, top, bottom = 46, width - 14, 22, 250 if width > 500 else 210
    x_scale = linear_axis(min(xs), max(xs), left, right, 6 if width > 500 else 4, snap=False)
    if log:
        x_scale = log_axis(min(xs), max(xs), left, right)
    y_scale = linear_axis(min(ys), max(ys), bottom, top, 5)
    marks = y_axis(y_scale, left, right, y_label)
    for reference in references:
        y = y_scale.at(reference.value)
        drawn = line(left, y, right, y, f"reference {reference.tone}")
        marks.append(titled(f"{reference.name}: {reference.value:.3f}", drawn))
    for one in series:
        places = [(x_scale.at(x), y_scale.at(y)) for x, y in one.points]
        if len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            marks.append(tag("polyline", points=path, class_=f"line {one.tone}"))
        visible = one.dots or len(places) == 1
        for (x, y), (cx, cy) in zip(one.points, places, strict=True):
            dot = tag("circle", cx=cx, cy=cy, r=3.5, class_=f"dot {one.tone}") if visible else None
            title = f"{one.name}, {x_label} {tick_text(x)}: {y:.4g} {y_label}"
            marks.append(titled(title, tag("circle", cx=cx, cy=cy, r=7, class_="target"), dot))
    marks += x_axis(x_scale, bottom, x_label, tick_text)
    return svg(width, bottom + 38, marks)


def heat(
    names: Sequence[str],
    numbered: Sequence[int],
    matrix: Sequence[Sequence[float]],
    width: int,
    *,
    noun: str,
) -> Markup:
    """A square table of shares: how much of the row's total also belongs to the column. Both carry
    the given numbers."""
    wide = width > 500
    labels = [f"{name} · {n}" if wide else f"{n}" for n, name in zip(numbered, names, strict=True)]
    left = min(max(map(text_width, labels), default=0) + 12, width * 0.45)
    cell = min((width - left - 4) / max(len(names), 1), 34.0)
    top, taken = 22, 0.0
    marks = []
    for i, name in enumerate(names):
        y, total = top + cell * i, matrix[i][i]
        label = shorten(labels[i], left - 10)
        marks.append(text(left - 8, y + cell / 2 + 4, label, "end"))
        # A number that would touch the one before it is left out.
        centre, half = left + cell * (i + 0.5), text_width(str(numbered[i])) / 2
        if centre - half >= taken:
            marks.append(text(centre, top - 7, str(numbered[i]), "middle", "muted"))
            taken = centre + half
        for j, other in enumerate(names):
            both, x = matrix[i][j], left + cell * j
            title, tone, shade, on = f"{name}: {count(both)} {noun}", "self", None, None
            if i != j:
                fraction = both / total if total else 0.0
                title = f"{name} and {other}: {count(both)} {noun}, {percent(fraction)} of {name}"
                # Even an empty cell is visible, so that the table keeps its shape.
                opacity = 0.05 + 0.95 * min(fraction, 1.0) if both else 0.05
                tone, shade = "heat", f"fill-opacity:{opacity:.2f}"
                on = "on" if fraction > 0.5 else None
            box = rect(x + 0.5, y + 0.5, cell - 1, cell - 1, tone, rx=1.5, style=shade)
            number = None
            if cell >= 26 and both and text_width(count(both), 11) <= cell - 2:
                number = text(x + cell / 2, y + cell / 2 + 4, count(both), "middle", on, 11)
            marks.append(titled(title, box, number))
    return svg(width, top + cell * len(names) + 4, marks)
