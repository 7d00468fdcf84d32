"""Fills the templates of the page: sections, cards, notices.

One file that opens from disk: style inline, no script, no font, no request. A content policy in the
head forbids all of them, so that even markup that slipped through could load or run nothing.
Templates escape every value that is not Markup (Jinja2's autoescape); characters that cannot be
seen are made visible in the whole page at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.report.charts import NARROW_WIDTH, WIDE
from tasks.report.markup import code, visible
from tasks.report.quantities import (
    compact,
    count,
    duration,
    fixed,
    percent,
    plural,
    share,
    significant,
    size,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of the page: its heading, one sentence with its finding, and what its template
    shows."""

    anchor: str
    """Where links to it lead, and the name of its template."""
    heading: str
    finding: str
    values: Mapping[str, Any] | None = None
    """None where nothing was measured: the finding says so, and stands alone."""

    @property
    def body(self) -> Markup:
        if self.values is None:
            return Markup()
        return Markup(_templates().get_template(f"{self.anchor}.html").render(self.values))


@dataclass(frozen=True)
class Card:
    """A headline number: what it is, the number, lines below it, and what it means."""

    label: str
    value: str
    details: Sequence[str]
    meaning: str

    @property
    def is_quiet(self) -> bool:
        """Whether words stand in place of the number."""
        return not any(map(str.isdigit, self.value))


def page(
    title: str,
    subtitle: str,
    cards: Sequence[Card],
    notices: Sequence[str] | None,
    sections: Sequence[Section],
    kicker: str = "Run report",
) -> str:
    """The page as text; without `notices` it does not say that there are none."""
    template = _templates().get_template("page.html")
    return visible(
        template.render(
            policy=POLICY,
            style=Markup((FOLDER / "style.css").read_text("utf-8")),
            title=title,
            subtitle=subtitle,
            cards=cards,
            notices=notices,
            sections=sections,
            kicker=kicker,
        )
    )


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    shows = (code, compact, count, duration, fixed, percent, plural, share, significant, size)
    environment.globals |= {show.__name__: show for show in shows}
    environment.globals |= {"WIDE": WIDE, "NARROW": NARROW_WIDTH}
    return environment
