"""Reads JSON that others may have written: bounded in bytes, depth and digits before anything is
made of it. Writes none beyond these bounds.

Python's parser recurses with depth, converts a number of any length, and holds what it reads at
many times its size; what breaks is then a RecursionError, an OverflowError where the number is
used, or memory. So the text is scanned first, outside of its strings. Whatever is wrong is one
`UnreadableJson`, whose message is a phrase for the caller's line.
"""

from __future__ import annotations

import json
import os
import re
import stat
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

from llm_core.config import ConfigError
from llm_core.printing import printable

MAX_BYTES = 256 << 20
"""Tokenizers of 256,000 pieces have some 35 MB."""
MAX_DEPTH = 64
MAX_DIGITS = 100
"""In one number; a float of 64 bits has 17."""

# Possessive, so that a string that does not end is passed over once.
STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
LONG_NUMBER = re.compile(rf"[0-9][0-9.]{{{MAX_DIGITS},}}")
OTHERS = re.compile(r"[^\[\]{}]+")


class UnreadableJson(ValueError):
    """A file or a text that is not JSON within the limits; the message says which."""


def dump_json(what: str, value: Any, **layout: Any) -> str:
    """Printable JSON that `parse_json` reads. Raises ConfigError where it would not, and ValueError
    for what JSON does not have.

    what: what is written, for the message. layout: options of json.dumps.
    """
    try:
        text = printable(json.dumps(value, sort_keys=True, allow_nan=False, **layout))
        # A character takes four bytes at most, so few texts are encoded for their length. A line
        # end may follow.
        if 4 * len(text) >= MAX_BYTES and len(text.encode("utf-8", "surrogatepass")) >= MAX_BYTES:
            raise UnreadableJson(f"more than {MAX_BYTES:,} bytes")
        _require_bounded(text)
    except UnreadableJson as error:
        raise ConfigError(
            f"{what} would be JSON that is not read again ({error}); shorten what it records"
        ) from error
    return text


def read_json(file: Path, max_bytes: int = MAX_BYTES) -> Any:
    """What a JSON file holds. Raises UnreadableJson, and OSError where there is no such file."""
    with file.open("rb") as stream:
        found = os.fstat(stream.fileno())
        # A read of the limit would take that much memory for every small file.
        size = found.st_size if stat.S_ISREG(found.st_mode) else max_bytes
        data = stream.read(min(size, max_bytes) + 1)
    if len(data) > max_bytes:
        raise UnreadableJson(f"more than {max_bytes:,} bytes")
    return parse_json(data)


def parse_json(data: bytes | str) -> Any:
    """What a JSON text says. Raises UnreadableJson."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        _require_bounded(text)
        return json.loads(text)
    except UnreadableJson:
        raise
    except ValueError as error:  # not UTF-8, or not JSON
        raise UnreadableJson(str(error)) from error


def _require_bounded(text: str) -> None:
    bare = STRINGS.sub("", text)
    if LONG_NUMBER.search(bare):
        raise UnreadableJson(f"a number of more than {MAX_DIGITS} digits")
    brackets = OTHERS.sub("", bare)
    depths = accumulate(1 if bracket in "[{" else -1 for bracket in brackets)
    if max(depths, default=0) > MAX_DEPTH:
        raise UnreadableJson(f"nested deeper than {MAX_DEPTH} levels")


def is_plain_name(name: object) -> bool:
    """Whether this names a file in a folder and nothing elsewhere."""
    return isinstance(name, str) and "/" not in name and is_inside(name)


def is_inside(path: object) -> bool:
    """Whether a relative path in a record stays in the record's folder, by its text alone."""
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    steps = PurePosixPath(path)
    return not steps.is_absolute() and ".." not in steps.parts and steps.name != ""
