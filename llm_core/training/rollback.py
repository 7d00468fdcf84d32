"""Takes a run that skipped too many steps back to the last point before, past the batches that
caused them.

Points are checkpoints of their own at multiples of `optim.guard.rollback_every_steps`, so that
where a run goes back to depends on nothing that only says how it is run: how often it saves, logs,
or was stopped. What it went back from and to is saved with the optimizer; batches are counted on
from there, so a resumed run reads what one that was not stopped reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.data.ramp import BatchSizes
from llm_core.optim.config import GuardConfig
from llm_core.optim.guard import StepReport, TrainingDiverged
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout


@dataclass
class Rollback:
    """Every rank has one and makes the same calls."""

    config: GuardConfig
    points: Checkpoints

    def is_due(self, report: StepReport) -> bool:
        return report.recent_skips >= self.config.rollback_skips

    def is_point(self, step: int) -> bool:
        """Whether the run can go back to the end of this step; 0 is before the first."""
        return step % self.config.rollback_every_steps == 0

    def go_back(
        self, step: int, layout: Layout, optimizer: Optimizer, checkpoints: Checkpoints
    ) -> int:
        """Restore the last point before `step`, there and in the checkpoints that a killed run
        resumes from; its step.

        Raises TrainingDiverged when the run has gone back too often.
        """
        taken = optimizer.guard.rollbacks()
        if len(taken) >= self.config.max_rollbacks:
            raise TrainingDiverged(
                f"step {step}: {self.config.rollback_skips} skipped steps within"
                f" {self.config.rollback_window_steps}, and the run has gone back {len(taken)}"
                " times (optim.guard.max_rollbacks); lower optim.lr or raise optim.warmup_steps"
            )
        point = self.points.newest_sound(newest=step - 1)
        if point is None:
            raise TrainingDiverged(
                f"step {step}: too many skipped steps, and no sound point to go back to in"
                f" {self.points.root}; lower optim.lr or raise optim.warmup_steps"
            )
        self.points.read(point, layout, optimizer)
        optimizer.guard.note_rollbacks([*taken, (step, point)])
        # Later checkpoints go last: a run that is killed before resumes from one of them, and goes
        # back again.
        checkpoints.save(point, layout, optimizer, checkpoints.val_loss_at(point))
        checkpoints.forget_after(point)
        self.points.forget_after(point)
        return point


def passed_batches(rollbacks: Sequence[tuple[int, int]]) -> int:
    """By how many batches a run is ahead of its steps. rollbacks: (step, point) of each."""
    return sum(step - point for step, point in rollbacks)


def learnt_sequences(
    step: int, sizes: BatchSizes, rollbacks: Sequence[tuple[int, int]] = ()
) -> int:
    """Sequences that the weights after a step were trained on, in batches of these sizes."""
    # Runs of steps that stayed: the step before, and by how many batches they are ahead.
    runs = [(0, 0)]
    for number, (_, point) in enumerate(rollbacks, start=1):
        ahead = passed_batches(rollbacks[:number])
        runs = [run for run in runs if run[0] < point] + [(point, ahead)]
    ends = [*(begin for begin, _ in runs[1:]), step]
    return sum(
        sizes.before(end + ahead) - sizes.before(begin + ahead)
        for (begin, ahead), end in zip(runs, ends, strict=True)
    )


def event_rows(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Rows of metrics about all rollbacks so far, by the step that each went back to."""
    return [
        {
            "step": point,
            "event": "rollback",
            "number": number,
            "from_step": step,
            "passed_batches": step - point,
        }
        for number, (step, point) in enumerate(optimizer.guard.rollbacks(), start=1)
    ]
