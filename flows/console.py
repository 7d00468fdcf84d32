"""Shows a run: one line per event on stderr, a progress bar on a terminal, tables and one JSON line
on stdout."""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from llm_core.printing import escape_defects, escape_record, get_logger, printable_line
from tasks.runtime.artifact import Artifact

logger = get_logger("flows")


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
    """How far a stage is: a bar on a terminal, else a line now and then.

    Parts finished of parts in all where the stage has parts, else the time it has taken so far:
    silence for minutes looks like a hang.
    """

    LINE_EVERY_S = 10.0
    CLOCK_EVERY_S = 30.0

    def __init__(self, stage: str, with_clock: bool = True) -> None:
        self.stage = stage
        self._bar: Any = None
        self._started_at = self._said_at = time.monotonic()
        self._closed = threading.Event()
        self._clock: threading.Thread | None = None
        if with_clock:
            # The context goes along: it says which flow run a line belongs to.
            context = contextvars.copy_context()
            self._clock = threading.Thread(target=context.run, args=(self._tick,), daemon=True)
            self._clock.start()

    def __call__(self, finished: int, total: int) -> None:
        if sys.stderr.isatty() and total > 1:
            if self._bar is None or self._bar.total is None:
                self._close_bar()
                self._bar = self._open_bar(total=total, unit="part")
            self._bar.update(finished - self._bar.n)
        elif (
            finished < total > 1 and time.monotonic() - self._said_at > self.LINE_EVERY_S
        ):  # of one part there is nothing to tell
            self._said_at = time.monotonic()
            say(f"{self.stage}: {finished} of {total} parts")

    def close(self) -> None:
        self._closed.set()
        if self._clock is not None:
            self._clock.join()
        self._close_bar()

    def _tick(self) -> None:
        while not self._closed.wait(1.0):
            now = time.monotonic()
            if sys.stderr.isatty():
                if self._bar is None:
                    self._bar = self._open_bar(total=None, bar_format="{desc}: {elapsed}")
                self._bar.refresh()
            elif now - self._said_at > self.CLOCK_EVERY_S:
                self._said_at = now
                say(f"{self.stage}: {now - self._started_at:.0f} s so far")

    def _open_bar(self, **settings: Any) -> Any:
        from tqdm import tqdm

        return tqdm(desc=self.stage, leave=False, **settings)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces; numbers to the right."""
    lines = [[printable_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    numeric = [
        all(row[i][:1].isdigit() or not row[i] for row in rows) and bool(rows)
        for i in range(len(header))
    ]
    shown = []
    for line in lines:
        cells = [
            cell.rjust(w) if right else cell.ljust(w)
            for cell, w, right in zip(line, widths, numeric, strict=True)
        ]
        shown.append("  ".join(cells).rstrip())
    return "\n".join([shown[0], "  ".join("─" * w for w in widths), *shown[1:]])


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


def headline(artifacts: Mapping[str, Artifact]) -> dict[str, Any]:
    """The numbers a run is compared by; null for stages that this run does not reach."""

    def metric(stage: str, name: str) -> Any:
        value = artifacts[stage].metrics.get(name) if stage in artifacts else None
        return value.get("value", value.get("median")) if isinstance(value, Mapping) else value

    return {
        "vocab_size": metric("tokenizer", "vocab_size"),
        "val_bpb": metric("evaluate", "val_bpb"),
        "bigram_bpb": metric("evaluate", "bigram_bpb"),
        "unigram_bpb": metric("evaluate", "unigram_bpb"),
        "decode_tok_s": metric("bench", "decode_tok_s"),
    }
