"""Which files does a source consist of, and what are they called for ever?

A source is a list of files, folders and globs. Each file is named by its path relative to the source root, so that
moving the folder changes nothing; the root is the folder that all *entries* have in common, never derived from
the files found, so that a source that grows keeps its names. Hidden files and formats without a reader are left
out of folders and globs. A file that is listed twice, or reached by two links, is read once.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_core.config import ConfigError
from tasks.bytestreams import COMPRESSIONS
from tasks.readers import FORMATS, format_of


def list_files(paths: Sequence[str], root: Path | None) -> dict[str, Path]:
    """{path relative to the root: file}, in name order. Raises ConfigError for what is missing or unreadable."""
    if not paths:
        raise ConfigError("source.paths is empty; name files, folders or globs, e.g. source.paths='[my/*.jsonl]'")
    bases = [_base(path) for path in paths]
    top = Path(os.path.abspath(root)) if root else Path(os.path.commonpath(bases))
    named: dict[str, Path] = {}
    for path in paths:
        for file in _expand(path):
            try:
                relative = file.relative_to(top).as_posix()
                relative.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ConfigError(f"source.paths: a file name under {file.parent!r} is not UTF-8; rename it") from error
            except ValueError as error:
                raise ConfigError(f"source.paths: {file} is not under source.root ({top}); set root above it or null") from error
            named[relative] = file
    once: dict[Path, str] = {}
    for relative in sorted(named):
        once.setdefault(named[relative].resolve(), relative)
    return {relative: named[relative] for relative in sorted(once.values())}


def _expand(path: str) -> Iterator[Path]:
    place = Path(os.path.abspath(os.path.expanduser(path)))
    if place.is_file():
        if format_of(place) is None:
            known = ", ".join(sorted(FORMATS))
            raise ConfigError(
                f"source.paths: {path} has no reader; formats are {known}, text ones also with {' or '.join(COMPRESSIONS)}"
            )
        yield place
    elif place.is_dir():
        yield from _readable(Path(folder) / name for folder, _, names in os.walk(place) for name in names)
    elif glob.has_magic(path):
        # Sorting is the caller's: names, not the order of a directory, decide.
        found = [Path(p) for p in glob.glob(str(place), recursive=True)]
        if not found:
            raise ConfigError(f"source.paths: {path} matches no file; globs are relative to {Path.cwd()}")
        for one in found:
            yield from _expand(str(one)) if one.is_dir() else _readable([one])
    else:
        raise ConfigError(f"source.paths: {path} does not exist; paths are relative to {Path.cwd()}")


def _readable(files: object) -> Iterator[Path]:
    for file in files:  # type: ignore[attr-defined]
        hidden = any(part.startswith(".") for part in file.parts[-2:])
        if file.is_file() and not hidden and format_of(file) is not None:
            yield file


def _base(path: str) -> str:
    """The folder an entry speaks of: itself, the folder of a file, or what stands before the first wildcard."""
    place = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(place):
        return place
    while glob.has_magic(place):
        place = os.path.dirname(place)
        if not glob.has_magic(place):
            return place
    return os.path.dirname(place)
