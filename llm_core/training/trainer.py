"""The training loop: steps, validations, checkpoints, and a clean stop when asked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.data.batch import Batch
from llm_core.model.loss import count_targets
from llm_core.model.precision import autocast
from llm_core.optim.guard import StepReport, TrainingDiverged
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.fsdp import reshard
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.vote import Vote
from llm_core.profiling.recorder import Recorder
from llm_core.training.expert_load import load_row
from llm_core.training.metric_log import MetricLog
from llm_core.training.outer.diloco import Outer
from llm_core.training.preference.pairs import metrics_of, pairs_of
from llm_core.training.rollback import Rollback, event_rows, learnt_sequences, passed_batches
from llm_core.training.run_config import RunConfig
from llm_core.training.schedule import learning_rate
from llm_core.training.stale.worker import Worker, make_worker
from llm_core.training.step import own_columns, place, token_losses, train_step
from llm_core.training.throughput import StepClock
from llm_core.training.validate import (
    ValidationSet,
    micro_batches,
    pair_sums,
    partial_sums,
    result,
)

Batches = Callable[[int], Batch]
"""Step, counted from 0 → the rows of this rank."""


class Preempted(Exception):
    """The run was asked to stop, and has saved a checkpoint."""


@dataclass
class Trainer:
    """Holds finished parts and runs them; every rank has one and all do the same steps.

    metrics, timing: where numbers go; None on all ranks but the first. rollback: how the run goes
    back after too many skipped steps; None: it does not. recorder: of a profile of some steps;
    None: there is none. sources: names of the sources that batches tell of, for losses by source.
    should_stop: asked after each step; one rank's yes stops all, several ranks after the step that
    follows. on_step: told each step that ended on the host. keep_model: writes the model of a step,
    with all ranks. outer: meets other runs; None: there are none.
    """

    layout: Layout
    optimizer: Optimizer
    batches: Batches
    validation: ValidationSet
    config: RunConfig
    ranks: Ranks
    checkpoints: Checkpoints
    metrics: MetricLog | None
    timing: MetricLog | None
    clock: StepClock
    should_stop: Callable[[], bool] = lambda: False
    rollback: Rollback | None = None
    recorder: Recorder | None = None
    sources: tuple[str, ...] = ()
    on_step: Callable[[int], None] | None = None
    keep_model: Callable[[int], None] | None = None
    outer: Outer | None = None
    _stops: Vote = field(init=False)
    _worker: Worker | None = field(init=False)
    _rollbacks: list[tuple[int, int]] = field(default_factory=list)
    _unlogged: list[tuple[int, float, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stops = Vote(self.ranks)
        self._worker = make_worker(
            self.config, self.layout, self.optimizer, self.ranks, self.should_stop
        )
        if self._worker:
            # Else processes would wait for each other wherever steps are logged.
            self.clock.ranks = self._worker.ranks

    def run(self, start: int) -> None:
        """Steps start + 1 … num_steps. Raises Preempted when asked to stop, after saving."""
        train = self.config.train
        self.clock.restart()
        if self.outer:
            if self.outer.is_waiting:
                self._stop(start)
            # The others may have ended this round while the run was stopped.
            self._keep_if_due(start)
        # A run that was killed between a step and its validation makes up for it.
        self._validate_if_due(start)
        if self.rollback:
            self._go_on_past_rollbacks()
            if start == 0:
                self.rollback.points.save(start, self.layout, self.optimizer)
        step = start
        while step < train.num_steps:
            step += 1
            if self.recorder:
                self.recorder.begin(step)
            lr = learning_rate(step, train.num_steps, self.config.optim, train.batch_sizes)
            index = step - 1 + passed_batches(self._rollbacks)
            self._unlogged.append((step, lr, self.train_step(index, lr)))
            if self.outer:
                step = self.outer.after(step)
            if self.on_step:
                self.on_step(step)
            self.checkpoints.poll()
            stop = self._worker.stops if self._worker else self._stops.ask(self.should_stop())
            is_last = step == train.num_steps
            saves = is_last or stop or train.saves_at(step) or self._is_point(step)
            if saves or step % train.log_every == 0 or self._validates_at(step):
                trouble = self._log_steps()
                if self.rollback and trouble is not None:
                    step = self._go_back(self.rollback, trouble)
                    continue
            if self.rollback and self._is_point(step):
                self.rollback.points.save(step, self.layout, self.optimizer)
            if self._worker and (saves or self._shows_weights_at(step)):
                stop = self._worker.meet() or stop
            stop = stop or not self._validate_if_due(step)
            # Before the checkpoint of this step, so that a run that resumes there has it.
            self._keep_if_due(step)
            if saves or stop or self._is_best(step):
                self._save(step)
            if stop:
                self._stop(step)
        self._finish()

    def _stop(self, step: int) -> NoReturn:
        self._finish()
        stopped = f"stopped at step {step} of {self.config.train.num_steps}"
        if self.metrics:
            what = f"{stopped} and saved, as asked by a signal"
            self.metrics.tell("preempted", step, what)
        raise Preempted(stopped)

    def _keep_if_due(self, step: int) -> None:
        every = self.config.train.keep_models_every
        if not self.keep_model or not every or step == 0 or step % every:
            return
        if not (self.outer and self.outer.is_waiting):
            self.keep_model(step)
            self.clock.restart()

    def _finish(self) -> None:
        if self.recorder:
            self.recorder.close()
        self._stops.settle()
        self.checkpoints.finish()

    def train_step(self, index: int, lr: float) -> Tensor:
        """One update from global batch `index`, with the report of `step.train_step`."""
        batch = self.clock.wait_for(lambda: self.batches(index))
        self.clock.see(batch, self.layout.bare.patterns)
        if self.outer:
            self.outer.note(count_targets(batch.targets_BT))
        if worker := self._worker:
            worker.begin()
            own, sources = worker.layout, len(self.sources)
            return train_step(own, worker, batch, lr, self.config, worker.ranks, sources)
        return train_step(
            self.layout, self.optimizer, batch, lr, self.config, self.ranks, len(self.sources)
        )

    def _log_steps(self) -> int | None:
        """Fetch the numbers of the steps since the last time: the only wait for the device between
        checkpoints.

        The step after which the run must go back, if there is one; later ones are not logged then.
        """
        if not self._unlogged:
            return None
        values = torch.stack([value for _, _, value in self._unlogged]).tolist()
        train = self.config.train
        for (step, lr, _), numbers in zip(self._unlogged, values, strict=True):
            size = len(StepReport._fields)
            report, end = StepReport(*numbers[:size]), len(numbers) - self._num_loads
            of_sources, loads = numbers[size:end], numbers[end:]
            if self.metrics:
                sequences = learnt_sequences(step, train.batch_sizes, self._rollbacks)
                row = report.row(step, lr, sequences * train.seq_len)
                if train.learns_pairs and report.updated:
                    row |= metrics_of(of_sources)
                elif of_sources and report.updated:
                    row["by_source"] = self._losses_by_source(of_sources)
                if loads and report.updated:
                    row |= load_row(loads, self.config.model.num_layers)
                self.metrics.write(row)
            if self.rollback and self.rollback.is_due(report):
                return step
            report.check(step, lr, self.config.optim, train.dtype == "fp16")
        timed = self.clock.row(self._unlogged[-1][0], len(self._unlogged))
        if self._worker:
            timed |= self._worker.row()
        if self.timing:
            self.timing.write(timed)
        self._unlogged.clear()
        return None

    @property
    def _num_loads(self) -> int:
        """Numbers of loads of experts at the end of a report."""
        model = self.config.model
        return 0 if model.experts is None else model.num_layers * model.experts.number

    def _losses_by_source(self, sums: list[float]) -> dict[str, dict[str, float]]:
        """Of sources with targets in the batch; sums: (nats, targets) of each source in turn."""
        named = zip(self.sources, sums[::2], sums[1::2], strict=True)
        return {
            name: {"train_loss": nats / targets, "targets": int(targets)}
            for name, nats, targets in named
            if targets
        }

    def _is_point(self, step: int) -> bool:
        return self.rollback is not None and self.rollback.is_point(step)

    def _go_back(self, rollback: Rollback, step: int) -> int:
        """To the last point before this step; its step. The batches since then are passed over."""
        point = rollback.go_back(step, self.layout, self.optimizer, self.checkpoints)
        self._unlogged.clear()
        if self.metrics:
            self.metrics.cut(point)
        self._go_on_past_rollbacks()
        self.clock.restart()
        return point

    def _go_on_past_rollbacks(self) -> None:
        """Count batches on from the rollbacks there have been, and have a row for each of them."""
        self._rollbacks = self.optimizer.guard.rollbacks()
        for row in event_rows(self.optimizer):
            if self.metrics and row not in self.metrics.events:
                self.metrics.write(row)

    def _validates_at(self, step: int) -> bool:
        every = self.config.train.validate_every
        return step == self.config.train.num_steps or (every > 0 and step > 0 and step % every == 0)

    def _shows_weights_at(self, step: int) -> bool:
        every = self.config.train.keep_models_every
        return self._validates_at(step) or (every > 0 and step % every == 0)

    def _validate_if_due(self, step: int) -> bool:
        """Validate if due and not yet done; False when a stop was asked for meanwhile."""
        if not self._validates_at(step) or self.ranks.any(self._val_loss_at(step) is not None):
            return True
        with self.published():
            sums = self.validation_sums()
        if sums is None:
            return False
        whole, *others = sums.cpu()
        found = result(whole)
        # The device has been waited for: only now may the time of the next steps begin.
        self.clock.restart()
        if not math.isfinite(found.val_loss):
            raise TrainingDiverged(
                f"step {step}: validation loss {found.val_loss}; lower optim.lr or raise"
                " optim.warmup_steps"
            )
        if self.metrics:
            row: dict[str, Any] = {"step": step, **dataclasses.asdict(found)}
            if self.config.train.learns_pairs:
                row |= metrics_of(others[0].tolist(), "val_")
            elif others:
                each = map(dataclasses.asdict, map(result, others))
                row["by_source"] = dict(zip(self.validation.sources, each, strict=True))
            self.metrics.write(row)
        return True

    def _val_loss_at(self, step: int) -> float | None:
        """What a validation after this step found, if any; on the first rank, with the log."""
        last = self.metrics.last if self.metrics else {}
        return last["val_loss"] if last.get("step") == step and "val_loss" in last else None

    def _is_best(self, step: int) -> bool:
        """Whether to save because no validation found a lower loss; the same on every rank."""
        if not self.config.train.keep_best_checkpoint or not self._validates_at(step):
            return False
        losses = self.metrics.val_losses if self.metrics else []
        return self.ranks.any(bool(losses) and losses[-1] < min(losses[:-1], default=math.inf))

    def published(self) -> AbstractContextManager[None]:
        """Within, weights are those that are validated and written as models."""
        averages = self.config.train.publish == "average"
        return self.optimizer.averaged() if averages else nullcontext()

    def validation_sums(self) -> Tensor | None:
        """Sums over the validation set, in all and by source, on every rank; None when stopped."""
        device = self.ranks.device
        num_sources = len(self.validation.sources)
        preference = self.config.train.preference
        num_others = num_sources + self.config.train.learns_pairs
        sums = torch.zeros(1 + num_others, 4, dtype=torch.float64, device=device)
        bytes_per_token_V = self.validation.bytes_per_token_V.to(device)
        stop = False
        size = self.config.train.micro_batch_sequences
        for batch in micro_batches(self.validation, size, self.ranks):
            ids_BT, targets_BT, rows = place(batch, self.layout, self.ranks)
            with torch.no_grad(), autocast(device, self.config.train.dtype):
                losses_BT = token_losses(self.layout, ids_BT, targets_BT, rows)
            sources_BT = batch.sources_BT
            if sources_BT is not None:
                sources_BT = own_columns(sources_BT, self.layout, self.ranks)
            if self.config.train.learns_pairs and self.ranks.counts_losses:
                pairs = pairs_of(preference, rows.get("documents_BK"), batch.references_B2)
                assert losses_BT is not None, "pairs are not trained in a pipeline"
                sums += pair_sums(losses_BT, targets_BT, bytes_per_token_V, pairs)
            elif self.ranks.counts_losses:
                sums += partial_sums(
                    losses_BT, targets_BT, bytes_per_token_V, sources_BT, num_sources
                )
            if stop := self._stops.ask(self.should_stop()):
                break
        reshard(self.layout.model)
        return None if stop else self.ranks.sum(sums)

    def _save(self, step: int) -> None:
        if self.metrics:
            self.metrics.sync()
        self.checkpoints.save(step, self.layout, self.optimizer, self._val_loss_at(step))
        self.clock.restart()
