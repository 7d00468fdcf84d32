"""Shows how the points of a sweep ended: a table that marks the best, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.console import table
from flows.notifications.config import without_notify
from flows.sweeps.config import SweepConfig
from flows.sweeps.job import FAILED, STOPPED, Ending, Point, read_ending
from llm_core.printing import shortened
from llm_core.secrets import mask_secrets, mask_values
from tasks.runtime.artifact import write_json

RESULTS_FILE = "sweep.json"
MAX_CELL_CHARS = 24
"""Of a value in the table."""
MAX_ROWS = 60
"""Points in the table; the file has all of them."""


@dataclass(frozen=True)
class SweepResult:
    """The points of a sweep, how each ended, and which is best."""

    points: Sequence[Point]
    endings: Sequence[Ending]
    config: SweepConfig

    @classmethod
    def read(cls, folder: Path, points: Sequence[Point], config: SweepConfig) -> SweepResult:
        return cls(points, [read_ending(folder, point.number) for point in points], config)

    @property
    def codes(self) -> list[int | None]:
        """The exit code of each point, None where it left none."""
        return [ending.code for ending in self.endings]

    @property
    def num_begun(self) -> int:
        return sum(ending.has_begun for ending in self.endings)

    @property
    def stopped(self) -> int | None:
        """The exit code of a job that was stopped."""
        return next((code for code in self.codes if code in STOPPED), None)

    @property
    def exit_code(self) -> int:
        return self.stopped or max(FAILED if code is None else code for code in self.codes)

    @property
    def outcome(self) -> str:
        return "interrupted" if self.stopped else "failed" if self.exit_code else "completed"

    @property
    def best(self) -> int | None:
        """Place of the point with the best objective."""
        sign = -1 if self.config.maximizes else 1
        known = [
            (sign * value, place)
            for place in range(len(self.points))
            if (value := self.value(place)) is not None and math.isfinite(value)
        ]
        return min(known)[1] if known else None

    def value(self, place: int) -> float | None:
        """The objective of a point."""
        return self.endings[place].results.get(self.config.objective)

    def describe(self) -> str:
        silent = self.num_begun - sum(code is not None for code in self.codes)
        pruned = sum(ending.pruned is not None for ending in self.endings)
        notes = [f"{pruned} pruned"] * bool(pruned)
        notes += [f"{silent} of them died without a result"] * bool(silent)
        notes += [f"{len(self.codes) - self.num_begun} not begun"] * (
            self.num_begun < len(self.codes)
        )
        failed = sum(code != 0 for code in self.codes)
        return f"{len(self.codes)} runs, {failed} failed" + "".join(f", {note}" for note in notes)

    def table(self) -> str:
        """A row for each point: what differs, the objective, how it ended."""
        names = list(dict.fromkeys(name for point in self.points for name in point.about.swept))
        rows = []
        for place, (point, ending) in enumerate(zip(self.points, self.endings, strict=True)):
            value = self.value(place)
            notes = ["best"] * (place == self.best) + [ending.state] * (ending.state != "completed")
            cells = [shortened(point.about.swept.get(name, ""), MAX_CELL_CHARS) for name in names]
            shown = "–" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")
            rows.append([str(point.number + 1), *cells, shown, " ".join(notes)])
        columns = ("run", *names, self.config.objective, "")
        return table(columns, rows[:MAX_ROWS])

    def as_json(self, sweep_id: str, flow: str) -> dict[str, Any]:
        points = [
            {
                "number": point.number + 1,
                "swept": mask_values(dict(point.about.swept)),
                "overrides": [mask_secrets(text) for text in without_notify(point.overrides)],
                "state": ending.state,
                "why": ending.pruned,
                "run_id": ending.run_id,
                "results": ending.results,
            }
            for point, ending in zip(self.points, self.endings, strict=True)
        ]
        return {
            "sweep": sweep_id,
            "flow": flow,
            "objective": self.config.objective,
            "direction": "maximize" if self.config.maximizes else "minimize",
            "best": None if self.best is None else points[self.best],
            "points": points,
        }

    def write(self, folder: Path, flow: str) -> Path:
        file = folder / RESULTS_FILE
        write_json(file, self.as_json(folder.name, flow))
        return file
