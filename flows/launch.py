"""Turns the overrides of a sweep into points, and hands those to Hydra's launcher, which decides in
which process each one runs.

Hydra's sweeper is not asked: it would expand the overrides a second time, in another order where
they are shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode, TaskFunction
from hydra.utils import instantiate

from flows.compose import hydra_over, in_one_line, parse_override, settable
from flows.conf_files import CONF_DIR
from llm_core.config import ConfigError

Job = Callable[[Any], int]
"""What a launcher calls with the configuration of a point; it may be pickled on the way."""


def sweep_points(overrides: Sequence[str], conf_dir: Path = CONF_DIR) -> list[list[str]]:
    """Every combination of `a=1,2 b=x,y`, the last one changing fastest. Raises ConfigError for
    what cannot be listed."""
    values: dict[str, list[str]] = {}
    with hydra_over(conf_dir) as hydra:
        for text in overrides:
            override = parse_override(text)
            override.config_loader = hydra.config_loader  # lists choices for glob
            name, key = override.key_or_group, override.get_key_element()
            if override.is_interval_sweep():
                raise ConfigError(
                    f"{text} needs a sweeper that searches, which is not supported; give values:"
                    f" {name}=1e-3,3e-3"
                )
            if not override.is_sweep_override():
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
                continue
            with in_one_line([text]):
                values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values[key]:
                raise ConfigError(
                    f"{text} gives no value; write values or choices of {name}, e.g. {name}=a,b"
                )
    return [list(point) for point in product(*values.values())]


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
                f"{text} is not supported; give the points of a sweep as overrides:"
                " optim.lr=1e-3,3e-3"
            )
        if override.is_hydra_override() and override.is_sweep_override():
            raise ConfigError(
                f"{text} gives several values, but it holds for the whole sweep; give one"
            )
    return ours, of_hydra


def launch(points: Sequence[Sequence[str]], hydra_overrides: Sequence[str], job: Job) -> None:
    """Call `job` for each point; `job_number` says in there which one it is. Raises what the
    launcher raises.

    A launcher that is not there is a ConfigError of one line.
    """
    with in_one_line(hydra_overrides):
        with hydra_over() as hydra:
            # With a point, since places depend on settings (`state`).
            overrides = [*hydra_overrides, *settable(points[0])]
            config = hydra.compose_config(
                "config", overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=True
            )
        callbacks = _Callbacks(config)
        context = HydraContext(hydra.config_loader, callbacks)  # type: ignore[arg-type]
        launcher = Plugins.instance().instantiate_launcher(context, job, config)
    size = config.hydra.sweeper.max_batch_size or len(points)
    callbacks.on_multirun_start(config, config_name="config")
    for first in range(0, len(points), size):
        launcher.launch(
            [settable(point) for point in points[first : first + size]], initial_job_idx=first
        )
    callbacks.on_multirun_end(config, config_name="config")


def job_number() -> int:
    """Which point the current job runs."""
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
