"""Draws what `benchmarks.engine.parallel` has measured: a panel for each link, in which layouts are
ordered by the loss they have reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEST, OTHER, INK, FAINT = "#2a6f97", "#a9c5d6", "#1b1b1b", "#6b6b6b"
WIDTH, NAME, BAR, ROW, HEAD = 520, 92, 170, 18, 44
"""Pixels of a panel, of the names in it, of its longest bar, and heights of a row and a heading."""


def chart(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """An SVG. found: {link: {layout: row}}; bars are losses on one scale for all links."""
    panels = [(link, rows) for link, rows in found.items() if rows]
    losses = [row["val_loss"] for _, rows in panels for row in rows.values()]
    least, most = min(losses) - 0.05, max(losses)
    height = HEAD + ROW * max(len(rows) for _, rows in panels) + 16
    parts = []
    for number, (link, rows) in enumerate(panels):
        left, top = WIDTH * (number % 2), height * (number // 2)
        parts.append(_text(left + 10, top + 18, link, weight="bold"))
        heads = "loss, and tokens per second: measured (predicted)"
        parts.append(_text(left + NAME + 8, top + 34, heads, FAINT))
        ordered = sorted(rows.items(), key=lambda item: item[1]["val_loss"])
        for place, (name, row) in enumerate(ordered):
            y, loss = top + HEAD + ROW * place, row["val_loss"]
            width = 12 + (BAR - 12) * (loss - least) / (most - least)
            parts.append(_text(left + NAME, y + 11, name, anchor="end"))
            parts.append(
                f'<rect x="{left + NAME + 8}" y="{y}" width="{width:.0f}" height="13"'
                f' fill="{BEST if place == 0 else OTHER}"/>'
            )
            told = f"{loss:.3f}   {row['tokens_per_s']:,.0f}"
            parts.append(_text(left + NAME + 14 + round(width), y + 11, told))
            predicted = f"({row['predicted_tokens_per_s']:,.0f})"
            parts.append(_text(left + WIDTH - 14, y + 11, predicted, FAINT, "end"))
    whole_width, whole_height = WIDTH * min(2, len(panels)), height * ((len(panels) + 1) // 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole_width}" height="{whole_height}"'
        ' font-family="sans-serif" font-size="12"><rect fill="white"'
        f' width="{whole_width}" height="{whole_height}"/>{"".join(parts)}</svg>\n'
    )


def _text(
    x: int, y: int, words: str, colour: str = INK, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
        f' xml:space="preserve">{words}</text>'
    )
