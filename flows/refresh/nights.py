"""Wraps the opening of a run: a refresh is compared with the run before it, and what goes wrong is
notified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from flows.compose import RunConfig
from flows.notifications.config import without_notify
from flows.notifications.watch import watched
from flows.refresh.changes import changes_of

if TYPE_CHECKING:
    from flows.run import Run

OpenRun = Callable[..., AbstractContextManager["Run"]]


def as_night(open_run: OpenRun) -> OpenRun:
    """Decorates what opens a run: (flow, target, config, overrides, …) -> its context."""

    @wraps(open_run)
    @contextmanager
    def opened(
        flow: str,
        target: str,
        config: RunConfig,
        overrides: Sequence[str],
        *more: Any,
        **named: Any,
    ) -> Iterator[Run]:
        kept = without_notify(overrides)
        with (
            watched(config, flow) as watch,
            open_run(flow, target, config, kept, *more, **named) as run,
        ):
            watch.run = run
            yield run
            if flow == "refresh":
                run.changes = changes_of(run.store, run.record, run.artifacts, run.config.refresh)

    return opened
