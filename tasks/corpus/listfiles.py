"""Reads list files: one entry per line, UTF-8. Empty lines and lines that begin with `#` are
skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from llm_core.config import ConfigError


def read_entries(
    path: Path, where: str, undecodable: Literal["strict", "surrogateescape"] = "strict"
) -> list[str]:
    """The entries of a file, without white space at their ends; `where` is the setting's name.

    Raises ConfigError where it is not a file or, unless surrogates are asked for, not UTF-8.
    """
    check_list_files(where, (path,))
    try:
        text = path.read_text("utf-8-sig", undecodable)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} ({path}) is not UTF-8 at byte {error.start}; convert it with iconv"
        ) from error
    return [line for raw in text.split("\n") if (line := raw.strip()) and not line.startswith("#")]


def check_list_files(where: str, paths: tuple[Path, ...]) -> None:
    """Raise ConfigError where one of them is not a file."""
    for path in paths:
        if not path.is_file():
            raise ConfigError(
                f"{where} ({path}) is not a file; give the path of a text file with one entry per"
                " line"
            )
