"""Lists the files of a source and gives each a permanent name.

A source is a list of files, folders and globs, here or at an address. Each file is named by its
path relative to the source root, so that moving the folder changes nothing; the root is the folder
that all *entries* have in common, never derived from the files found, so that a source that grows
keeps its names. Formats without a reader are left out of folders and globs, by name; so is what is
hidden below a folder, but one that is named itself may be hidden. Links to folders are followed,
but for those back to a folder above. A file that is listed twice, or reached by two links, is read
once, under its shortest name that is not a link.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from llm_core.config import ConfigError
from tasks.ingest.remotefiles import base_of, fetch, is_remote, list_remote, look
from tasks.readers.contents import describe
from tasks.readers.formats import format_of, known_formats

FETCHES_AT_ONCE = 8
INDEXES = {
    "index.json": "*.mds*",
    "state.json": "*.arrow",
    "dataset_info.json": "*.arrow",
    "dataset_dict.json": "*/*.arrow",
}
"""Of MosaicML's shards and Hugging Face's datasets: {name: what is beside it}."""
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null in the name of a folder."""


class Listing(NamedTuple):
    """{path relative to the root: file}, in name order, and the names of files that folders and
    globs have without a reader."""

    files: Mapping[str, Path]
    left_out: Sequence[str]


def list_files(
    paths: Sequence[str],
    root: Path | None,
    cache: Path,
    where: str = "source",
    form: str | None = None,
) -> Listing:
    """The files of a source. Raises ConfigError for what is missing or unreadable.

    cache: where files from elsewhere are kept. where: the group of settings that a message names.
    form: the ending that names without a known one are taken to have.
    """
    if not paths:
        raise ConfigError(
            f"{where}.paths is empty; name files, folders or globs, e.g."
            f" {where}.paths='[my/*.jsonl]', or take the embedded corpus with run=demo"
        )
    remote = [path for path in paths if is_remote(path)]
    if not remote:
        return _list_local(paths, root, where, form)
    if len(remote) < len(paths) or root is not None:
        here = next((path for path in paths if not is_remote(path)), f"root={root}")
        raise ConfigError(
            f"{where}.paths: {remote[0]} and {here} have no root in common; make each a source of"
            " its own under source.sources"
        )
    top = Path(os.path.commonpath([base_of(path) for path in remote]))
    listed = [list_remote(path, where, form) for path in remote]
    found = {file.place.relative_to(top).as_posix(): file for files, _ in listed for file in files}
    places = (place for _, others in listed for place in others)
    left_out = {place.relative_to(top).as_posix() for place in places} - found.keys()
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        fetches = {name: pool.submit(fetch, found[name], cache, where) for name in sorted(found)}
        try:
            files = {name: future.result() for name, future in fetches.items()}
            return Listing(files, sorted(left_out))
        except BaseException:
            # What runs is waited for, what waits is not begun.
            pool.shutdown(cancel_futures=True)
            raise


def partition_columns(name: str) -> dict[str, str | None]:
    """{column: value} of folders like `year=2024` in the name of a file, as Hive writes them."""
    steps = (step.partition("=") for step in name.split("/")[:-1])
    return {
        column: None if value == NO_PARTITION else unquote(value)
        for column, sign, value in steps
        if column and sign
    }


class Unfetched(NamedTuple):
    """A file elsewhere that a run would fetch."""

    address: str
    size_bytes: int | None


def list_unfetched(
    paths: Sequence[str], cache: Path, where: str = "source", form: str | None = None
) -> list[Unfetched]:
    """What `list_files` would fetch, in order of addresses; servers are asked for names, sizes and
    versions alone."""
    listed = [list_remote(path, where, form)[0] for path in paths if is_remote(path)]
    files = {file.address: file for some in listed for file in some}
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        looked = pool.map(lambda address: look(files[address], cache, where), sorted(files))
        return [
            Unfetched(address, size)
            for address, (is_new, size) in zip(sorted(files), looked, strict=True)
            if is_new
        ]


def _list_local(paths: Sequence[str], root: Path | None, where: str, form: str | None) -> Listing:
    bases = [_base(path) for path in paths]
    top = Path(os.path.abspath(root)) if root else Path(os.path.commonpath(bases))
    named: dict[str, Path] = {}
    left_out: set[Path] = set()
    for path in paths:
        for file, is_read in _expand(path, where, form):
            if not is_read:
                left_out.add(file)
                continue
            try:
                # By its bytes: the locale has no say in identities.
                relative = os.fsencode(file.relative_to(top).as_posix()).decode("utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{where}.paths: a file name under {str(file.parent)!r} is not UTF-8; rename it"
                ) from error
            except ValueError as error:
                raise ConfigError(
                    f"{where}.paths: {file} is not under {where}.root ({top}); name a folder above"
                    " it, or set root to null"
                ) from error
            named[relative] = file
    real, real_top = {name: file.resolve() for name, file in named.items()}, top.resolve()
    # A name that is not a link comes first, then the shortest.
    order = sorted(named, key=lambda name: (real[name] != real_top / name, name.count("/"), name))
    once: dict[Path, str] = {}
    for name in order:
        once.setdefault(real[name], name)
    names = [os.path.relpath(file, top) for file in left_out - set(named.values())]
    shown = (os.fsencode(name).decode("utf-8", "backslashreplace") for name in names)
    return Listing({name: named[name] for name in sorted(once.values())}, sorted(shown))


def _expand(path: str, where: str, form: str | None) -> Iterator[tuple[Path, bool]]:
    """The files of an entry, and whether they are read."""
    place = Path(os.path.abspath(os.path.expanduser(path)))
    if place.is_file():
        if format_of(place.name, form) is None:
            raise ConfigError(
                f"{where}.paths: {path} has no reader; it is {describe(place)}; convert it, or say"
                f" how to read it with {where}.format (auto: by its content); formats"
                f" are {known_formats()}"
            )
        yield place, True
    elif place.is_dir():
        yield from _readable(_below(place), form, where)
    elif glob.has_magic(path):
        # Sorting is the caller's: names, not the order of a directory, decide.
        base, steps = _split(path)
        matches = list(_any_depth(base, steps) if "**" in steps else _matches(base, steps))
        if not matches:
            raise ConfigError(
                f"{where}.paths: {path} matches no file; globs are relative to {Path.cwd()}"
            )
        for one in matches:
            yield from (
                _expand(str(one), where, form) if one.is_dir() else _readable([one], form, where)
            )
    elif place.exists():
        raise ConfigError(
            f"{where}.paths: {path} is a pipe, socket or device; write its content to a file"
        )
    else:
        raise ConfigError(
            f"{where}.paths: {path} does not exist; paths are relative to {Path.cwd()}"
        )


def _below(top: Path) -> Iterator[Path]:
    """Files in a folder, in those below it and behind links, each of these once. Raises OSError
    where one cannot be listed."""
    above = os.path.join(os.path.realpath(top), "")
    listed: set[str] = set()
    starts = [str(top)]
    for start in starts:
        for folder, folders, files in os.walk(start, onerror=_fail):
            real = os.path.realpath(folder)
            if real in listed:
                folders.clear()
                continue
            listed.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            links = [link for name in folders if os.path.islink(link := os.path.join(folder, name))]
            # A link to a folder above would lead here again.
            targets = [(link, os.path.join(os.path.realpath(link), "")) for link in links]
            starts += [link for link, target in targets if not above.startswith(target)]
            yield from (Path(folder) / name for name in files if not name.startswith("."))


def _split(path: str) -> tuple[Path, tuple[str, ...]]:
    """The folder before the first wildcard of a path, and the steps from there.

    The current folder is as it is: signs in its name are not wildcards.
    """
    expanded = os.path.expanduser(path)
    place, given = os.path.abspath(expanded), 0
    if not os.path.isabs(expanded):
        given = len(Path(os.path.commonpath([place, Path.cwd()])).parts)
    parts = Path(place).parts
    first = next((i for i in range(given, len(parts)) if glob.has_magic(parts[i])), len(parts))
    return Path(*parts[:first]), parts[first:]


def _matches(base: Path, wanted: Sequence[str]) -> Iterator[Path]:
    return (base / found for found in glob.iglob(os.path.join(*wanted), root_dir=base))


def _any_depth(base: Path, wanted: Sequence[str]) -> Iterator[Path]:
    """Files that a pattern with ** names, or whose folder it names. The library's own walk goes
    round in circles of links."""
    for file in _below(base) if base.is_dir() else ():
        steps = file.relative_to(base).parts
        in_folder = any(_fits(steps[:i], wanted) for i in range(1, len(steps)))
        if in_folder or _fits(steps, wanted):
            yield file


def _fits(steps: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not steps
    if pattern[0] == "**" and _fits(steps, pattern[1:]):
        return True
    fits = bool(steps) and fnmatch.fnmatchcase(steps[0], pattern[0])
    return fits and _fits(steps[1:], pattern if pattern[0] == "**" else pattern[1:])


def _fail(error: OSError) -> None:
    raise error


def _readable(files: Iterable[Path], form: str | None, where: str) -> Iterator[tuple[Path, bool]]:
    """The files, and whether they have a reader."""
    for file in files:
        is_read = format_of(file.name, form) is not None and not _is_index(file)
        if is_read and file.is_symlink() and not file.exists():
            raise ConfigError(f"{where}.paths: {file} is a link to nothing; fix or remove it")
        if not file.is_dir():
            yield file, is_read and file.is_file()  # and no pipe, socket or device


def _is_index(file: Path) -> bool:
    """Whether a file of a known name lists the data beside it and holds none."""
    beside = INDEXES.get(file.name)
    return beside is not None and next(file.parent.glob(beside), None) is not None


def _base(path: str) -> str:
    """The folder an entry speaks of: itself, the folder of a file, or what stands before the first
    wildcard."""
    place = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(place):
        return place
    if os.path.isfile(place):  # whatever signs its name has
        return os.path.dirname(place)
    before, wanted = _split(path)
    return str(before) if wanted else os.path.dirname(place)
