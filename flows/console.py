"""Shows a run: one line per event on stderr, a progress bar on a terminal, tables and one JSON line
on stdout."""

from __future__ import annotations

import contextvars
import io
import logging
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from llm_core.printing import escape_defects, escape_record, get_logger, is_live, printable_line
from tasks.runtime.artifact import Artifact

if TYPE_CHECKING:
    from llm_core.live import LiveBar

logger = get_logger("flows")

_RULED = "    \n    \n ── \n    \n    \n    \n    \n    \n"
"""How rich's `Box` writes a line under the header and nothing else."""
_GAP = 2
_WORD_CHARS = 20
_FOLDED_CHARS = 10


def say(message: str) -> None:
    """One line for the user; under a Prefect worker it becomes a log line of the flow run."""
    logger.info("%s", message)


def warn(message: str) -> None:
    logger.warning("%s", message)


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """To stderr as it is when a line is written: a progress bar or a test may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def set_up_console() -> None:
    """Show what `say` and `warn` are told, and what tasks say by themselves, as it is, on stderr.
    For the command line only."""
    for speaker in (logger, logging.getLogger("tasks")):
        if not any(isinstance(handler, _Console) for handler in speaker.handlers):
            handler = _Console()
            handler.addFilter(escape_record)
            speaker.addHandler(handler)
        speaker.setLevel(logging.INFO)
        # Prefect's log handler takes over what is propagated; the console has been served.
        speaker.propagate = False
    escape_defects()


class Progress:
    """How far a stage is: a live line on a terminal, else a line now and then.

    Parts finished of parts in all where the stage has parts, else the time it has taken so far:
    silence for minutes looks like a hang.
    """

    LINE_EVERY_S = 10.0
    CLOCK_EVERY_S = 30.0

    def __init__(self, stage: str, with_clock: bool = True) -> None:
        self.stage = stage
        self._bar: LiveBar | None = None
        self._lock = threading.Lock()
        self._started_at = self._said_at = time.monotonic()
        self._closed = threading.Event()
        self._clock: threading.Thread | None = None
        if with_clock:
            # The context goes along: it says which flow run a line belongs to.
            context = contextvars.copy_context()
            self._clock = threading.Thread(target=context.run, args=(self._tick,), daemon=True)
            self._clock.start()

    def __call__(self, finished: int, total: int) -> None:
        if total <= 1:  # of one part there is nothing to tell
            return
        if is_live():
            self._live().update(finished, total)
        elif finished < total and time.monotonic() - self._said_at > self.LINE_EVERY_S:
            self._said_at = time.monotonic()
            say(f"{self.stage}: {finished} of {total} parts")

    def close(self) -> None:
        self._closed.set()
        if self._clock is not None:
            self._clock.join()
        if self._bar is not None:
            self._bar.close()

    def _tick(self) -> None:
        while not self._closed.wait(1.0):
            now = time.monotonic()
            if is_live():
                self._live()
            elif now - self._said_at > self.CLOCK_EVERY_S:
                self._said_at = now
                say(f"{self.stage}: {now - self._started_at:.0f} s so far")

    def _live(self) -> LiveBar:
        from llm_core.live import LiveBar  # and with it rich, which the help does without

        with self._lock:
            if self._bar is None:
                self._bar = LiveBar(self.stage, "part")
            return self._bar


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    spare: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> str:
    """Columns of cells, numbers to the right. Long cells are folded to the width of the terminal,
    or of COLUMNS, or to 80; columns of `spare` are left out there, the first one first, where words
    would be broken otherwise. In a pipe or a file nothing is left out or cut. whole:
    columns whose cells are never folded."""
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width, on_terminal = shutil.get_terminal_size().columns, sys.stdout.isatty()
    columns = {name: [printable_line(row[i]) for row in rows] for i, name in enumerate(header)}
    for name in spare if on_terminal else ():
        longest = [
            max(map(len, " ".join([title, *cells]).split()), default=0)
            for title, cells in columns.items()
        ]
        if sum(longest) + _GAP * (len(columns) - 1) > width:
            del columns[name]
    shown = Table(box=Box(_RULED), show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    needed = 0
    for name, cells in columns.items():
        numeric = bool(cells) and all(cell[:1].isdigit() or not cell for cell in cells)
        # A key or a name is worth nothing in pieces.
        is_word = all(len(cell) <= _WORD_CHARS and " " not in cell for cell in cells)
        unfolded = is_word or name in whole
        shown.add_column(
            Text(printable_line(name)),
            justify="right" if numeric else "left",
            overflow="ellipsis" if unfolded else "fold",
            no_wrap=unfolded,
        )
        needed += _GAP + (max(map(len, [name, *cells])) if unfolded else _FOLDED_CHARS)
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*map(Text, row))
    # Colours would reach logs and pipes as escape sequences.
    width = width if on_terminal else max(width, needed)
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def in_and_out(artifact: Artifact) -> tuple[str, str]:
    """What went into a stage and what came out, in documents, tokens or its own unit."""
    counters, metrics = artifact.counters, artifact.metrics
    match artifact.stage:
        case "tokenizer" if "vocab_size" in metrics:
            return "", f"{metrics['vocab_size']:,} token ids"
        case "shards" if "splits" in metrics:
            splits, empty = metrics["splits"].values(), counters.get("dropped", {}).get("EMPTY", 0)
            dropped = f" ({empty:,} without tokens dropped)" if empty else ""
            return (
                f"{sum(s['documents'] for s in splits):,} documents{dropped}",
                f"{sum(s['tokens'] for s in splits):,} tokens",
            )
        case "train" if "final_train_loss" in metrics:
            return f"{metrics['num_steps']:,} steps", f"loss {metrics['final_train_loss']:.3f}"
        case "evaluate" if "val_bpb" in metrics:
            return (
                f"{metrics['val_bpb']['num_documents']:,} documents",
                f"{metrics['val_bpb']['value']:.3f} bits/byte",
            )
        case "bench" if metrics.get("decode_tok_s") is not None:
            return "", f"{metrics['decode_tok_s']:,.0f} tokens/s"
        case _ if "read" in counters and "kept" in counters:
            return f"{counters['read']:,} documents", f"{counters['kept']:,} documents"
    return "", ""


def own_drops(artifact: Artifact) -> Counter[str]:
    """{reason: documents} that a stage itself dropped."""
    dropped = artifact.counters.get("dropped", {})
    if artifact.stage == "documents":  # its counters have those of every judge
        dropped = artifact.metrics.get("dropped", {}).get("documents", {})
    return Counter(dropped)
