"""The training loop: a step, a validation now and then, a checkpoint now and then, and a clean stop when asked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.device import autocast
from llm_core.metric_log import MetricLog
from llm_core.parallel.apply import reshard
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.schedule import learning_rate
from llm_core.step import place, token_losses, train_step
from llm_core.train_config import RunConfig
from llm_core.validate import ValidationSet, micro_batches, partial_sums, result

Batches = Callable[[int], tuple[Tensor, ...]]
"""Step, counted from 0 → (ids_BT, targets_BT) of this rank on the CPU, and documents_BT where attention keeps them apart."""


class TrainingDiverged(ArithmeticError):
    """A loss or gradient that is no number; going on would train nothing."""


class Preempted(Exception):
    """The run was asked to stop, and has saved a checkpoint."""


@dataclass
class Trainer:
    """Holds finished parts and runs them; every rank has one and all do the same steps.

    metrics, timing: where numbers go; None on all ranks but the first.
    should_stop: asked after each step; one rank's yes stops all.
    """

    layout: Layout
    optimizer: torch.optim.AdamW
    batches: Batches
    validation: ValidationSet
    config: RunConfig
    ranks: Ranks
    checkpoints: Checkpoints
    metrics: MetricLog | None
    timing: MetricLog | None
    should_stop: Callable[[], bool] = lambda: False
    _unlogged: list[tuple[int, float, Tensor]] = field(default_factory=list)
    _logged_at: float = 0.0

    def run(self, start: int) -> None:
        """Steps start + 1 … num_steps. Raises Preempted once a stop was asked for and a checkpoint is saved."""
        train = self.config.train
        self._logged_at = time.perf_counter()
        self._validate_if_due(start)
        for step in range(start + 1, train.num_steps + 1):
            lr = learning_rate(step, train.num_steps, self.config.optim)
            self._unlogged.append((step, lr, self.train_step(step - 1, lr)))
            self.checkpoints.poll()
            stop = self.ranks.any(self.should_stop())
            is_last = step == train.num_steps
            if is_last or stop or step % train.log_every == 0 or step % train.checkpoint_every == 0 or self._validates_at(step):
                self._log_steps()
            stop = stop or not self._validate_if_due(step)
            if is_last or stop or step % train.checkpoint_every == 0 or self._is_best(step):
                self._save(step)
            if stop:
                self.checkpoints.finish()
                raise Preempted(f"stopped at step {step} of {train.num_steps}")
        self.checkpoints.finish()

    def train_step(self, index: int, lr: float) -> Tensor:
        """One update from global batch `index`: [loss, gradient norm], as `llm_core.step.train_step` gives them."""
        return train_step(self.layout, self.optimizer, self.batches(index), lr, self.config, self.ranks)

    def _log_steps(self) -> None:
        """Fetch the numbers of the steps since the last time: the only wait for the device between checkpoints."""
        if not self._unlogged:
            return
        values = torch.stack([value for _, _, value in self._unlogged]).tolist()
        tokens = self.config.train.tokens_per_step
        for (step, lr, _), (loss, norm) in zip(self._unlogged, values, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise TrainingDiverged(
                    f"step {step}: loss {loss}, gradient norm {norm} at learning rate {lr:.3g}; "
                    "lower optim.lr or raise optim.warmup_steps"
                )
            if self.metrics:
                self.metrics.write({"step": step, "train_loss": loss, "lr": lr, "grad_norm": norm, "tokens": step * tokens})
        now = time.perf_counter()
        if self.timing:
            self.timing.write({"step": step, "num_steps": len(self._unlogged), "elapsed_s": now - self._logged_at})
        self._logged_at = now
        self._unlogged.clear()

    def _validates_at(self, step: int) -> bool:
        every = self.config.train.validate_every
        return step == self.config.train.num_steps or (every > 0 and step > 0 and step % every == 0)

    def _validate_if_due(self, step: int) -> bool:
        """Validate where the plan says so and it has not been done; False when a stop was asked for meanwhile."""
        if not self._validates_at(step) or self.ranks.any(self._val_loss_at(step) is not None):
            return True
        sums = self.validation_sums()
        if sums is None:
            return False
        found = result(sums)  # waits for the device: only now may the time of the next steps begin
        self._logged_at = time.perf_counter()
        if not math.isfinite(found.val_loss):
            raise TrainingDiverged(f"step {step}: validation loss {found.val_loss}; lower optim.lr or raise optim.warmup_steps")
        if self.metrics:
            self.metrics.write({"step": step, "val_loss": found.val_loss, "val_bpb": found.val_bpb})
        return True

    def _val_loss_at(self, step: int) -> float | None:
        """What a validation after this step found, if there was one; on the first rank, which has the log."""
        last = self.metrics.rows[-1] if self.metrics and self.metrics.rows else {}
        return last["val_loss"] if last.get("step") == step and "val_loss" in last else None

    def _is_best(self, step: int) -> bool:
        """Whether the checkpoint of this step is wanted because no validation found a lower loss, the same on every rank."""
        if not self.config.train.keep_best_checkpoint or not self._validates_at(step):
            return False
        losses = [row["val_loss"] for row in self.metrics.rows if "val_loss" in row] if self.metrics else []
        return self.ranks.any(bool(losses) and losses[-1] < min(losses[:-1], default=math.inf))

    def validation_sums(self) -> Tensor | None:
        """Sums over the whole validation set, the same on every rank; None when a stop was asked for meanwhile."""
        device = self.ranks.device
        sums = torch.zeros(4, dtype=torch.float64, device=device)
        bytes_per_token_V = self.validation.bytes_per_token_V.to(device)
        stop = False
        for batch in micro_batches(self.validation, self.config.train.micro_batch_sequences, self.ranks):
            ids_BT, targets_BT, rows = place(batch, self.layout, self.ranks)
            with torch.no_grad(), self._autocast():
                losses_BT = token_losses(self.layout, ids_BT, targets_BT, rows)
            if self.ranks.counts_losses:
                sums += partial_sums(losses_BT, targets_BT, bytes_per_token_V)
            if stop := self.ranks.any(self.should_stop()):
                break
        reshard(self.layout.model)
        return None if stop else self.ranks.sum(sums)

    def _save(self, step: int) -> None:
        if self.metrics:
            self.metrics.sync()
        self.checkpoints.save(step, self.layout, self.optimizer, self._val_loss_at(step))
        self._logged_at = time.perf_counter()

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.ranks.device, self.config.train.dtype, self.config.parallel)
