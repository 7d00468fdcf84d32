"""Reads the texts of a file that a setting names: suites, and examples for models of good text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llm_core.config import ConfigError
from tasks.readers import Columns, Fault, Record, read_streams
from tasks.readers.formats import format_of, known_formats
from tasks.readers.items import find_column


def check_text_files(name: str, files: tuple[Path, ...]) -> None:
    """Raise ConfigError unless each file is there and has a reader."""
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{name} ({file}) is not a file; relative paths start at {Path.cwd()}"
            )
        if format_of(file.name) is None:
            raise ConfigError(
                f"{name} ({file}) has an ending without a reader; rename or convert it to one of"
                f" {known_formats()}"
            )


def texts_of_file(path: Path, text_column: str) -> Iterator[str]:
    """The texts of a file's records, in order; records without a text are passed over."""
    for record in records_of_file(path, text_column):
        found = find_column(record.values, text_column) if isinstance(record, Record) else None
        if found and isinstance(text := found[0][found[1]], str):
            yield text


def records_of_file(path: Path, text_column: str) -> Iterator[Record | Fault]:
    """The records of a file, or of the members of an archive, and what should be one and is not."""
    with path.open("rb") as file:
        for _, items in read_streams(file, path.name, Columns(text_column, None, None, None)):
            for item in items:
                if isinstance(item, (Record, Fault)):
                    yield item
