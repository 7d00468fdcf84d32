"""Prints text of any origin so that nothing in it acts on a terminal or forges a line.

Control characters (C0, DEL, C1), bidirectional embeddings, overrides and isolates, line and
paragraph separators and lone surrogates are written as `\\uXXXX`. Those are JSON's own escapes, so
that JSON is still JSON of the same values. Other text stays as it is, in every script: joiners,
marks and emoji included. Secrets are masked in whatever goes to stderr or a log. Nothing else in
this program writes to stdout, stderr or a log.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from typing import TextIO

from llm_core.secrets import mask_secrets

ACTING = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
"""Ranges of a regular expression: what acts on its reader, but for tab and line feed."""

_ACTING = re.compile(f"[{ACTING}]")
_ACTING_IN_A_LINE = re.compile(f"[\t\n{ACTING}]")


def printable(text: str) -> str:
    """`text`, of any number of lines, with every other character that acts escaped. Idempotent."""
    return _ACTING.sub(_escape, text)


def printable_line(value: object) -> str:
    """The same as one line: what comes from data can neither begin a line nor leave its column."""
    return _ACTING_IN_A_LINE.sub(_escape, str(value))


def one_line(value: object) -> str:
    """`value` with its line breaks and runs of blanks as one blank each."""
    return " ".join(str(value).split())


def shortened(text: str, max_chars: int) -> str:
    """`text`, or its beginning and an ellipsis where it is longer than `max_chars`."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def percent(fraction: float, form: str = ".0") -> str:
    """A share with a blank before the sign. form: of the number, as in a format specification."""
    return f"{format(fraction, f'{form}%')[:-1]} %"


def publishable(value: object) -> str:
    """Printable text without secrets, for logs, errors, Prefect and MLflow."""
    return printable(mask_secrets(str(value)))


def show(text: str = "", end: str = "\n", flush: bool = False) -> None:
    """Write text, a table or JSON to stdout."""
    print(printable(text), end=end, flush=flush)


def note(message: object, stream: TextIO | None = None) -> None:
    """Write one line to stderr, or to another stream."""
    print(printable_line(mask_secrets(str(message))), file=stream or sys.stderr, flush=True)


def is_live(stream: TextIO | None = None) -> bool:
    """Whether somebody looks at the stream (stderr) on a terminal that can move its cursor."""
    terminal = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return terminal and (stream or sys.stderr).isatty()


def print_defect(error: BaseException) -> None:
    """Write a traceback to stderr."""
    sys.stderr.write(publishable("".join(traceback.format_exception(error))))


def escape_defects() -> None:
    """Escape also what Python prints by itself: tracebacks, and log lines without a handler."""
    sys.excepthook = lambda kind, error, trace: print_defect(error)
    if logging.lastResort is not None:
        logging.lastResort.addFilter(escape_record)


def get_logger(name: str) -> logging.Logger:
    """A logger whose lines are escaped before any handler, ours or Prefect's, has them."""
    logger = logging.getLogger(name)
    logger.addFilter(escape_record)
    return logger


def escape_record(record: logging.LogRecord) -> bool:
    """Escape a log record and its traceback, to one line if it has arguments. Passes all."""
    message = publishable(record.getMessage())
    record.msg, record.args = printable_line(message) if record.args else message, None
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    if record.exc_text:
        record.exc_text = publishable(record.exc_text)
    return True


def _escape(match: re.Match[str]) -> str:
    return {"\n": r"\n", "\t": r"\t"}.get(match[0]) or f"\\u{ord(match[0]):04x}"
