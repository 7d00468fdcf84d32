"""Draws the parts of a chart as SVG elements: shapes, texts, axes, and rows with a label each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tasks.report.scales import FONT_SIZE, Axis, shorten, text_width, tick_text


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element. `class_` stands for class, `_` in other names for `-`; what is None is left
    out."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(child) for child in children if child is not None)
    return Markup(f"<{name}{pairs}>{inside}</{name}>")


def _plain(value: object) -> object:
    """Numbers with one decimal, without the trailing zero: pages stay small and equal
    everywhere."""
    # Adding 0.0 turns a negative zero into zero.
    return f"{round(value, 1) + 0.0:.6g}" if isinstance(value, (int, float)) else value


def svg(width: float, height: float, marks: Sequence[Markup]) -> Markup:
    frame, style = f"0 0 {width:g} {height:.0f}", f"max-width:{width * 1.25:g}px"
    return tag("svg", *marks, viewBox=frame, role="img", style=style)


def titled(title: str, *marks: Markup | None) -> Markup:
    """Marks that show `title` when they are pointed at."""
    return tag("g", tag("title", title), *marks)


def text(
    x: float, y: float, shown: str, anchor: str, tone: str | None = None, font_size: int = FONT_SIZE
) -> Markup:
    return tag("text", shown, x=x, y=y, text_anchor=anchor, class_=tone, font_size=font_size)


def rect(x: float, y: float, width: float, height: float, tone: str, **more: object) -> Markup:
    return tag("rect", x=x, y=y, width=width, height=height, class_=tone, **more)


def line(x0: float, y0: float, x1: float, y1: float, tone: str) -> Markup:
    return tag("line", x1=x0, y1=y0, x2=x1, y2=y1, class_=tone)


def whisker(x0: float, x1: float, y: float, tone: str) -> list[Markup]:
    ends = [line(x, y - 4, x, y + 4, tone) for x in (x0, x1)]
    return [line(x0, y, x1, y, tone), *ends]


def x_axis(axis: Axis, y: float, label: str, shown: Callable[[float], str]) -> list[Markup]:
    marks = [line(axis.start, y, axis.end, y, "axis")]
    taken = float("-inf")
    for tick in axis.ticks:
        x, name = axis.at(tick), shown(tick)
        half = text_width(name, 11) / 2
        marks.append(line(x, y, x, y + 4, "axis"))
        # A name that would touch its neighbour is left out; its tick stays.
        if x - half > taken + 4:
            marks.append(text(x, y + 17, name, "middle", "muted", 11))
            taken = x + half
    return [*marks, text((axis.start + axis.end) / 2, y + 33, label, "middle", "muted", 11)]


def y_axis(axis: Axis, left: float, right: float, label: str) -> list[Markup]:
    marks = [text(0, 11, label, "start", "muted", 11)]
    for tick in axis.ticks:
        y = axis.at(tick)
        marks.append(line(left, y, right, y, "grid"))
        marks.append(text(left - 7, y + 4, tick_text(tick), "end", "muted", 11))
    return marks


@dataclass(frozen=True)
class Rows:
    """The columns of a row chart: label, plot, value; on a small width label and value stand above
    the plot."""

    left: float
    right: float
    width: float
    row_height: int
    stacked: bool

    @staticmethod
    def fit(labels: Sequence[str], shown: Sequence[str], width: int) -> Rows:
        if width <= 500:
            return Rows(0, width, width, 36, True)
        label_room = min(max(map(text_width, labels), default=0) + 14, 240)
        shown_room = min(max(map(text_width, shown), default=0) + 12, 260)
        return Rows(label_room, width - shown_room, width, 24, False)

    def middle(self, i: int) -> float:
        """Where the plot of row `i` is."""
        return i * self.row_height + (26 if self.stacked else self.row_height / 2)

    def row(self, i: int, label: str, shown: str, title: str, *marks: Markup) -> Markup:
        """Row `i` with its label and value, which can be pointed at everywhere."""
        top = i * self.row_height
        y = top + 14 if self.stacked else self.middle(i) + 4
        if self.stacked:
            room = self.width - text_width(shown) - 12
            name = text(0, y, shorten(label, room), "start", "label")
        else:
            name = text(self.left - 10, y, shorten(label, self.left - 12), "end", "label")
        target = rect(0, top, self.width, self.row_height, "target")
        return titled(title, target, name, text(self.width, y, shown, "end", "value"), *marks)
