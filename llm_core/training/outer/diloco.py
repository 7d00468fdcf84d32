"""Takes the outer steps of DiLoCo (Douillard et al. 2023): members train alone for a round of
steps; the mean of what they have changed is the gradient of one Nesterov step from where it began.

    change of a member  = weights at the start of the round - its weights at the end
    mean                = sum of changes x targets / sum of targets, over the members that count
    momentum            = mu x momentum + mean
    weights             = weights at the start - lr x (mean + mu x momentum)

With one inner step of plain SGD, lr 1 and mu 0, that is the step of DDP. With AdamW inside it is
not: each member's step has the length of the rate, whatever its gradient.

A member that dies, or takes no step for long, is left out of its round. Started again, it resumes
from its checkpoint within the same round, or else takes the weights of the newest round and keeps
its own moments. One that joins late begins with those weights and moments of zero. One that is
asked to stop while it waits keeps the weights that it ended the round with, and waits on when it is
started again.

All traffic is files (`members`). Each member writes its change and reads the new weights; the one
that adds up also reads the changes of the others, and writes weights and momentum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from llm_core.checkpoint.checkpoints import Identity
from llm_core.checkpoint.index import CheckpointError
from llm_core.config import ConfigError
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.layout import Layout
from llm_core.parallel.outer import OuterConfig
from llm_core.tensor_files import facts_of, write_tensors
from llm_core.training.outer.members import Decision, Meeting

PAUSE_S = 0.05
TARGETS = "targets"
MOMENTUM = "momentum."
MEMBER = "parallel.outer.member"


class Outer:
    """The outer step of one member. moved_bytes: what it has written, and read of others.
    is_waiting: whether it was asked to stop before others ended its round. silent_s: it is left out
    if it takes no step for so long."""

    def __init__(self, config: OuterConfig, layout: Layout, silent_s: float = 1800.0) -> None:
        assert config.folder is not None
        self._config = config
        place = config.member, config.members
        self._meeting = Meeting(config.folder, *place, config.lease_s, silent_s)
        self._should_stop: Callable[[], bool] = lambda: False
        self.is_waiting = False
        self._weights = {
            name: weight.detach()
            for name, weight in layout.bare.named_parameters()
            if weight.requires_grad
        }
        self._targets = torch.zeros((), dtype=torch.float64, device=layout.device)
        # Checkpoints have the count so far, for a run that resumes within a round.
        layout.counts["outer.targets"] = self._targets
        self._began = time.monotonic()
        self.moved_bytes = 0

    @contextmanager
    def attended(
        self,
        start: int,
        made_with: Identity | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Take part while the block runs; gives what `join` does. Raises ConfigError where another
        run has this member's place, or the folder is of another training.

        made_with: this run; None: the folder is not compared with it. should_stop: asked while it
        waits for others.
        """
        self._should_stop = should_stop
        if made_with is not None:
            self._check_folder(made_with)
        with self._meeting.attended():
            yield self.join(start)

    def _check_folder(self, made_with: Identity) -> None:
        settings = {name: one for name, one in made_with.settings.items() if name != MEMBER}
        saved = self._meeting.made_with(settings)
        own = {MEMBER: made_with.settings[MEMBER]} if MEMBER in made_with.settings else {}
        step = (self._meeting.newest() or 0) * self._config.steps
        if difference := made_with.difference_to(saved | own, step):
            raise ConfigError(
                f"parallel.outer.folder ({self._meeting.folder}) is of another training:"
                f" {difference}; give this training a folder of its own"
            )

    def join(self, start: int) -> int:
        """The step to continue at, with its weights in place, from a checkpoint of step `start`.

        0: there is none, and weights are initial ones. Raises CheckpointError where the folder does
        not know the round of the checkpoint.
        """
        meeting, steps = self._meeting, self._config.steps
        own, newest = start // steps, meeting.newest()
        if newest is None and own == 0:
            meeting.put(meeting.state(0), self._write_first)
            newest = 0
        if newest == own - 1 and start % steps == 0 and meeting.has_change(newest):
            # It was asked to stop while it waited for what has come of that round.
            return self._wait(newest)
        if newest is None or newest < own:
            raise CheckpointError(
                f"the checkpoint of step {start} is of round {own}, and {meeting.folder} knows"
                f" {'no round' if newest is None else f'rounds up to {newest}'}; restore that"
                " folder, or give all members new work directories and a new folder"
            )
        if newest > own or start % steps == 0:
            return self._take_newest()
        return start

    def note(self, num_targets: Tensor) -> None:
        """Count the targets of a step of this member."""
        self._meeting.progress()
        self._targets += num_targets

    def after(self, step: int) -> int:
        """End the round if this step is its last. Returns the step to continue at: a later one if
        the others have gone on without this member. Asked to stop, it may return with `is_waiting`
        set, and the weights as they are."""
        steps = self._config.steps
        return step if step % steps else self._end_round(step // steps - 1)

    def _end_round(self, number: int) -> int:
        meeting = self._meeting
        with self._unless_removed(number):
            file = meeting.change(number, self._config.member)
            # One that this member left before it died is of the same steps.
            meeting.put(file, self._write_change(number), replace=True)
        return self._wait(number)

    def _wait(self, number: int) -> int:
        """Until the round has a result, which this member makes where that falls to it."""
        meeting, steps = self._meeting, self._config.steps
        self.is_waiting = True
        while not self._has_ended(number):
            if self._should_stop():
                return (number + 1) * steps
            meeting.progress()
            with self._unless_removed(number):
                waits = number == 0 and time.monotonic() - self._began < self._config.lease_s
                decision = meeting.decide(number, waits)
                if decision is not None and (
                    decision.adds_up == meeting.member or not meeting.is_alive(decision.adds_up)
                ):
                    self._add_up(number, decision)
                else:
                    time.sleep(PAUSE_S)
        self.is_waiting = False
        return self._take_newest()

    def _has_ended(self, number: int) -> bool:
        return (self._meeting.newest() or 0) > number

    @contextmanager
    def _unless_removed(self, number: int) -> Iterator[None]:
        """Skip the block, or its rest, where others have ended the round: then its files may be
        gone."""
        try:
            yield
        except FileNotFoundError:
            if not self._has_ended(number):
                raise

    def _add_up(self, number: int, decision: Decision) -> None:
        """Take the outer step, and publish its result."""
        config, meeting = self._config, self._meeting
        changes = [Tensors(meeting.change(number, m)) for m in decision.members]
        before = Tensors(meeting.state(number))
        targets = [float(change[TARGETS]) for change in changes]
        after: dict[str, Tensor] = {}
        for name in self._weights:
            mean = sum(
                change[name] * (count / sum(targets))
                for change, count in zip(changes, targets, strict=True)
            )
            momentum = config.momentum * before[MOMENTUM + name] + mean
            after[MOMENTUM + name] = momentum
            after[name] = before[name] - config.lr * (mean + config.momentum * momentum)
        self.moved_bytes += (len(changes) - 1) * sum(w.nbytes for w in self._weights.values())
        meeting.put(meeting.state(number + 1), lambda path: self._write(path, after))
        meeting.prune(number)

    def _write_first(self, path: Path) -> None:
        zeros = {MOMENTUM + name: torch.zeros_like(w) for name, w in self._weights.items()}
        self._write(path, self._weights | zeros)

    def _write_change(self, number: int) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            before = Tensors(self._meeting.state(number))
            changes = {name: before[name] - w.cpu() for name, w in self._weights.items()}
            self._write(path, changes | {TARGETS: self._targets.cpu().clamp(min=1)})

        return write

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        facts = {name: facts_of(tensor) for name, tensor in tensors.items()}
        write_tensors(path, facts, tensors.__getitem__)
        self.moved_bytes += path.stat().st_size

    def _take_newest(self) -> int:
        """Begin the newest round; its step."""
        while True:
            newest = self._meeting.newest() or 0
            with self._unless_removed(newest):
                self._read(newest)
                self._targets.zero_()
                return newest * self._config.steps

    @torch.no_grad()
    def _read(self, number: int) -> None:
        found = Tensors(self._meeting.state(number))
        for name, weight in self._weights.items():
            weight.copy_(found[name])
            self.moved_bytes += weight.nbytes


def make_outer(config: ParallelConfig, layout: Layout) -> Outer | None:
    """The outer step of a run; None: it meets no other."""
    return None if config.outer.kind == "none" else Outer(config.outer, layout, config.timeout_s)


class Tensors:
    """The tensors of a file by name. Raises FileNotFoundError where there is none."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, "pt")

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self._file.get_tensor(name)
        return found
