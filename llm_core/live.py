"""Shows on a terminal how far work is: a live line with a bar, a rate and the time left.

What rich renders passes through `llm_core.printing`: text of any origin is escaped and secrets are
masked, and the only control codes are rich's own. Lines that are written to stderr meanwhile stand
above the live one. Logs and pipes get none of this: callers ask `is_live` and write lines there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.segment import Segment
from rich.text import Text

from llm_core.printing import printable_line, publishable

BAR_COLUMNS = 16


class LiveConsole(Console):
    """A console for a terminal that shows text as `llm_core.printing` does."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(
            file=stream, force_terminal=True, markup=False, emoji=False, soft_wrap=True
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_text = segment.control is None
            yield Segment(publishable(segment.text), segment.style) if is_text else segment

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: a run that is killed could not bring it back."""
        return False


class LiveBar:
    """The live line of one piece of work, from its making until `close`.

    name: of the work. unit: what is counted, in the singular. done: what was there before.
    """

    def __init__(self, name: str, unit: str, done: int = 0, stream: TextIO | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(BAR_COLUMNS),
            _Facts(unit),
            console=LiveConsole(stream or sys.stderr),
            refresh_per_second=4,
            transient=True,
            # stdout may go elsewhere than the terminal.
            redirect_stdout=False,
        )
        self._task = self._progress.add_task(
            printable_line(name), total=None, completed=done, note=""
        )
        self._progress.start()

    def update(self, done: int, total: int, note: str = "") -> None:
        self._progress.update(self._task, completed=done, total=total, note=note)

    def close(self) -> None:
        self._progress.stop()


class _Facts(ProgressColumn):
    """Done of all, rate, time left or so far, and what the work says of itself."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        facts = []
        if task.total is not None:
            facts.append(f"{task.completed:,.0f}/{task.total:,.0f} {self._unit}s")
            facts += [f"{task.speed:,.3g} {self._unit}s/s"] if task.speed else []
        left_s = task.time_remaining if task.total is not None else None
        # One of both: the line fits 80 columns.
        facts.append(_clock(task.elapsed) if left_s is None else f"{_clock(left_s)} left")
        facts += [task.fields["note"]] if task.fields["note"] else []
        return Text("  ".join(facts), no_wrap=True)


def _clock(elapsed_s: float | None) -> str:
    return str(timedelta(seconds=int(elapsed_s or 0)))
