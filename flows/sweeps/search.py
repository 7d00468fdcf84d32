"""Has Optuna choose the points of a sweep, and keeps them where any later process finds them.

Hydra's own sweeper for Optuna needs a version whose storage fails with the SQLAlchemy in use, and
forgets everything with its process (docs/decisions/0016). Here the study is a SQLite file in the
folder of the sweep. Points are chosen by a sampler that is seeded for each of them, so that a
search that was killed continues with the points it would have tried. How a point ended is in the
file of its job; a point whose job died or was stopped is run again, with the same values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.sweeps.config import SweepConfig
from flows.sweeps.job import Ending, Point, read_ending
from flows.sweeps.points import Dimension
from flows.tracking.described import PointOfSweep
from llm_core.config import ConfigError

if TYPE_CHECKING:
    from optuna import Study, Trial

STUDY_FILE = "study.db"
NAME = "sweep"
PATIENCE_S = 60
"""How long a process waits while another one writes to the study."""
MIN_JUDGES = 3
"""Finished points that the median needs."""
HALVING_FACTOR = 4
MAX_RANDOM_TRIALS = 10
"""Points that are tried at random before the search learns from them, at most."""


class Search:
    """The points of a search that exist, and those it asks for next."""

    def __init__(
        self,
        folder: Path,
        space: Sequence[Dimension],
        config: SweepConfig,
        listed: Sequence[Sequence[str]],
        about: PointOfSweep,
    ) -> None:
        """listed: the points to run, where all combinations are; none where Optuna chooses.
        about: what all points know of the sweep."""
        self._folder, self._space, self._config, self._about = folder, space, config, about
        self.total = len(listed) or config.num_trials
        self._launched: set[int] = set()
        if not (folder / STUDY_FILE).exists():
            self._create(listed)
        self._study = open_study(folder, config)
        self._settle()

    @property
    def num_final(self) -> int:
        """Points that are not run again."""
        return sum(trial.state.is_finished() for trial in self._study.trials)

    def batches(self, size: int | None) -> Iterator[list[Point]]:
        """Points to run together, one unless `size` says otherwise. Those of a batch have ended
        when the next one is asked for."""
        while not self._settle() and (batch := [*self._choose(size or 1)]):
            self._launched |= {point.number for point in batch}
            yield batch

    def points(self) -> list[Point]:
        """Every point that has its values, by number."""
        known = [
            (trial.number, trial.params or trial.system_attrs.get("fixed_params", {}))
            for trial in self._study.get_trials(deepcopy=False)
        ]
        needed = sum(one.varies for one in self._space)
        return [self._point(*one) for one in known if len(one[1]) == needed]

    def _choose(self, size: int) -> Iterator[Point]:
        from optuna import Trial
        from optuna.trial import TrialState

        open_ones = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        # With the same id: a trial keeps what was suggested for it.
        for trial in open_ones[:size]:
            self._study.sampler = self._sampler(trial.number)
            yield self._suggest(Trial(self._study, trial._trial_id))
        for _ in range(size - len(open_ones)):
            number = len(self._study.get_trials(deepcopy=False))
            waits = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if number >= self.total and not waits:
                return
            self._study.sampler = self._sampler(number)
            yield self._suggest(self._study.ask())

    def _suggest(self, trial: Trial) -> Point:
        values: dict[str, Any] = {}
        for one in filter(lambda one: one.varies, self._space):
            if one.interval is None:
                values[one.key] = trial.suggest_categorical(one.key, one.values)
                continue
            low, high, is_log = one.interval.low, one.interval.high, one.interval.is_log
            if one.interval.is_whole:
                values[one.key] = trial.suggest_int(one.key, int(low), int(high), log=is_log)
            else:
                values[one.key] = trial.suggest_float(one.key, low, high, log=is_log)
        return self._point(trial.number, values)

    def _point(self, number: int, values: dict[str, Any]) -> Point:
        chosen: list[str] = []
        swept: dict[str, str] = {}
        for one in self._space:
            value: Any = values[one.key] if one.varies else one.values[0]
            text = one.interval.as_text(value) if one.interval else value
            chosen.append(one.override(text))
            swept |= {one.name: text} if one.varies else {}
        about = PointOfSweep(
            self._about.sweep_id,
            " ".join(f"{name}={value}" for name, value in swept.items()) or f"run {number + 1}",
            swept,
            self._about.dependent,
            str(self._folder) if self._config.pruner != "none" else None,
            number,
        )
        return Point(number, chosen, about)

    def _settle(self) -> bool:
        """Tell the study how points ended; whether one of this process was stopped."""
        from optuna.trial import TrialState

        stopped = False
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            ending = read_ending(self._folder, trial.number)
            tried = trial.number in self._launched
            stopped |= tried and ending.state == "stopped"
            if ending.is_final or (tried and ending.state == "died"):
                state, value = self._judge(ending)
                self._study.tell(trial.number, value, state=state)
        return stopped

    def _judge(self, ending: Ending) -> tuple[Any, float | None]:
        from optuna.trial import TrialState

        if ending.pruned:
            return TrialState.PRUNED, None
        value = ending.results.get(self._config.objective)
        if ending.state != "completed" or value is None or not math.isfinite(value):
            return TrialState.FAIL, None
        return TrialState.COMPLETE, float(value)

    def _create(self, listed: Sequence[Sequence[str]]) -> None:
        """Make the file of the study, which is there as a whole or not at all."""
        partial = self._folder / f".{STUDY_FILE}.partial"
        partial.unlink(missing_ok=True)
        study = open_study(self._folder, self._config, partial.name)
        for point in listed:
            pairs = zip(self._space, point, strict=True)
            values = {one.key: text.partition("=")[2] for one, text in pairs if one.varies}
            study.enqueue_trial(values)
        # So that nothing has the file open.
        study._storage.remove_session()
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
        partial.replace(self._folder / STUDY_FILE)

    def _sampler(self, number: int) -> Any:
        from optuna.samplers import RandomSampler, TPESampler

        seed = (self._config.seed * 1_000_003 + number) % 2**32
        if self._config.sampler != "tpe":
            return RandomSampler(seed)
        few = max(2, min(MAX_RANDOM_TRIALS, self.total // 3))
        return TPESampler(seed=seed, n_startup_trials=few)


def open_study(folder: Path, config: SweepConfig, name: str = STUDY_FILE) -> Study:
    """The study in a folder, made if missing. Raises ConfigError where Optuna is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "a search needs Optuna, which is not installed; install textmill[sweep], or run every"
            " combination with sweep.sampler=all sweep.pruner=none"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruners = {
        "none": optuna.pruners.NopPruner(),
        "median": optuna.pruners.MedianPruner(n_startup_trials=MIN_JUDGES),
        "halving": optuna.pruners.SuccessiveHalvingPruner(reduction_factor=HALVING_FACTOR),
    }
    # Points in other processes report to it meanwhile.
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{folder / name}", engine_kwargs={"connect_args": {"timeout": PATIENCE_S}}
    )
    return optuna.create_study(
        storage=storage,
        study_name=NAME,
        load_if_exists=True,
        direction="maximize" if config.maximizes else "minimize",
        pruner=pruners[config.pruner],
    )
