"""The page and its building blocks: sections, figures, tables, cards, notes.

One file that opens from disk: style inline, no script, no font, no request. A content policy in the
head forbids all of them, so that even markup that slipped through could load or run nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.report.charts import NARROW_WIDTH, WIDE
from tasks.report.markup import Markup, constant, join, tag
from tasks.report.quantities import count
from tasks.report.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Section:
    """A part of the page: anchor, heading, one sentence with its finding, and its pieces."""

    anchor: str
    heading: str
    finding: Any
    pieces: Sequence[Markup | Sequence[Markup] | None]


@dataclass(frozen=True)
class Card:
    """A headline number: what it is, the number, a line below it, and what it means."""

    label: str
    value: str
    detail: Any
    meaning: str


def page(
    title: str,
    subtitle: Any,
    cards: Sequence[Card],
    notices: Sequence[Any] | None,
    sections: Sequence[Section],
    kicker: str = "Run report",
) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", constant(STYLE)),
    )
    contents = tag(
        "nav",
        tag("ol", [tag("li", tag("a", s.heading, href=f"#{s.anchor}")) for s in sections]),
        aria_label="Contents",
    )
    header = tag(
        "header",
        tag("p", kicker, class_="kicker"),
        tag("h1", tag("bdi", title)),
        tag("p", subtitle, class_="subtitle"),
        tag("dl", [_card(card) for card in cards], class_="cards"),
        _notices(notices) if notices is not None else None,
    )
    body = tag("body", contents, tag("main", header, [_section(s) for s in sections]))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def figure(
    title: Any,
    draw: Callable[[int], Markup],
    note: Any,
    legend: Markup | None = None,
    half: bool = False,
) -> Markup:
    """A chart drawn for a wide and a narrow column, its title above and how to read it below."""
    drawings: list[Markup] = [] if half else [tag("div", draw(WIDE), class_="wide")]
    drawings.append(tag("div", draw(NARROW_WIDTH), class_="always" if half else "narrow"))
    return tag("figure", tag("h3", title), legend, drawings, tag("figcaption", note))


def pair(*figures: Markup | None) -> Markup | None:
    """Small figures side by side where there is room."""
    there = [one for one in figures if one is not None]
    return tag("div", there, class_="pair") if there else None


def legend(*entries: tuple[str, str]) -> Markup:
    """(class of the mark, meaning) …"""
    return tag(
        "p", [tag("span", tag("i", class_=tone), text) for tone, text in entries], class_="legend"
    )


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    note: Any = None,
    left: int = 1,
) -> Markup:
    """A table whose first `left` columns are text and whose others are numbers."""
    align = ["t" if i < left else "n" for i in range(len(columns))]
    head = tag(
        "tr", [tag("th", name, class_=align[i], scope="col") for i, name in enumerate(columns)]
    )
    body = [
        tag("tr", [tag("td", cell, class_=align[i]) for i, cell in enumerate(row)]) for row in rows
    ]
    grid = tag(
        "div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll", tabindex="0"
    )
    return tag(
        "div",
        tag("h3", title) if title else None,
        grid,
        tag("p", note, class_="note") if note else None,
        class_="tabled",
    )


def facts(title: str | None, entries: Sequence[tuple[str, Any, str]], note: Any = None) -> Markup:
    """Named values with what each means."""
    rows = [
        tag("div", tag("dt", name), tag("dd", tag("b", value), tag("span", meaning)))
        for name, value, meaning in entries
    ]
    heading = tag("h3", title) if title else None
    return tag(
        "div",
        heading,
        tag("dl", rows, class_="facts"),
        tag("p", note, class_="note") if note else None,
        class_="tabled",
    )


def folded(summary: Any, *pieces: Any, anchor: str | None = None) -> Markup:
    """Detail that stays closed until asked for."""
    return tag("details", tag("summary", summary), pieces, id=anchor)


def absent(title: str, what: str) -> Markup:
    """A figure that cannot be drawn, said where it would stand."""
    return tag(
        "div",
        tag("h3", title),
        tag("p", f"{what}: not measured in this run.", class_="absent"),
        class_="tabled",
    )


def ledger(entries: Sequence[tuple[str, Any, str]]) -> Markup:
    """Named texts, one below the other, each with what it means."""
    rows = [
        tag("div", tag("dt", name), tag("dd", value, tag("span", meaning)))
        for name, value, meaning in entries
    ]
    return tag("dl", rows, class_="ledger")


def amount(value: float | None, largest: float) -> Markup:
    """A count in a table cell, with a small bar that shows it next to the largest of its column."""
    share = 0.0 if value is None or largest <= 0 else min(max(value / largest, 0.0), 1.0)
    bar = tag("i", class_="inline-bar", style=f"--w:{100 * share:.1f}%")
    return join([bar, tag("span", count(value), class_="amount")])


def code(text: str) -> Markup:
    """A name from configuration, which may break where it is joined."""
    return tag("code", join(text.split("_"), join(["_", tag("wbr")])))


def _section(section: Section) -> Markup:
    heading = tag("h2", section.heading)
    return tag(
        "section",
        heading,
        tag("p", section.finding, class_="finding"),
        section.pieces,
        id=section.anchor,
    )


def _card(card: Card) -> Markup:
    value = tag(
        "dd",
        tag("b", card.value, class_=None if any(map(str.isdigit, card.value)) else "quiet"),
        tag("span", card.detail, class_="detail"),
    )
    return tag("div", tag("dt", card.label), value, tag("dd", card.meaning, class_="meaning"))


def _notices(notices: Sequence[Any]) -> Markup | None:
    if not notices:
        return tag("p", "No warnings: every check of this report passed.", class_="all-clear")
    heading = tag("h2", "Read this first")
    return tag(
        "div",
        heading,
        tag("ul", [tag("li", join([notice])) for notice in notices]),
        class_="notices",
        role="note",
    )
