"""Watches that the host does not wait for the device: what refuses a read between two logged
steps."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.parallel.vote import Vote
from llm_core.training.trainer import Trainer

READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor that give the host a number."""
OPERATORS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select")
"""What does so below Python, or makes a tensor whose size the host must know."""
WAITING: list[tuple[type, str]] = [
    (Trainer, "_log_steps"),
    (Trainer, "_validate_if_due"),
    (Trainer, "_go_on_past_rollbacks"),
    (Checkpoints, "save"),
    (Vote, "settle"),
]
"""What may wait: none of it is done in a step that neither logs, validates nor saves, but for
votes, which hosts take alone."""


class WaitedError(AssertionError):
    """The host asked for what the device had to compute first."""


@dataclasses.dataclass
class Watch:
    """Refuses what would wait for a device, by the calls that do so; on a GPU torch itself tells
    what waits.

    noted: gets the places instead; a rank that raised would leave the others waiting for it.
    """

    noted: list[str] | None = None
    on: bool = False

    @contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        before, self.on = self.on, on
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error" if on else "default")
        try:
            yield
        finally:
            self.on = before
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("error" if before else "default")

    def refuse(self, name: str, arguments: Any) -> None:
        by_mask = name == "index" and any(
            x is not None and x.dtype == torch.bool for x in arguments[1]
        )
        if self.on and (name in READS or name in OPERATORS or by_mask):
            if self.noted is None:
                raise WaitedError(f"{name} between two logged steps")
            self.noted.append(f"{name} between two logged steps, {_caller()}")


def _caller() -> str:
    """The innermost place of the engine that is on its way."""
    ours = [
        frame
        for frame in traceback.extract_stack()
        if "/llm_core/" in frame.filename and "/tests/" not in frame.filename
    ]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "not in the engine"


class WatchMethods(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if (name := getattr(function, "__name__", "")) in READS:
            self._watch.refuse(name, args)
        return function(*args, **(kwargs or {}))


class WatchOperators(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._watch.refuse(function.overloadpacket.__name__, args)
        return function(*args, **(kwargs or {}))


@contextmanager
def watched_runs(monkeypatch: pytest.MonkeyPatch, noted: list[str] | None = None) -> Iterator[None]:
    """All of a run from its first step on, but for the places that say that they wait."""
    watch, whole = Watch(noted), Trainer.run
    for owner, name in WAITING:
        plain = getattr(owner, name)

        def may_wait(self: Any, *args: Any, plain: Callable[..., Any] = plain) -> Any:
            with watch.switched(on=False):
                return plain(self, *args)

        monkeypatch.setattr(owner, name, may_wait)

    def watched(self: Trainer, start: int) -> None:
        with WatchMethods(watch), WatchOperators(watch), watch.switched(on=True):
            whole(self, start)

    monkeypatch.setattr(Trainer, "run", watched)
    yield
