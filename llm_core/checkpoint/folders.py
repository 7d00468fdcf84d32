"""Which checkpoint folders are there, which are whole, and which may go?

`<root>/step-00000120/` holds files and `progress.json`: the step, its validation loss where it was measured there, the best
checkpoint that is kept, what it was made with, and size and digest of every other file. A folder appears by renaming, so one
that is there was whole once; one that has lost or changed bytes since is found by its sizes, or else by its digests.

A digest is BLAKE2b over BLAKE2b digests of pieces of `PIECE` bytes, so that several cores share a large file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRESS_FILE = "progress.json"
PIECE = 64 << 20
MAX_THREADS = 4
_READ = 1 << 20


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says of itself."""

    step: int
    val_loss: float | None
    """Measured with these very weights; None: there was no validation at this step."""
    files: dict[str, tuple[int, str]]
    """Name → (bytes, digest)."""
    made_with: dict[str, Any] | None = None
    """Settings and data that decided it, as `llm_core.checkpoint.made_with` has them; None: it does not say."""


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def temporary_of(root: Path, step: int) -> Path:
    """Where a checkpoint is written before it is one."""
    return root / f".step-{step:08d}.tmp"


def steps_in(root: Path) -> list[int]:
    """Steps that have a folder, whole or not, in order. What else lies there, as a copy under a name of its own, is not ours."""
    found = (int(name) for path in root.glob("step-*") if (name := path.name.removeprefix("step-")).isdecimal())
    return sorted(step for step in set(found) if folder_of(root, step).is_dir())


def read_progress(root: Path, step: int) -> Progress | str:
    """What a checkpoint says of itself, or why it cannot be believed; sizes are looked at, contents are not."""
    folder = folder_of(root, step)
    try:
        found = json.loads((folder / PROGRESS_FILE).read_text("utf-8"))
        files = {str(name): (int(size), str(digest)) for name, (size, digest) in found["files"].items()}
        val_loss, made_with = found["val_loss"], found.get("made_with")
        progress = Progress(
            int(found["step"]), None if val_loss is None else float(val_loss), files, made_with and dict(made_with)
        )
        for name, (size, _) in files.items():
            if (actual := (folder / name).stat().st_size) != size:
                return f"{name} has {actual} bytes of {size}"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{PROGRESS_FILE} cannot be read ({error})"
    return progress if progress.step == step else f"{PROGRESS_FILE} is of step {progress.step}"


def write_progress(folder: Path, root: Path, progress: Progress) -> None:
    """Say what a whole checkpoint holds, and sync it."""
    best = best_step(root, {progress.step: progress.val_loss})
    facts: dict[str, Any] = dataclasses.asdict(progress) | {"best": best}
    with (folder / PROGRESS_FILE).open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(facts, sort_keys=True, allow_nan=False))
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(folder)


def best_step(root: Path, more: dict[int, float | None] | None = None) -> int | None:
    """The kept step of the lowest validation loss, the first of equals; None where none was measured."""
    losses = dict(more or {})
    for step in steps_in(root):
        if not isinstance(progress := read_progress(root, step), str):
            losses.setdefault(step, progress.val_loss)
    measured = [(loss, step) for step, loss in losses.items() if loss is not None and math.isfinite(loss)]
    return min(measured)[1] if measured else None


def prune(root: Path, keep_last: int, keep_best: bool) -> None:
    """Remove all but the newest `keep_last`, and the best where it is wanted."""
    kept = steps_in(root)[-keep_last:]
    best = best_step(root) if keep_best else None
    for step in steps_in(root):
        if step not in kept and step != best:
            remove(folder_of(root, step))


def remove(folder: Path) -> None:
    """Take a checkpoint away, if there is one; its progress first, so that a half removed one is none.

    A file or a link to a folder elsewhere in its place goes too; what a link leads to stays.
    """
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        (folder / PROGRESS_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder)


def digest_file(path: Path) -> str:
    """128 bits in hex."""
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


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
