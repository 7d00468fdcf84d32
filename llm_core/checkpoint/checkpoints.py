"""Checkpoints that do not know the layout: save with one, load with another, bit for bit.

A checkpoint is written under a temporary name, synced and renamed, so a kill while saving leaves the one before in force. One
whose bytes have changed since is passed over for the one before. With `in_background` the state is copied first and written by a
thread while training goes on; what is written is the same, and it is in force once all ranks have found each other done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from llm_core.checkpoint.folders import (
    Progress,
    digest_file,
    folder_of,
    prune,
    read_progress,
    remove,
    steps_in,
    sync_folder,
    temporary_of,
    write_progress,
)
from llm_core.checkpoint.made_with import MadeWith
from llm_core.checkpoint.reader import CheckpointError, read_into
from llm_core.checkpoint.state import collect_state, fill_copies
from llm_core.checkpoint.writer import Writer, Written, gather_objects
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.vote import Vote


class CheckpointNotWritten(OSError):
    """A rank could not write its part, as for want of space; the checkpoint before stays in force."""


@dataclass(frozen=True)
class _Pending:
    step: int
    val_loss: float | None
    written: Future[Written]


@dataclass
class Checkpoints:
    """Those of one run. Every rank has one and makes the same calls; leaving its context waits for the thread.

    keep_last: newest ones that stay. keep_best: also the one of the lowest validation loss.
    report: told (event, step, what), on the first rank, of a checkpoint that is passed over or does not say what it is made with.
    made_with: what decides the run; checkpoints say it, and those of another run are refused. None: they do not.
    """

    root: Path
    ranks: Ranks
    keep_last: int = 2
    keep_best: bool = False
    in_background: bool = False
    report: Callable[[str, int, str], None] | None = None
    made_with: MadeWith | None = None
    _pending: _Pending | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="checkpoint"))

    def __post_init__(self) -> None:
        self._writer = Writer(self.ranks)
        self._unwritten = Vote(self.ranks, at_first=True)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown()

    def save(self, step: int, layout: Layout, optimizer: Optimizer, val_loss: float | None = None) -> None:
        """Write the state after `step`; one that is still being written is finished first."""
        self.finish()
        temporary = temporary_of(self.root, step)
        if self.ranks.is_first:
            remove(temporary)
            temporary.mkdir(parents=True)
        self.ranks.barrier()
        self._writer.take(collect_state(layout, optimizer), copy=self.in_background)
        self._pending = _Pending(step, val_loss, self._thread.submit(self._writer.write, temporary))
        if not self.in_background:
            self.finish()

    def poll(self) -> None:
        """Put a checkpoint in force whose writing has ended on all ranks; what went wrong there is raised here, on all."""
        if self._pending is not None and not self._unwritten.ask(not self._pending.written.done()):
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if there is one, and put it in force."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        self._unwritten.settle()
        error = pending.written.exception()
        parts = gather_objects(str(error) if error else pending.written.result(), self.ranks)
        if failures := [f"rank {rank}: {part}" for rank, part in enumerate(parts) if isinstance(part, str)]:
            raise CheckpointNotWritten(f"checkpoint of step {pending.step} was not written, {'; '.join(failures)}") from error
        if self.ranks.is_first:
            self._put_in_force(pending, parts)
        self.ranks.barrier()

    def load(self, layout: Layout, optimizer: Optimizer, newest: int | None = None) -> int:
        """Fill model and optimizer from the newest sound checkpoint, and give its step, or 0 where there is none.

        newest: the last step that may be loaded. Checkpoints of later steps than the loaded one are removed.
        Raises CheckpointError where a sound one is of another run, by its settings and data or by its tensors.
        """
        self.finish()
        bad: list[tuple[int, str]] = []
        steps = gather_objects(steps_in(self.root), self.ranks)[0]
        for step in reversed(steps):
            if newest is not None and step > newest:
                continue
            damage = self._damage(step)
            if damage is None:
                self._require_this_run(step)
                state = collect_state(layout, optimizer)
                read_into(state, folder_of(self.root, step), self.ranks)
                fill_copies(layout, optimizer)
                self._tidy(after=step, bad=bad)
                return step
            bad.append((step, damage))
        self._tidy(after=0, bad=bad)
        return 0

    def _damage(self, step: int) -> str | None:
        """Why a checkpoint cannot be loaded, the same on every rank; each looks at some of the files."""
        progress = read_progress(self.root, step)
        found = progress if isinstance(progress, str) else self._changed_file(step, progress)
        return next((one for one in gather_objects(found, self.ranks) if one), None)

    def _require_this_run(self, step: int) -> None:
        """Raise CheckpointError, on every rank, where a sound checkpoint was made with something else."""
        progress = gather_objects(read_progress(self.root, step), self.ranks)[0]
        assert isinstance(progress, Progress), progress
        if self.made_with is None:
            return
        if progress.made_with is None:
            if self.report and self.ranks.is_first:
                what = "it does not say what it was made with, so that is not compared; from the next checkpoint on it is"
                self.report("unknown_checkpoint", step, what)
        elif difference := self.made_with.difference_to(progress.made_with, step):
            raise CheckpointError(
                f"checkpoint {folder_of(self.root, step)} is of another run: {difference}; give this run what that was made "
                "with, or a work directory of its own"
            )

    def _changed_file(self, step: int, progress: Progress) -> str | None:
        folder = folder_of(self.root, step)
        for name in sorted(progress.files)[self.ranks.rank :: self.ranks.world]:
            if digest_file(folder / name) != progress.files[name][1]:
                return f"{name} does not hold what was written"
        return None

    def _tidy(self, after: int, bad: list[tuple[int, str]]) -> None:
        """Say what was passed over, and remove what later checkpoints must not be taken for or count as."""
        if self.ranks.is_first:
            for step, damage in bad:
                if self.report:
                    self.report("damaged_checkpoint", step, damage)
            for step in steps_in(self.root):
                if step > after:
                    remove(folder_of(self.root, step))
            for leftover in self.root.glob(".step-*.tmp"):
                remove(leftover)
        self.ranks.barrier()

    def _put_in_force(self, pending: _Pending, parts: list[Written]) -> None:
        temporary, final = temporary_of(self.root, pending.step), folder_of(self.root, pending.step)
        files = self._writer.write_index(temporary, parts)
        settings = dict(self.made_with.settings) if self.made_with else None
        write_progress(temporary, self.root, Progress(pending.step, pending.val_loss, files, settings))
        remove(final)  # saved before, by a run that then went back
        os.rename(temporary, final)
        sync_folder(self.root)
        prune(self.root, self.keep_last, self.keep_best)
