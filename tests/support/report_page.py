"""The page of made-up artifacts, and what a browser would see of it."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tasks.report.config import ReportConfig
from tasks.report.stage import REPORT_FILE, write_report
from tasks.runtime.artifact import Artifact

VOID = {"meta", "br", "hr", "col", "wbr"}


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text; and whether every tag is closed in
    order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.feed(html)
        self.close()
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if len(attrs) != len({name for name, _ in attrs}):
            self.faults.append(f"<{tag}> repeats an attribute")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes something else")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def render(artifacts: list[Artifact], out_dir: Path, title: str = "A run") -> str:
    made = write_report(*artifacts, out_dir, ReportConfig(title))  # type: ignore[arg-type]
    assert made.stage == "report" and [f.name for f in made.files("*")] == [REPORT_FILE]
    json.dumps({"counters": made.counters, "metrics": made.metrics}, allow_nan=False)
    return (out_dir / REPORT_FILE).read_text("utf-8")


def changed(artifacts: list[Artifact], stage: str, **metrics: Any) -> list[Artifact]:
    return [
        dataclasses.replace(a, metrics={**a.metrics, **metrics}) if a.stage == stage else a
        for a in artifacts
    ]
