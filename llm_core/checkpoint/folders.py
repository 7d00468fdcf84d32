"""Names checkpoint folders, publishes them, finds out which are whole, and removes those that may
go.

| in `<root>/step-00000120/` | holds |
|---|---|
| `rank-00007.safetensors`, `rank-00007.json` | what that process wrote; size and digest of it |
| `index.json` | which process wrote what (`llm_core.checkpoint.index`) |
| `progress.json` | the step, its validation loss where it was measured there, the best checkpoint that is kept, what it was made with, number of processes, digest of the index |

A folder appears by renaming, so one that is there was whole once; one that has lost or changed
bytes since is found by sizes and digests. That one is set aside as `step-00000120.damaged` and
never deleted here: what is left of it may be all there is.

A folder leaves by renaming too, so that a half removed one is never taken for a damaged one; one
that somebody holds, as an export, stays. A kill
between two calls leaves one of these beside the checkpoints, and `recover` settles it:

| name | what it is | what becomes of it |
|---|---|---|
| `.step-N.tmp` | being written | removed |
| `.step-N.old` | being replaced by a new `step-N` | put back if there is no `step-N`, else removed |
| `.step-N.gone` | being removed | removed |

A digest is BLAKE2b over BLAKE2b digests of pieces of `PIECE` bytes, so that several cores share a
large file.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import itertools
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_core.checkpoint.index import INDEX_FILE
from llm_core.durable import sync_folder, write_durably
from llm_core.json_files import dump_json, read_json

T = TypeVar("T")

PROGRESS_FILE = "progress.json"
DAMAGED = ".damaged"
"""End of the name of a checkpoint that was set aside; a number follows where the name is taken."""
PIECE = 64 << 20
MAX_THREADS = 4
LOOK_AGAIN_S = (0.0, 0.2, 0.8)
"""Pauses between looks for a missing file, which a network file system may show late."""
_READ = 1 << 20


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says of itself."""

    step: int
    val_loss: float | None
    """Measured with these very weights; None: there was no validation at this step."""
    num_files: int
    """Processes that wrote it, with a file each."""
    index_digest: str
    made_with: dict[str, Any] | None = None
    """What decided it (`llm_core.training.made_with`); None: it does not say."""


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def temporary_of(root: Path, step: int) -> Path:
    """Where a checkpoint is written before it is one."""
    return root / f".step-{step:08d}.tmp"


def steps_in(root: Path) -> list[int]:
    """Steps that have a folder, whole or not, in order; other names are not ours."""
    numbers = {name.removeprefix("step-") for name in _names_in(root)}
    found = {int(number) for number in numbers if number.isdecimal()}
    return sorted(step for step in found if folder_of(root, step).is_dir())


def _names_in(root: Path) -> list[str]:
    """Raises OSError where a folder cannot be listed: an empty list would start the run over."""
    try:
        return [name for name in os.listdir(root) if name.startswith("step-")]
    except FileNotFoundError:
        return []


def damaged_in(root: Path) -> list[str]:
    """Names of the checkpoints that were set aside."""
    return sorted(name for name in _names_in(root) if DAMAGED in name)


def data_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def write_facts(path: Path, step: int) -> None:
    """Say what a synced file of a rank holds."""
    facts = {"step": step, "bytes": path.stat().st_size, "digest": digest_pieces(path)}
    write_durably(path.with_suffix(".json"), dump_json(path.name, facts))


def read_progress(root: Path, step: int, patient: bool = False) -> Progress | str:
    """What a checkpoint says of itself, or why it cannot be believed; its other files are not
    looked at.

    patient: look again for what is missing. Raises OSError where the file system does not answer:
    that is not damage.
    """
    folder = folder_of(root, step)
    return _patiently(lambda: _read_progress(folder, step), folder, patient)


def damage_in(root: Path, step: int, index_digest: str, ranks: Iterable[int]) -> str | None:
    """What is wrong with the index of a checkpoint or the files of some ranks. Raises OSError as
    `read_progress`."""
    folder = folder_of(root, step)

    def look() -> str | None:
        if digest_pieces(folder / INDEX_FILE) != index_digest:
            return f"{INDEX_FILE} does not hold what was written"
        return next(filter(None, (_damage_of(folder / data_file(n), step) for n in ranks)), None)

    return _patiently(look, folder, patient=True)


def _patiently(look: Callable[[], T], folder: Path, patient: bool) -> T | str:
    for pause_s in LOOK_AGAIN_S if patient else (0.0,):
        time.sleep(pause_s)
        try:
            return look()
        except FileNotFoundError as error:
            missing = f"{Path(str(error.filename)).name} is missing"
            for known in filter(Path.is_dir, (folder.parent, folder)):
                os.listdir(known)  # a network file system refreshes what it lists
    return missing


def _read_progress(folder: Path, step: int) -> Progress | str:
    try:
        found = read_json(folder / PROGRESS_FILE)
        val_loss, made_with = found["val_loss"], found.get("made_with")
        val_loss = None if val_loss is None else float(val_loss)
        num_files, index_digest = int(found["num_files"]), str(found["index_digest"])
        made_with = made_with and dict(made_with)
        progress = Progress(int(found["step"]), val_loss, num_files, index_digest, made_with)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return f"{PROGRESS_FILE} cannot be read ({error})"
    return progress if progress.step == step else f"{PROGRESS_FILE} is of step {progress.step}"


def _damage_of(path: Path, step: int) -> str | None:
    """What is wrong with the file of a rank, or with what is said of it."""
    facts = path.with_suffix(".json")
    try:
        found = read_json(facts)
        of_step, size, digest = (found[name] for name in ("step", "bytes", "digest"))
    except (ValueError, KeyError, TypeError) as error:
        return f"{facts.name} cannot be read ({error})"
    if of_step != step:
        return f"{facts.name} is of step {of_step}"
    if (actual := path.stat().st_size) != size:
        return f"{path.name} has {actual} bytes of {size}"
    return None if digest_pieces(path) == digest else f"{path.name} does not hold what was written"


def write_progress(folder: Path, root: Path, progress: Progress) -> None:
    """Say what a whole checkpoint holds, and sync it."""
    best = best_step(root, progress.step, {progress.step: progress.val_loss})
    facts: dict[str, Any] = dataclasses.asdict(progress) | {"best": best}
    write_durably(folder / PROGRESS_FILE, dump_json(PROGRESS_FILE, facts))


def best_step(root: Path, upto: int, more: dict[int, float | None] | None = None) -> int | None:
    """The kept step of the lowest validation loss, the first of equals; None where none was
    measured.

    upto: later steps do not count; a run that went back has not made them yet.
    """
    losses = dict(more or {})
    for step in steps_in(root):
        if step <= upto and not isinstance(progress := read_progress(root, step), str):
            losses.setdefault(step, progress.val_loss)
    measured = [
        (loss, step) for step, loss in losses.items() if loss is not None and math.isfinite(loss)
    ]
    return min(measured)[1] if measured else None


def publish(root: Path, step: int) -> None:
    """Put the synced `temporary_of(step)` in force; this step or an earlier one is always there."""
    final, old = folder_of(root, step), root / f".step-{step:08d}.old"
    if os.path.lexists(final):  # saved before, by a run that then went back
        os.rename(final, old)
    os.rename(temporary_of(root, step), final)
    sync_folder(root)
    _delete(old)


def prune(
    root: Path, newest: int, keep_last: int, keep_best: bool, keep_every: int = 0
) -> list[Path]:
    """Retire steps up to `newest`, except the last `keep_last`, those that somebody holds and,
    where wanted, the best and multiples of `keep_every`; folders that are left to `delete`."""
    steps = [step for step in steps_in(root) if step <= newest]
    kept = {*steps[-keep_last:], *([best_step(root, newest)] if keep_best else [])}
    old = (s for s in steps if s not in kept and not (keep_every and s % keep_every == 0))
    return [gone for step in old if (gone := _retire(root, step)) is not None]


def delete(gone: Iterable[Path]) -> None:
    """Remove retired folders. It takes a while, and a thread may do it."""
    for folder in gone:
        _delete(folder)


def discard(root: Path, step: int) -> None:
    """Remove a checkpoint, all at once; what a link in its place leads to stays."""
    delete([_rename_away(root, step)])


def _rename_away(root: Path, step: int) -> Path:
    gone = root / f".step-{step:08d}.gone"
    _delete(gone)
    os.rename(folder_of(root, step), gone)
    return gone


def _retire(root: Path, step: int) -> Path | None:
    """Rename a checkpoint that is to be removed; None while somebody holds it."""
    try:
        # For writing: NFS gives no exclusive lock on a file that is open for reading (flock(2)).
        with (folder_of(root, step) / PROGRESS_FILE).open("r+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            return _rename_away(root, step)
    except FileNotFoundError:  # damaged since, so nobody can hold it
        return _rename_away(root, step)


@contextmanager
def hold(root: Path, step: int) -> Iterator[Path]:
    """The folder of a checkpoint, which pruning leaves alone meanwhile: a lock that ends with the
    process. Raises FileNotFoundError where it is not there, or goes away before it is held."""
    folder = folder_of(root, step)
    with (folder / PROGRESS_FILE).open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(stream.fileno()), os.stat(folder / PROGRESS_FILE)):
            raise FileNotFoundError(f"{folder} was replaced")
        yield folder


def set_aside(root: Path, step: int) -> Path:
    """Keep a damaged checkpoint under a name that no run resumes from; its new place."""
    folder = folder_of(root, step)
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (root / f"{folder.name}{DAMAGED}{end}" for end in ends)
    aside = next(name for name in names if not os.path.lexists(name))
    os.rename(folder, aside)
    sync_folder(root)
    return aside


def recover(root: Path, deletes: bool = True) -> None:
    """Settle what a kill has left between two calls. deletes: also retired folders; not while a
    thread does."""
    for old in root.glob(".step-*.old"):
        final = root / old.name.removeprefix(".").removesuffix(".old")
        if not os.path.lexists(final):
            os.rename(old, final)
    for pattern in (".step-*.old", ".step-*.tmp", *([".step-*.gone"] if deletes else [])):
        for leftover in root.glob(pattern):
            _delete(leftover)


def _delete(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def digest_pieces(path: Path) -> str:
    """128-bit BLAKE2b, in hex, of the digests of a file's pieces; threads share the pieces."""
    size = path.stat().st_size
    starts = range(0, max(size, 1), PIECE)
    if len(starts) == 1:
        pieces = [_digest_piece(path, 0)]
    else:
        with ThreadPoolExecutor(min(MAX_THREADS, len(starts))) as threads:
            pieces = list(threads.map(lambda start: _digest_piece(path, start), starts))
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def _digest_piece(path: Path, start: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as stream:
        stream.seek(start)
        left = PIECE
        while left and (data := stream.read(min(_READ, left))):
            digest.update(data)
            left -= len(data)
    return digest.digest()
