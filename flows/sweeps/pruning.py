"""Stops a training that falls behind the other points of its sweep.

A thread of the run reads the validations that the trainer writes, and reports them to the study of
the sweep. Where its pruner says so, the run is stopped as by SIGTERM: the trainer saves and ends,
and what it measured is kept. The trainer itself does no extra work.
"""

from __future__ import annotations

import _thread
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from flows.console import warn
from flows.stops import STOPS
from flows.sweeps.config import SweepConfig
from flows.tracking.curves import GrowingFile
from flows.tracking.described import PointOfSweep
from llm_core.printing import one_line
from llm_core.training.metric_log import METRICS_FILE
from tasks.runtime.parts import scratch_dir
from tasks.runtime.store import Node

if TYPE_CHECKING:
    from optuna import Trial

EVERY_S = 0.5
"""How often new validations are looked for."""


class Pruning:
    """Watches the training of a run, if the run is a point of a sweep that judges it."""

    def __init__(self, point: PointOfSweep | None, config: SweepConfig) -> None:
        self._study = Path(point.study) if point and point.study else None
        self._number, self._config = point.number if point else 0, config
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._verdict: str | None = None

    def stage_started(self, node: Node, out_dir: Path) -> None:
        """A stage works in `out_dir`."""
        if self._study is None or node.stage != "train":
            return
        place = (self._study, scratch_dir(out_dir), node.config["train"]["num_steps"])
        self._thread = threading.Thread(target=self._work, args=place, daemon=True)
        self._thread.start()

    def stage_ended(self) -> None:
        if self._thread is not None:
            self._closing.set()
            self._thread.join()
            self._thread = None

    def reason_of(self, error: BaseException) -> str | None:
        """Why the training was pruned, if that ended the run."""
        return self._verdict if isinstance(error, STOPS) else None

    def _trial(self, study_folder: Path) -> tuple[Trial, set[int]]:
        """The trial of the point, and the steps that an earlier try reported."""
        from optuna import Trial

        from flows.sweeps.search import open_study

        study = open_study(study_folder, self._config)
        known = study.get_trials(deepcopy=False)[self._number]
        return Trial(study, known._trial_id), set(known.intermediate_values)

    def _work(self, study_folder: Path, folder: Path, num_steps: int) -> None:
        try:
            trial, reported = self._trial(study_folder)
            self._verdict = self._judge(trial, reported, folder, num_steps)
        except Exception as error:  # noqa: BLE001 - a study that fails costs no training
            warn(f"the sweep cannot judge this training ({one_line(error)}); it runs to its end")
        if self._verdict and not self._closing.is_set():
            # Handled in the main thread, as a signal from outside is.
            _thread.interrupt_main(signal.SIGTERM)

    def _judge(self, trial: Trial, reported: set[int], folder: Path, num_steps: int) -> str | None:
        """Report validations until one of them is behind, or the training ends."""
        name, files = self._config.objective, dict[Path, GrowingFile]()
        while not self._closing.wait(EVERY_S):
            for path in folder.glob(f"run-*/{METRICS_FILE}"):
                for row in files.setdefault(path, GrowingFile(path)).new_rows():
                    step = row["step"]
                    if name not in row or step in reported or step >= num_steps:
                        continue
                    reported.add(step)
                    trial.report(row[name], step)
                    if trial.should_prune():
                        at = f"step {step} of {num_steps}"
                        return f"pruned at {at}: {name} {row[name]:.4f} is behind"
        return None
