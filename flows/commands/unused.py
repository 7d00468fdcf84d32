"""Finds what no recent run needs in a store, and removes it: never anything that a store did not
make itself.

Only known stages are visited, and only entries named and described as ours: an artifact whose
`artifact.json` names its stage and key, a part whose `part.json` lists its files, unfinished work
and fetched files by the shape of their names. Links are never followed and never removed; a folder
with one file or link that its record does not list stays whole. A folder without the store's marker
file is refused (`flows.records.mark_store`).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flows.commands.command import command, take_words
from flows.commands.store_folders import names_in, opened
from flows.commands.unused_parts import unused_parts
from flows.commands.unused_there import UnusedThere, remove_there, unused_there
from flows.compose import compose
from flows.console import say, table
from flows.records import KEY, RunRecord, chain_ends, read_records, require_marked, require_store
from llm_core.config import ConfigError
from llm_core.json_files import UnreadableJson, read_json
from llm_core.locks import lock_if_free
from llm_core.printing import show
from tasks.report.quantities import plural
from tasks.runtime.artifact import ARTIFACT_FILE, ArtifactMismatch, load_artifact
from tasks.runtime.graph import STAGES
from tasks.runtime.inputs import InputDigests
from tasks.runtime.parts import PART_FILE
from tasks.runtime.shared.store import SharedStore
from tasks.runtime.store import Store

RECENT_S = 3600.0
"""Age from which a fetched file that no run refers to is one that nobody is about to use."""

REMOVED = re.compile(
    r"\.([0-9a-f]{16}|[0-9a-f]{32}(\..+)?|replaced-[a-z]+-[0-9a-f]{16}-\d+)\.\d+\.tmp"
)
"""What a killed removal leaves: already out of the store, and so never in use."""
UNFINISHED_PART = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
REPLACED = re.compile(r"replaced-[a-z]+-[0-9a-f]{16}-\d+")
FETCHED = re.compile(r"[0-9a-f]{32}(\..+)?|\.[0-9a-f]{32}\.jsonl\.[0-9a-f]{32}\.tmp")
"""Fetched files, and what a killed fetch leaves: `.part` of a file, `.tmp` of rows."""
PARTS = ("parts", "part")
WORK_FOLDERS = frozenset({"out", "out.work"})


class Foreign(Exception):
    """Something that this store did not make; the message says what gives it away."""


@dataclass(frozen=True)
class Unused:
    """Something in the store that no recent run refers to."""

    kind: str
    """artifact, parts, part, work, or remote: a file that was fetched from elsewhere."""
    root: Path
    path: Path
    size_bytes: int
    lock_file: Path | None


YES = click.Option(["--yes"], is_flag=True, help="Remove what is listed.")


@command("[keep=N] [OVERRIDES]...", options=[YES])
def gc(words: Sequence[str], yes: bool) -> int:
    """Show, and with --yes remove, what no recent run refers to, nor the last that completed a
    stage."""
    given, overrides = take_words(words, "keep")
    number = given.get("keep", "10")
    if not number.isdecimal():
        raise ConfigError(f"keep ({number}) must be a whole number of runs, e.g. keep=10")
    keep, store = int(number), compose(overrides).open_store()
    require_store(store)
    use = needed(store, keep)
    items, there = unused(store, use, say), list[UnusedThere]()
    if isinstance(store, SharedStore):
        there = unused_there(store, use.keys)
    found: list[Unused | UnusedThere] = [*items, *there]
    total = sum(item.size_bytes for item in found) / 1e6
    if found:
        rows = [[item.kind, f"{item.size_bytes / 1e6:.1f} MB", str(item.path)] for item in found]
        show(table(("kind", "size", "path"), rows) + "\n")
    whose = f"unused by the last {plural(keep, 'run')}"
    if yes:
        show(f"removed {(remove(items) + remove_there(there)) / 1e6:.1f} MB {whose}")
    else:
        offer = "; --yes removes them" * bool(found)
        show(f"{plural(len(found), 'item')}, {total:.1f} MB, {whose}{offer}")
    return 0


@dataclass(frozen=True)
class Needed:
    """What must stay in a store, as (stage, key)."""

    kept: Sequence[RunRecord]
    keys: Collection[tuple[str, str]]
    part_keys: Collection[tuple[str, str]]


def needed(store: Store, keep: int) -> Needed:
    """What the last `keep` runs refer to, live ones, and the next run of a chain.

    With `keep` above 0, what the last completed run of each stage refers to is needed too: many
    nightly refreshes leave the last trained model.
    """
    records = read_records(store)
    kept = [r for i, r in enumerate(records) if i < keep or r.is_alive()]
    if keep:
        last: dict[str, RunRecord] = {}
        for record in records:
            if record.outcome == "completed":
                last = dict.fromkeys(record.stages, record) | last
        kept += last.values()
    keys = {(stage, key) for r in kept for stage, key in r.stages.items()}
    chains = {r.chain["name"] for r in records if r.chain}
    keys |= {end for name in chains for end in chain_ends(records, name)}
    return Needed(kept, keys, {(stage, key) for r in kept for stage, key in r.parts.items()})


def unused(
    store: Store, use: Needed, tell: Callable[[str], None] = lambda line: None
) -> list[Unused]:
    """What is not needed, largest first.

    Held keys are left out, and parts of stages at work. So is what the store did not make, which is
    reported by `tell`. Raises ConfigError where the folder is not marked as a store.
    """
    require_marked(store)
    candidates = [*_candidates(store, use.keys, use.part_keys), *unused_parts(store, use.kept)]
    found, foreign = [], []
    for kind, path in candidates:
        try:
            size_bytes = _size_bytes(kind, path)
        except FileNotFoundError:
            continue  # somebody else has just removed or finished it
        except Foreign as why:
            foreign.append(f"{path} ({why})")
            continue
        lock = _lock_file(store, kind, path)
        with _free(lock) as free:
            if free:
                found.append(Unused(kind, store.root, path, size_bytes, lock))
    if foreign:
        tell(
            f"left alone, not made by this store: {foreign[0]}"
            + f" and {len(foreign) - 1} more" * bool(foreign[1:])
        )
    return sorted(found, key=lambda u: (-u.size_bytes, str(u.path)))


def _lock_file(store: Store, kind: str, path: Path) -> Path | None:
    """What a stage locks that makes an artifact or uses parts; None where nobody can be at it."""
    if not KEY.fullmatch(path.name):
        return None
    if kind in ("artifact", "work"):
        return store.lock_file(path.parent.name, path.name)
    of_part = path.parent if kind == "part" else path
    return store.parts_lock_file(of_part.parent.name, of_part.name) if kind in PARTS else None


def remove(items: Sequence[Unused]) -> int:
    """Delete `items`, except keys that are held by now and what is no longer ours; the bytes
    freed."""
    freed = 0
    for item in items:
        # Folders are opened one by one and never through a link: a path looked at again could lead
        # elsewhere by now.
        with (
            _free(item.lock_file, make=item.kind in PARTS) as free,
            suppress(FileNotFoundError, NotADirectoryError, Foreign),
        ):
            if free and _size_bytes(item.kind, item.path) >= 0:
                with opened(item.root, item.path.relative_to(item.root).parent) as folder:
                    # Out of the store by one rename, so that no reader finds half an artifact.
                    name, trash = item.path.name, f".{item.path.name}.{os.getpid()}.tmp"
                    os.rename(name, trash, src_dir_fd=folder, dst_dir_fd=folder)
                    if stat.S_ISDIR(os.stat(trash, dir_fd=folder, follow_symlinks=False).st_mode):
                        shutil.rmtree(trash, dir_fd=folder)
                    else:
                        os.unlink(trash, dir_fd=folder)
                    freed += item.size_bytes
    return freed


def _candidates(
    store: Store, keys: Collection[tuple[str, str]], part_keys: Collection[tuple[str, str]]
) -> Iterator[tuple[str, Path]]:
    """(kind, path) of what is named like something of ours and that no run of these keys refers
    to."""
    for kind, root, known in (
        ("artifact", store.root, keys),
        ("parts", store.root / ".parts", part_keys),
        ("work", store.root / ".work", keys),
    ):
        for stage in STAGES:
            for name in names_in(store.root, (root / stage).relative_to(store.root)):
                if (KEY.fullmatch(name) and (stage, name) not in known) or REMOVED.fullmatch(name):
                    yield kind, root / stage / name
    for name in names_in(store.root, Path(".work")):
        if REPLACED.fullmatch(name) or REMOVED.fullmatch(name):
            yield "work", store.root / ".work" / name
    yield from (("remote", path) for path in _unused_remote_files(store, keys))


def _unused_remote_files(store: Store, keys: Collection[tuple[str, str]]) -> Iterator[Path]:
    """Files in `<store>/.remote` that the ingest artifacts of `keys` were not made of, fetches that
    were not finished among them.

    A run that is fetching now has no record yet, so what was written in the last hour stays.
    """
    used: set[str] = set()
    for stage, key in keys:
        if stage != "ingest":
            continue
        try:
            artifact = load_artifact(store.path(stage, key))
        except ArtifactMismatch:
            # It is rebuilt from files that only its record names.
            return
        used |= set(artifact.record["identity"]["inputs"].values()) if artifact else set()
    digests = InputDigests(store.digests_file)
    for name in names_in(store.root, Path(".remote")):
        path = store.root / ".remote" / name
        if REMOVED.fullmatch(name):
            yield path
        elif (
            FETCHED.fullmatch(name)
            and not path.is_symlink()
            and digests.remembered(path) not in used
        ):
            with suppress(FileNotFoundError):  # a fetch that has just ended
                if time.time() - path.lstat().st_mtime > RECENT_S:
                    yield path


def _size_bytes(kind: str, path: Path) -> int:
    """What removing it gives back. Raises Foreign where it is not what the store makes under such a
    name."""
    mode = path.lstat().st_mode
    if kind == "remote":
        if not stat.S_ISREG(mode):
            raise Foreign("not a plain file")
        return path.lstat().st_size
    if not stat.S_ISDIR(mode):
        raise Foreign("a link" if stat.S_ISLNK(mode) else "not a folder")
    sizes = dict(_files(path))
    if not KEY.fullmatch(path.name):
        return sum(sizes.values())
    if kind == "artifact":
        record = _record(path / ARTIFACT_FILE)
        if (record.get("stage"), record.get("key")) != (path.parent.name, path.name):
            raise Foreign(f"its {ARTIFACT_FILE} names another stage or key")
        _require_listed(sizes, record, Path(ARTIFACT_FILE))
    elif kind == "part":
        _require_listed(sizes, _record(path / PART_FILE), Path(PART_FILE))
    elif kind == "parts":
        for part in sorted(os.scandir(path), key=lambda entry: entry.name):
            if UNFINISHED_PART.fullmatch(part.name) and part.is_dir(follow_symlinks=False):
                continue
            of_part = {
                Path(*file.parts[1:]): size
                for file, size in sizes.items()
                if file.parts[0] == part.name
            }
            if not part.is_dir(follow_symlinks=False):
                raise Foreign(f"it holds {part.name}, which is not a part")
            _require_listed(of_part, _record(path / part.name / PART_FILE), Path(PART_FILE))
    elif others := [
        e.name
        for e in os.scandir(path)
        if e.name not in WORK_FOLDERS or not e.is_dir(follow_symlinks=False)
    ]:
        raise Foreign(f"it holds {min(others)}, which is not unfinished work")
    return sum(sizes.values())


def _require_listed(sizes: Collection[Path], record: dict[str, Any], record_file: Path) -> None:
    try:
        listed = {Path(file["path"]) for file in record["files"]} | {record_file}
    except (KeyError, TypeError) as error:
        raise Foreign(f"its {record_file} lists no files") from error
    if others := set(sizes) - listed:
        raise Foreign(f"it holds {min(others)}, which its {record_file} does not list")


def _record(file: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise Foreign(f"its {file.name} is not a plain file")
        record = read_json(file)
    except (FileNotFoundError, UnreadableJson) as error:
        raise Foreign(f"it has no readable {file.name}") from error
    if not isinstance(record, dict):
        raise Foreign(f"it has no readable {file.name}")
    return record


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Every file below a folder, by its path in it, with its bytes.

    Raises Foreign at the first link, as the store makes none, and at a folder that cannot be
    listed.
    """

    def stop(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise Foreign(f"a folder in it cannot be listed: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=stop):
        for name in [*folders, *files]:
            if (path := Path(parent, name)).is_symlink():
                raise Foreign(f"it holds the link {path.relative_to(folder)}")
        for name in files:
            with suppress(FileNotFoundError):  # somebody else's temporary file
                yield Path(parent, name).relative_to(folder), Path(parent, name).lstat().st_size


@contextmanager
def _free(lock_file: Path | None, make: bool = False) -> Iterator[bool]:
    """Whether nobody holds the key, and nobody can while the block runs. make: the lock file, where
    it is missing; else a stage that begins now makes it."""
    if lock_file is None or not (make or lock_file.exists()):
        yield True
        return
    with lock_if_free(lock_file) as free:
        yield free
