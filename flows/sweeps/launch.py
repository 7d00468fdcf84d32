"""Hands the points of a sweep to Hydra's launcher, which decides in which process each one runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode, TaskFunction
from hydra.utils import instantiate

from flows.compose import hydra_over, in_one_line, parse_override, settable
from llm_core.config import ConfigError

Job = Callable[[Any], int]
"""What a launcher calls with the configuration of a point; it may be pickled on the way."""

Batches = Callable[[int | None], Iterable[Sequence[Sequence[str]]]]
"""hydra.sweeper.max_batch_size → points that are launched together. The next batch is asked for
when the one before has ended."""


def split_hydra(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of the run, and those of Hydra itself, which hold for a whole sweep. Raises
    ConfigError for other sweepers."""
    ours: list[str] = []
    of_hydra: list[str] = []
    for text in overrides:
        override = parse_override(text)
        (of_hydra if override.is_hydra_override() else ours).append(text)
        name = override.key_or_group
        if (name == "hydra/sweeper" and override.value() != "basic") or (
            name.startswith("hydra.sweeper") and name != "hydra.sweeper.max_batch_size"
        ):
            raise ConfigError(
                f"{text} is not supported; give the points of a sweep as overrides,"
                " optim.lr=1e-3,3e-3, and search with sweep.sampler=tpe"
            )
        if override.is_hydra_override() and override.is_sweep_override():
            raise ConfigError(
                f"{text} gives several values, but it holds for the whole sweep; give one"
            )
    return ours, of_hydra


def launch(
    first: Sequence[str], batches: Batches, hydra_overrides: Sequence[str], job: Job
) -> None:
    """Call `job` for each point of each batch; `job_number` counts them.

    first: a point, since places depend on settings (`state`). Raises what the launcher raises; one
    that is not there is a ConfigError of one line.
    """
    with in_one_line(hydra_overrides):
        with hydra_over() as hydra:
            overrides = [*hydra_overrides, *settable(first)]
            config = hydra.compose_config(
                "config", overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=True
            )
        callbacks = _Callbacks(config)
        context = HydraContext(hydra.config_loader, callbacks)  # type: ignore[arg-type]
        launcher = Plugins.instance().instantiate_launcher(context, job, config)
    callbacks.on_multirun_start(config, config_name="config")
    num_begun = 0
    for batch in batches(config.hydra.sweeper.max_batch_size):
        launcher.launch([settable(point) for point in batch], initial_job_idx=num_begun)
        num_begun += len(batch)
    callbacks.on_multirun_end(config, config_name="config")


def job_number() -> int:
    """The number of the current job, in order of launch, from 0."""
    return int(HydraConfig.get().job.num)


class _Callbacks(Callback):
    """Calls what `hydra.callbacks` names. Hydra's own class for it is internal to Hydra."""

    def __init__(self, config: Any) -> None:
        self._named = [instantiate(one) for one in (config.hydra.callbacks or {}).values()]

    def on_multirun_start(self, config: Any, **about: Any) -> None:
        for callback in self._named:
            callback.on_multirun_start(config=config, **about)

    def on_job_start(self, config: Any, *, task_function: TaskFunction, **about: Any) -> None:
        for callback in self._named:
            callback.on_job_start(config=config, task_function=task_function, **about)

    def on_job_end(self, config: Any, job_return: JobReturn, **about: Any) -> None:
        for callback in reversed(self._named):
            callback.on_job_end(config=config, job_return=job_return, **about)

    def on_multirun_end(self, config: Any, **about: Any) -> None:
        for callback in reversed(self._named):
            callback.on_multirun_end(config=config, **about)
