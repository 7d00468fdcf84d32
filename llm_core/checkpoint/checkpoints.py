"""Checkpoints that do not know the layout: save with one, load with another, bit for bit.

A checkpoint is written under a temporary name, synced and renamed, and only then do older ones go:
a kill at any moment leaves one in force. One whose bytes have changed since is set aside, never
deleted, and the one before is used; where none is sound, a run does not start over unless it is
asked to. With `in_background` the state is copied first and written by a thread while training goes
on; what is written is the same, and it is in force once all ranks have found each other done.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from llm_core.checkpoint.agreement import Agreement, listed
from llm_core.checkpoint.folders import (
    LOOK_AGAIN_S,
    Progress,
    damage_in,
    damaged_in,
    delete,
    digest_pieces,
    discard,
    folder_of,
    prune,
    publish,
    read_progress,
    recover,
    set_aside,
    steps_in,
    temporary_of,
    write_progress,
)
from llm_core.checkpoint.index import INDEX_FILE, CheckpointError, dump_index
from llm_core.checkpoint.reader import read_into
from llm_core.checkpoint.state import OptimizerState, collect_state, fill_copies
from llm_core.checkpoint.writer import Writer
from llm_core.durable import sync_folder, write_durably
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.vote import Vote

T = TypeVar("T")


class Identity(Protocol):
    """What decides a run, as its checkpoints say it."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Name → plain value."""

    def difference_to(self, saved: Mapping[str, Any], step: int) -> str | None:
        """In words, what keeps a run from resuming at a checkpoint of `step` with these."""


class CheckpointNotWritten(OSError):
    """A rank could not write its part, as on a full disk; the checkpoint before stays in force."""


@dataclass(frozen=True)
class _Pending:
    step: int
    val_loss: float | None
    written: Future[None]


@dataclass
class Checkpoints:
    """Those of one run. Every rank has one and makes the same calls; leaving its context waits for
    the thread.

    keep_last: newest ones that stay. keep_best: also the one of the lowest validation loss.
    keep_every: also those of multiples of it; 0: none. The others leave beside training. report:
    told (event, step, what), on the first rank, of a checkpoint that is passed over or does not say
    what it is made with. made_with: what decides the run; checkpoints say it, and those of another
    run are refused. None: they do not.
    """

    root: Path
    ranks: Ranks
    keep_last: int = 2
    keep_best: bool = False
    keep_every: int = 0
    in_background: bool = False
    report: Callable[[str, int, str], None] | None = None
    made_with: Identity | None = None
    _pending: _Pending | None = None
    _damages: dict[str, str] = field(default_factory=dict)
    """Folder → why it was set aside."""
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    )

    _pruner: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="pruning")
    )
    _pruned: Future[None] | None = None

    def __post_init__(self) -> None:
        self._agree = Agreement(self.root, self.ranks)
        self._writer = Writer(self.ranks)
        self._unwritten = Vote(self.ranks, at_first=True)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        self._pruner.shutdown()
        if error is None:
            self._await_pruned()

    def save(
        self, step: int, layout: Layout, optimizer: OptimizerState, val_loss: float | None = None
    ) -> None:
        """Write the state after `step`; one that is still being written is finished first."""
        self.finish()
        temporary = temporary_of(self.root, step)

        def make_room() -> None:
            recover(self.root, deletes=False)
            temporary.mkdir(parents=True)
            sync_folder(self.root.parent)

        self._agree.on_first(make_room)
        self._writer.take(collect_state(layout, optimizer), layout, copy=self.in_background)
        written = self._thread.submit(self._writer.write, temporary, step)
        self._pending = _Pending(step, val_loss, written)
        if not self.in_background:
            self.finish()

    def poll(self) -> None:
        """Put a checkpoint in force once all ranks have written it; raises their errors on all."""
        if self._pending is not None and not self._unwritten.ask(not self._pending.written.done()):
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if there is one, and put it in force."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        self._unwritten.settle()
        error = pending.written.exception()
        failure = None
        if error is not None:
            free_gb = shutil.disk_usage(self.root).free / 1e9
            failure = f"rank {self.ranks.rank}: {error} ({free_gb:.1f} GB free)"
        if (failed := self.ranks.hosts.ask(failure)).count:
            raise CheckpointNotWritten(
                f"checkpoint of step {pending.step} was not written, {listed(failed)}; fix that or"
                " make room, then run again to resume from the one before"
            ) from error
        self._agree.on_first(lambda: self._put_in_force(pending))

    def load(self, layout: Layout, optimizer: OptimizerState, restart: bool = False) -> int:
        """Fill model and optimizer from the newest sound checkpoint, and give its step, or 0 where
        there is none.

        restart: begin at 0 also where there are checkpoints and none is sound. Raises
        CheckpointError where that is so and not wanted, and where a sound one is of another run, by
        its settings and data or by its tensors.
        """
        step = self.newest_sound()
        if step is None:
            if names := self._agree.on_first(lambda: damaged_in(self.root)):
                self._begin_past(names, restart)
            return 0
        self.read(step, layout, optimizer)
        return step

    def _begin_past(self, names: list[str], restart: bool) -> None:
        """Begin at step 0 in spite of damaged checkpoints, if that is wanted."""
        whys = [
            f"{name}: {self._damages.get(name.split('.')[0], 'found earlier')}" for name in names
        ]
        what = f"{self.root} has checkpoints and none is sound ({', '.join(whys)})"
        if not restart:
            raise CheckpointError(
                f"{what}; restore one and drop .damaged from its name, or begin at step 0 with"
                " train.restart=true, which keeps them"
            )
        if self.report and self.ranks.is_first:
            self.report("restarted", 0, f"{what}; begins at step 0, as train.restart=true asks")

    def newest_sound(self, newest: int | None = None) -> int | None:
        """The step of the newest sound checkpoint; damaged ones that are passed over for it are set
        aside.

        newest: the last step that is asked for; None: any. Raises CheckpointError, on every rank,
        where one cannot be read, or is not the same to all: that is not damage.
        """
        self.finish()

        def settle() -> None:
            self._await_pruned()
            recover(self.root)

        self._agree.on_first(settle)
        for step in reversed(self._steps()):
            if newest is not None and step > newest:
                continue
            if (damage := self._damage(step)) is None:
                return step
            self._damages[folder_of(self.root, step).name] = damage
            aside = self._agree.on_first(lambda step=step: str(set_aside(self.root, step)))  # type: ignore[misc]
            if self.report and self.ranks.is_first:
                self.report("damaged_checkpoint", step, f"{damage}; kept as {aside}")
        return None

    def read(self, step: int, layout: Layout, optimizer: OptimizerState) -> None:
        """Fill model and optimizer from a checkpoint. Raises CheckpointError for another run's."""
        self._require_this_run(step)
        folder = folder_of(self.root, step)

        def fill() -> None:
            read_into(collect_state(layout, optimizer), layout, folder, self.ranks)

        self._agree.on_all(fill)
        fill_copies(layout, optimizer)

    def val_loss_at(self, step: int) -> float | None:
        """Validation loss in the checkpoint of a step, if there is one; the same on every rank."""
        self.finish()

        def look() -> float | None:
            progress = read_progress(self.root, step)
            return progress.val_loss if isinstance(progress, Progress) else None

        return self._agree.on_first(look)

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, after a run has gone back and saved this step."""
        self.finish()

        def discard_later() -> None:
            self._await_pruned()
            for later in steps_in(self.root):
                if later > step:
                    discard(self.root, later)

        self._agree.on_first(discard_later)

    def _steps(self) -> list[int]:
        """Steps that have a folder, the same to every rank."""
        for pause_s in LOOK_AGAIN_S:
            time.sleep(pause_s)
            first = self._agree.on_first(lambda: steps_in(self.root))
            others = self._agree.on_all(lambda: self._other_than(first))  # noqa: B023
            if not others.count:
                return first
        raise CheckpointError(
            f"ranks see different checkpoints in {self.root}: rank 0 {first}, {listed(others)};"
            " give them one shared file system, and run again"
        )

    def _other_than(self, first: list[int]) -> str | None:
        found = steps_in(self.root)
        return None if found == first else f"rank {self.ranks.rank} {found}"

    def _damage(self, step: int) -> str | None:
        """Why a checkpoint cannot be loaded, the same on every rank; each reads some files."""
        progress: Progress | str = ""

        def look() -> str | None:
            nonlocal progress
            progress = read_progress(self.root, step, patient=True)
            return progress if isinstance(progress, str) else None

        damaged = self._agree.on_all(look)
        if 0 < damaged.count < self.ranks.world:
            raise CheckpointError(
                f"some ranks see {folder_of(self.root, step)} whole and others do not"
                f" ({damaged.texts[0]}); nothing was changed, run again"
            )
        if isinstance(progress, Progress):
            digest = progress.index_digest
            files = range(self.ranks.rank, progress.num_files, self.ranks.world)
            damaged = self._agree.on_all(lambda: damage_in(self.root, step, digest, files))
        return damaged.texts[0] if damaged.count else None

    def _require_this_run(self, step: int) -> None:
        """Raise CheckpointError, on every rank, where a checkpoint was made with something else."""

        def look() -> dict[str, Any] | None:
            progress = read_progress(self.root, step)
            assert isinstance(progress, Progress), progress
            return progress.made_with

        made_with = self._agree.on_first(look)
        if self.made_with is None:
            return
        if made_with is None:
            if self.report and self.ranks.is_first:
                what = "it does not say what it was made with, so that cannot be compared"
                self.report("unknown_checkpoint", step, what)
        elif difference := self.made_with.difference_to(made_with, step):
            raise CheckpointError(
                f"checkpoint {folder_of(self.root, step)} is of another run: {difference}; give"
                " this run what that was made with, or a work directory of its own"
            )

    def _put_in_force(self, pending: _Pending) -> None:
        temporary, index = temporary_of(self.root, pending.step), self._writer.index
        write_durably(temporary / INDEX_FILE, dump_index(index))
        settings = dict(self.made_with.settings) if self.made_with else None
        digest = digest_pieces(temporary / INDEX_FILE)
        progress = Progress(pending.step, pending.val_loss, index.world, digest, settings)
        write_progress(temporary, self.root, progress)
        publish(self.root, pending.step)
        self._await_pruned()
        kept = self.keep_last, self.keep_best, self.keep_every
        gone = prune(self.root, pending.step, *kept)
        self._pruned = self._pruner.submit(delete, gone) if gone else None

    def _await_pruned(self) -> None:
        """Raises OSError where retired folders cannot be removed."""
        if self._pruned is not None:
            self._pruned.result()
