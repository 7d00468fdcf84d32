"""Hands the points of a sweep to Hydra's launcher, which decides in which process each one runs.

Hydra's sweeper is not asked: it would expand the overrides a second time, in another order where
they are shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flows.compose import CONF_DIR, in_one_line, settable

Job = Callable[[Any], int]
"""What a launcher calls with the configuration of a point; it may be pickled on the way."""


def launch(points: Sequence[Sequence[str]], hydra_overrides: Sequence[str], job: Job) -> None:
    """Call `job` for each point; `job_number` says in there which one it is. Raises what the
    launcher raises.

    A launcher that is not there is a ConfigError of one line.
    """
    from hydra._internal.callbacks import Callbacks
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext, RunMode

    GlobalHydra.instance().clear()
    try:
        with in_one_line(hydra_overrides):
            hydra = Hydra.create_main_hydra2("textmill", create_config_search_path(str(CONF_DIR)))
            # With a point, since places depend on settings (`state`).
            overrides = [*hydra_overrides, *settable(points[0])]
            config = hydra.compose_config(
                "config", overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=True
            )
            context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
            launcher = Plugins.instance().instantiate_launcher(context, job, config)
        size = config.hydra.sweeper.max_batch_size or len(points)
        context.callbacks.on_multirun_start(config=config, config_name="config")
        for first in range(0, len(points), size):
            launcher.launch(
                [settable(point) for point in points[first : first + size]], initial_job_idx=first
            )
        context.callbacks.on_multirun_end(config=config, config_name="config")
    finally:
        GlobalHydra.instance().clear()


def job_number() -> int:
    """Which point the current job runs."""
    from hydra.core.hydra_config import HydraConfig

    return int(HydraConfig.get().job.num)
