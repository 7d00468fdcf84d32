"""Charts as inline SVG: bars, histogram, lines, forest, heat.

Each is a pure function of its data and a width, so a figure can be drawn twice, once for a wide
column and once for a phone, and the style sheet shows the one that fits. Colours are classes of the
page (light, dark and print); every mark carries a <title> with its full name, value and unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.report.markup import Markup, tag
from tasks.report.quantities import count
from tasks.report.scales import (
    FONT_SIZE,
    Axis,
    linear_axis,
    log_axis,
    shorten,
    text_width,
    tick_text,
)

WIDE = 820
NARROW_WIDTH = 380
"""Widths charts are drawn for: a page column, and a phone or half a column."""


@dataclass(frozen=True)
class Bar:
    """One labelled amount. `whole` is drawn pale behind it; `low` and `high` as a whisker."""

    label: str
    value: float
    shown: str
    title: str
    whole: float | None = None
    low: float | None = None
    high: float | None = None
    tone: str = "a"


@dataclass(frozen=True)
class Series:
    """A named line; `dots` marks each point."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: str = "a"
    dots: bool = False


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, on a line of its own."""

    label: str
    value: float
    low: float | None
    high: float | None
    shown: str
    title: str
    tone: str = "a"


@dataclass(frozen=True)
class Reference:
    """A value to compare with, drawn as a dashed line."""

    name: str
    value: float
    tone: str = "r1"


def bars(rows: Sequence[Bar], width: int) -> Markup:
    """Horizontal bars from zero on one scale. The label stands beside its bar, or above it where
    the width is small."""
    largest = max((max(r.value, r.whole or 0, r.high or 0) for r in rows), default=0) or 1
    rooms = _Rooms.fit([r.label for r in rows], [r.shown for r in rows], width)
    marks = []
    for i, row in enumerate(rows):
        label, shown, middle = rooms.texts(i, row.label, row.shown)
        axis = Axis(0, largest, rooms.left, rooms.right, ())
        pieces = [label, shown]
        if row.whole is not None:
            pieces.append(
                _rect(
                    rooms.left, middle - 5, axis.at(row.whole) - rooms.left, 10, f"{row.tone} pale"
                )
            )
        pieces.append(
            _rect(
                rooms.left,
                middle - 5,
                axis.at(row.value) - rooms.left,
                10,
                row.tone,
                thin=row.value > 0,
            )
        )
        if row.low is not None and row.high is not None:
            pieces.extend(_whisker(axis.at(row.low), axis.at(row.high), middle, "whisker"))
        marks.append(
            tag(
                "g", tag("title", row.title), _target(rooms.top(i), width, rooms.row_height), pieces
            )
        )
    return _svg(width, rooms.row_height * len(rows) + 4, marks)


def forest(
    rows: Sequence[Estimate], references: Sequence[Reference], unit: str, width: int
) -> Markup:
    """Values with intervals on one axis, and dashed lines to compare them with."""
    edges = [x for r in rows for x in (r.value, r.low, r.high) if x is not None] + [
        r.value for r in references
    ]
    rooms = _Rooms.fit([r.label for r in rows], [r.shown for r in rows], width)
    low, high = min(edges), max(edges)
    margin = (high - low) * 0.04
    axis = linear_axis(
        low - margin,
        high + margin,
        rooms.left + 6,
        rooms.right - 6,
        6 if width > 500 else 4,
        snap=False,
    )
    bottom = rooms.row_height * len(rows) + 4
    marks: list[Markup] = [_line(axis.at(t), 0, axis.at(t), bottom, "grid") for t in axis.ticks]
    for reference in references:
        x = axis.at(reference.value)
        line = _line(x, 0, x, bottom, f"reference {reference.tone}")
        marks.append(
            tag("g", tag("title", f"{reference.name}: {reference.value:.3f} {unit}"), line)
        )
    for i, row in enumerate(rows):
        label, shown, middle = rooms.texts(i, row.label, row.shown)
        pieces = [label, shown]
        if row.low is not None and row.high is not None:
            pieces.extend(
                _whisker(axis.at(row.low), axis.at(row.high), middle, f"interval {row.tone}")
            )
        pieces.append(
            tag("circle", cx=axis.at(row.value), cy=float(middle), r=4, class_=f"dot {row.tone}")
        )
        marks.append(
            tag(
                "g", tag("title", row.title), _target(rooms.top(i), width, rooms.row_height), pieces
            )
        )
    marks.extend(_x_axis(axis, bottom, unit, tick_text))
    return _svg(width, bottom + 38, marks)


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
    positive = [e for e in edges if e > 0]
    if log and edges[0] <= 0:
        edges[0] = positive[0] / 2 if positive else 0.5
    used = [i for i, (n, m) in enumerate(zip(counts, whole, strict=True)) if n > 0 or m > 0] or [0]
    first, last = used[0], used[-1]
    left, top, bottom = 46, 22, 196 if width > 500 else 176
    make = log_axis if log else linear_axis
    x_axis = make(edges[first], edges[last + 1], left, width - 12)
    y_axis = linear_axis(0, max([*counts, *whole], default=0) or 1, bottom, top, 4)
    marks = _y_axis(y_axis, left, width - 12, noun)
    for i in range(first, last + 1):
        x0, x1 = x_axis.at(edges[i]), x_axis.at(edges[i + 1])
        of_all = f" of {count(whole[i])}" if behind else ""
        title = f"{shown(edges[i])} to {shown(edges[i + 1])}: {count(counts[i])}{of_all} {noun}"
        bar = [
            _rect(x0 + 0.5, y_axis.at(n), max(x1 - x0 - 1, 0.5), bottom - y_axis.at(n), tone)
            for n, tone in (((whole[i], "a pale"),) if behind else ()) + ((counts[i], "a"),)
        ]
        target = tag(
            "rect", x=x0, y=float(top), width=x1 - x0, height=float(bottom - top), class_="target"
        )
        marks.append(tag("g", tag("title", title), target, bar))
    marks.extend(_x_axis(x_axis, bottom, x_label, tick))
    return _svg(width, bottom + 38, marks)


def lines(
    series: Sequence[Series],
    width: int,
    *,
    x_label: str,
    y_label: str,
    references: Sequence[Reference] = (),
    from_zero: bool = False,
) -> Markup:
    """Lines over a common x; every point can be pointed at."""
    points = [p for s in series for p in s.points]
    ys = [y for _, y in points] + [r.value for r in references] + ([0.0] if from_zero else [])
    left, top, bottom = 46, 22, 250 if width > 500 else 210
    x_axis = linear_axis(
        min(x for x, _ in points),
        max(x for x, _ in points),
        left,
        width - 14,
        6 if width > 500 else 4,
        snap=False,
    )
    y_axis = linear_axis(min(ys), max(ys), bottom, top, 5)
    marks = _y_axis(y_axis, left, width - 14, y_label)
    for reference in references:
        y = y_axis.at(reference.value)
        line = _line(left, y, width - 14, y, f"reference {reference.tone}")
        marks.append(tag("g", tag("title", f"{reference.name}: {reference.value:.3f}"), line))
    for one in series:
        where = [(x_axis.at(x), y_axis.at(y)) for x, y in one.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in where)
        if len(where) > 1:
            marks.append(tag("polyline", points=path, class_=f"line {one.tone}"))
        visible = one.dots or len(where) == 1
        for (x, y), (cx, cy) in zip(one.points, where, strict=True):
            dot = tag("circle", cx=cx, cy=cy, r=3.5, class_=f"dot {one.tone}") if visible else None
            title = tag("title", f"{one.name}, {x_label} {tick_text(x)}: {y:.4g} {y_label}")
            marks.append(tag("g", title, tag("circle", cx=cx, cy=cy, r=7, class_="target"), dot))
    marks.extend(_x_axis(x_axis, bottom, x_label, tick_text))
    return _svg(width, bottom + 38, marks)


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
    labels = [
        f"{name} · {n}" if width > 500 else f"{n}" for n, name in zip(numbered, names, strict=True)
    ]
    left = min(max((text_width(label) for label in labels), default=0) + 12, width * 0.45)
    cell = min((width - left - 4) / max(len(names), 1), 34.0)
    top = 22
    marks = []
    for i, name in enumerate(names):
        middle = top + cell * (i + 0.5)
        marks.append(_text(left - 8, middle + 4, shorten(labels[i], left - 10), "end"))
        marks.append(_text(left + cell * (i + 0.5), top - 7, str(numbered[i]), "middle", "muted"))
        total = matrix[i][i]
        for j, other in enumerate(names):
            both = matrix[i][j]
            fraction = both / total if total else 0.0
            title = (
                f"{name} and {other}: {count(both)} {noun}, {fraction:.0%} of {name}"
                if i != j
                else f"{name}: {count(both)} {noun}"
            )
            box = tag(
                "rect",
                x=left + cell * j + 0.5,
                y=top + cell * i + 0.5,
                width=cell - 1,
                height=cell - 1,
                rx=1.5,
                class_="self" if i == j else "heat",
                style=None
                if i == j
                else f"fill-opacity:{0.05 + 0.95 * min(fraction, 1.0):.2f}"
                if both
                else "fill-opacity:0.05",
            )
            number = None
            if cell >= 26 and both and text_width(count(both), 11) <= cell - 2:
                tone = "on" if i != j and fraction > 0.5 else None
                number = _text(left + cell * (j + 0.5), middle + 4, count(both), "middle", tone, 11)
            marks.append(tag("g", tag("title", title), box, number))
    return _svg(width, top + cell * len(names) + 4, marks)


@dataclass(frozen=True)
class _Rooms:
    """The columns of a row chart: label, plot, value; on a small width label and value stand above
    the plot."""

    left: float
    right: float
    width: float
    row_height: int
    stacked: bool

    @staticmethod
    def fit(labels: Sequence[str], shown: Sequence[str], width: int) -> _Rooms:
        if width <= 500:
            return _Rooms(0, width, width, 36, True)
        label_room = min(max((text_width(label) for label in labels), default=0) + 14, 240)
        shown_room = min(max((text_width(text) for text in shown), default=0) + 12, 260)
        return _Rooms(label_room, width - shown_room, width, 24, False)

    def top(self, i: int) -> int:
        return i * self.row_height

    def texts(self, i: int, label: str, shown: str) -> tuple[Markup, Markup, float]:
        """The label, the value and the middle line of row `i`."""
        top = self.top(i)
        if self.stacked:
            value = _text(self.width, top + 14, shown, "end", "value")
            return (
                _text(
                    0,
                    top + 14,
                    shorten(label, self.width - text_width(shown) - 12),
                    "start",
                    "label",
                ),
                value,
                top + 26,
            )
        middle = top + self.row_height / 2
        value = _text(self.width, middle + 4, shown, "end", "value")
        return (
            _text(self.left - 10, middle + 4, shorten(label, self.left - 12), "end", "label"),
            value,
            middle,
        )


def _svg(width: float, height: float, marks: Sequence[Markup]) -> Markup:
    return tag(
        "svg",
        marks,
        viewBox=f"0 0 {width:g} {height:.0f}",
        role="img",
        style=f"max-width:{width * 1.25:g}px",
    )


def _text(
    x: float, y: float, text: str, anchor: str, tone: str | None = None, font_size: int = FONT_SIZE
) -> Markup:
    return tag(
        "text", text, x=float(x), y=float(y), text_anchor=anchor, class_=tone, font_size=font_size
    )


def _rect(x: float, y: float, width: float, height: float, tone: str, thin: bool = False) -> Markup:
    # An amount above zero is never invisible.
    return tag(
        "rect",
        x=float(x),
        y=float(y),
        width=max(float(width), 1.5 if thin else 0.0),
        height=float(height),
        rx=1.5,
        class_=tone,
    )


def _line(x0: float, y0: float, x1: float, y1: float, tone: str) -> Markup:
    return tag("line", x1=float(x0), y1=float(y0), x2=float(x1), y2=float(y1), class_=tone)


def _whisker(x0: float, x1: float, y: float, tone: str) -> list[Markup]:
    return [
        _line(x0, y, x1, y, tone),
        _line(x0, y - 4, x0, y + 4, tone),
        _line(x1, y - 4, x1, y + 4, tone),
    ]


def _target(top: float, width: float, height: float) -> Markup:
    """A row that can be pointed at everywhere, not only on its marks."""
    return tag("rect", x=0, y=float(top), width=float(width), height=float(height), class_="target")


def _x_axis(axis: Axis, y: float, label: str, shown: Callable[[float], str]) -> list[Markup]:
    marks = [_line(axis.start, y, axis.end, y, "axis")]
    taken = float("-inf")
    for tick in axis.ticks:
        x, text = axis.at(tick), shown(tick)
        half = text_width(text, 11) / 2
        marks.append(_line(x, y, x, y + 4, "axis"))
        if x - half > taken + 4:
            marks.append(_text(x, y + 17, text, "middle", "muted", 11))
            taken = x + half
    marks.append(_text((axis.start + axis.end) / 2, y + 33, label, "middle", "muted", 11))
    return marks


def _y_axis(axis: Axis, left: float, right: float, label: str) -> list[Markup]:
    marks = [_text(0, 11, label, "start", "muted", 11)]
    for tick in axis.ticks:
        y = axis.at(tick)
        marks.append(_line(left, y, right, y, "grid"))
        marks.append(_text(left - 7, y + 4, tick_text(tick), "end", "muted", 11))
    return marks
