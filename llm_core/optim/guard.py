"""Judges which steps would do harm: those whose loss or gradient norm is not a finite number, or
far from what it has been.

A batch without a target is not harmful: it has nothing to learn from, so it is skipped and counts
for nothing.

All numbers stay on the device: a bad step is skipped inside the update, and the host learns of it
when it fetches metrics. Only accepted numbers enter the window that a spike is judged by, so one
NaN does not poison it. Every process finds the same, because loss and norm are the same on all; the
state is saved with the optimizer's, so a resumed run judges as one that was not stopped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from llm_core.optim.config import GuardConfig, OptimConfig

UPDATED, NOT_FINITE, SPIKE, OVERFLOW, NO_TARGETS = range(5)
REASONS = {
    NOT_FINITE: "not_finite",
    SPIKE: "spike",
    OVERFLOW: "loss_scale_overflow",
    NO_TARGETS: "no_targets",
}


class TrainingDiverged(ArithmeticError):
    """Losses or gradients that are not numbers, or useless; more steps would train nothing."""


class Guard:
    """Judges each step, and counts those that it skips."""

    def __init__(self, config: GuardConfig, device: torch.device) -> None:
        self._config, self.device = config, device
        window = config.rollback_window_steps
        self.state = {
            "skips_in_a_row": torch.zeros((), dtype=torch.int64, device=device),
            "recent_skips": torch.zeros(window, dtype=torch.uint8, device=device),
        }
        if config.rollback_skips:
            # (step, point) of each time the run went back; rows of -1 are still free.
            self.state["rollbacks"] = torch.full(
                (max(1, config.max_rollbacks), 2), -1, dtype=torch.int64, device=device
            )
        if config.spike_std:
            self.state["num_accepted"] = torch.zeros((), dtype=torch.int64, device=device)
            self.state["accepted"] = torch.zeros(
                2, config.spike_window_steps, dtype=torch.float64, device=device
            )

    def judge(
        self,
        loss: Tensor,
        norm: Tensor,
        may_overflow: Tensor | None = None,
        num_targets: Tensor | None = None,
    ) -> Tensor:
        """Why to skip the step, as an integer scalar; UPDATED: do not.

        may_overflow: whether the loss scale can still fall, so that a gradient out of bounds is
        not a fault of the run. num_targets: of the global batch; None: it has some.
        """
        teaches = (
            torch.ones_like(loss, dtype=torch.bool) if num_targets is None else num_targets > 0
        )
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        reason = torch.where(finite, UPDATED, NOT_FINITE)
        if self._config.spike_std:
            reason = torch.where(finite & self._is_spike(loss, norm, teaches), SPIKE, reason)
        if may_overflow is not None:
            reason = torch.where(
                torch.isfinite(loss) & ~torch.isfinite(norm) & may_overflow, OVERFLOW, reason
            )
        reason = torch.where(teaches, reason, NO_TARGETS)
        self._count(reason)
        return reason

    def rollbacks(self) -> list[tuple[int, int]]:
        """(step, point it went back to) of each time the run went back. Waits for the device."""
        rows = self.state["rollbacks"].tolist() if self._config.rollback_skips else []
        return [(step, point) for step, point in rows if point >= 0]

    def note_rollbacks(self, taken: list[tuple[int, int]]) -> None:
        """Say which there have been, after older state was read."""
        self.state["rollbacks"][: len(taken)] = torch.tensor(taken, dtype=torch.int64)

    def _is_spike(self, loss: Tensor, norm: Tensor, teaches: Tensor) -> Tensor:
        values, accepted = torch.stack([loss.double(), norm.double()]), self.state["accepted"]
        deviation = accepted.std(dim=1)
        far = ((values - accepted.mean(dim=1)).abs() > self._config.spike_std * deviation).any()
        full = self.state["num_accepted"] >= self._config.spike_window_steps
        spike = far & full
        takes = torch.isfinite(values).all() & ~spike & teaches
        self.state["num_accepted"] += takes
        # A window that moves on by a copy, as an index on the host would have to wait.
        newest = torch.cat([accepted[:, 1:], values[:, None]], dim=1)
        accepted.copy_(torch.where(takes, newest, accepted))
        return spike

    def _count(self, reason: Tensor) -> None:
        counts = (reason == NOT_FINITE) | (reason == SPIKE)
        row, recent = self.state["skips_in_a_row"], self.state["recent_skips"]
        row.copy_(torch.where(counts, row + 1, torch.where(reason == UPDATED, 0, row)))
        recent.copy_(torch.cat([recent[1:], counts[None].to(recent.dtype)]))

    def report(
        self, loss: Tensor, norm: Tensor, reason: Tensor, loss_scale: Tensor | None
    ) -> Tensor:
        """A `StepReport` as a float64 tensor on the device."""
        scale = torch.ones_like(loss) if loss_scale is None else loss_scale
        counts = self.state["skips_in_a_row"], self.state["recent_skips"].sum()
        return torch.stack([value.double() for value in (loss, norm, reason, *counts, scale)])


class StepReport(NamedTuple):
    """What the host learns of a step."""

    loss: float
    grad_norm: float
    reason: float
    skips_in_a_row: float
    recent_skips: float
    loss_scale: float

    @property
    def updated(self) -> bool:
        return int(self.reason) == UPDATED

    def row(self, step: int, lr: float, tokens: int) -> dict[str, Any]:
        """The row of metrics: of an update, or of the event that there was none."""
        if self.updated:
            return {
                "step": step,
                "train_loss": self.loss,
                "lr": lr,
                "grad_norm": self.grad_norm,
                "tokens": tokens,
            }
        found = {"skipped_loss": self.loss, "skipped_grad_norm": self.grad_norm}
        numbers = {name: value for name, value in found.items() if abs(value) < float("inf")}
        return {
            "step": step,
            "event": "skipped_step",
            "reason": REASONS[int(self.reason)],
            "lr": lr,
            "tokens": tokens,
        } | numbers

    def check(self, step: int, lr: float, config: OptimConfig, fp16: bool) -> None:
        """Raises TrainingDiverged after too many skipped steps in a row."""
        if self.skips_in_a_row < config.guard.max_skips:
            return
        seen = (
            f"step {step}: loss {self.loss}, gradient norm {self.grad_norm} at learning rate"
            f" {lr:.3g}, skipped as number {config.guard.max_skips} in a row"
            " (optim.guard.max_skips)"
        )
        if fp16 and self.loss_scale <= config.loss_scale.floor and abs(self.loss) < float("inf"):
            raise TrainingDiverged(
                f"{seen}: fp16 gradients overflow at the least loss scale ({self.loss_scale:g});"
                " use train.dtype=bf16, or lower optim.lr or optim.loss_scale.floor"
            )
        raise TrainingDiverged(f"{seen}; lower optim.lr or raise optim.warmup_steps")
