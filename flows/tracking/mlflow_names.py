"""Names metrics, parameters and texts of a run so that MLflow takes them and no two become one.

A metric is named by its path, with slashes between; a parameter with dots. What MLflow allows stays
as it is. Any other character is written `_xHEX_`, and so is a separator inside of one piece; so a
name leads back to its path. A name or text that is too long is cut and ends in a digest of all of
it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_core.printing import printable

MAX_NAME_CHARS = 250
MAX_EXPERIMENT_CHARS = 500
MAX_TEXT_CHARS = 5000
"""Of a parameter or a tag: what the server of any version takes."""

METRIC_SEPARATOR, PARAM_SEPARATOR = "/", "."

_ILLEGAL = r"[^\w.\- :/]"


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers among nested values, by names that MLflow takes; tables and texts are in
    `artifact.json`."""
    return {
        name_of(path, METRIC_SEPARATOR): float(value)
        for path, value in leaves(values)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
    }


def numbers_of_stage(counters: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of both; a counter that has the name of a metric is found below `counters`."""
    counted, measured = numbers(counters), numbers(metrics)
    shared = {name: value for name, value in counted.items() if measured.get(name, value) != value}
    return {**counted, **measured, **{f"counters/{name}": value for name, value in shared.items()}}


def params(values: Mapping[str, Any]) -> dict[str, str]:
    """The leaves of a configuration, by dotted names."""
    return {
        name_of(path, PARAM_SEPARATOR): cut(str(value), MAX_TEXT_CHARS)
        for path, value in leaves(values)
    }


def name_of(path: Sequence[str], separator: str) -> str:
    """One legal name for a path of any texts; different paths have different names."""
    return cut(separator.join(_escape(piece, separator) for piece in path), MAX_NAME_CHARS)


def cut(text: str, limit: int) -> str:
    """`text` as it may be shown, or its beginning and a digest of all of it where it is longer than
    `limit`."""
    text = printable(text)
    if len(text) <= limit:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: limit - len(digest) - 1]}_{digest}"


def _escape(piece: str, separator: str) -> str:
    if not piece:
        return "_x_"
    illegal = f"{_ILLEGAL}|[{separator}/]"
    # Leading dots name folders, and MLflow keeps names that are paths.
    dots = r"^\.(?=\.|$)"
    # What looks like an escape is none: its underscore is escaped.
    looks_escaped = f"_(?=x[0-9a-f]*(?:_|{illegal}))"
    return re.sub(f"{illegal}|{looks_escaped}|{dots}", lambda match: f"_x{ord(match[0]):x}_", piece)


def leaves(
    values: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values that are not mappings, with the names that lead to them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, str(name)))
        else:
            yield (*path, str(name)), value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond doubles
        return False
