"""Between two logged steps the host never waits for the device: it may give it work for many steps in advance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from llm_core import step as step_module
from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.data_config import DataConfig
from llm_core.memory.config import MemoryConfig
from llm_core.metric_log import read_rows
from llm_core.optim.config import GuardConfig
from llm_core.train import run
from llm_core.train_config import RunConfig
from llm_core.trainer import Trainer
from tests.llm_core.small_runs import OPTIM, run_config, write_token_shards

READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor that give the host a number."""
OPERATORS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select")
"""What does so below Python, or makes a tensor whose size the host must know."""
WAITING: list[tuple[type, str]] = [
    (Trainer, "_log_steps"),
    (Trainer, "_validate_if_due"),
    (Trainer, "_go_on_past_rollbacks"),
    (Checkpoints, "save"),
]
"""What may wait: none of it is done in a step that neither logs, validates nor saves."""
GUARD = GuardConfig(spike_std=6.0, spike_window_steps=8, rollback_skips=3, rollback_every_steps=50)


class WaitedError(AssertionError):
    """The host asked for what the device had to compute first."""


@dataclasses.dataclass
class Watch:
    """Refuses what would wait for a device, by the calls that do so; on a GPU torch itself tells what waits."""

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
        by_mask = name == "index" and any(x is not None and x.dtype == torch.bool for x in arguments[1])
        if self.on and (name in READS or name in OPERATORS or by_mask):
            raise WaitedError(f"{name} between two logged steps")


class WatchMethods(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(function, "__name__", "")) in READS:
            self._watch.refuse(name, args)
        return function(*args, **(kwargs or {}))


class WatchOperators(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._watch.refuse(function.overloadpacket.__name__, args)
        return function(*args, **(kwargs or {}))


@contextmanager
def watched_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All of a run from its first step on, but for the places that say that they wait."""
    watch, whole = Watch(), Trainer.run
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


def config_of(folder: Path, optim: dict[str, Any], train: dict[str, Any], memory: MemoryConfig) -> RunConfig:
    plan = {"num_steps": 5, "log_every": 4, "validate_every": 0, "checkpoint_every": 100}
    config = run_config(folder, train=plan | {"checkpoint_in_background": False} | train, parallel={"device": "auto"})
    write_token_shards(folder / "shards", sources=("walk", "web"))
    (folder / "work").mkdir()
    return dataclasses.replace(config, optim=dataclasses.replace(OPTIM, guard=GUARD, **optim), memory=memory)


CASES = [
    ({"kind": "muon"}, {"dtype": "bf16", "data": DataConfig(mask_documents=True, packing="best_fit")}, MemoryConfig("full")),
    ({"kind": "adafactor"}, {"dtype": "fp16"}, MemoryConfig("selective", loss_chunk_tokens=7, ffn_tiles=2)),
    ({"kind": "adamw"}, {"data": DataConfig(prefetch_batches=0)}, MemoryConfig()),
]


@pytest.mark.parametrize(("optim", "train", "memory"), CASES, ids=[str(case[0]["kind"]) for case in CASES])
def test_no_step_waits_for_the_device(
    optim: dict[str, Any], train: dict[str, Any], memory: MemoryConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, optim, train, memory)
    with watched_runs(monkeypatch):
        run(config, tmp_path / "work")
    rows = read_rows(tmp_path / "work" / "metrics.jsonl")
    assert [row["step"] for row in rows if "lr" in row] == [1, 2, 3, 4, 5]


def test_a_number_read_in_a_step_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, {}, {}, MemoryConfig())
    plain = step_module.gradient_norm

    def reading(layout: Any) -> Tensor:
        norm = plain(layout)
        return norm * 2 if norm > 1e9 else norm

    monkeypatch.setattr(step_module, "gradient_norm", reading)
    with watched_runs(monkeypatch), pytest.raises((WaitedError, RuntimeError), match=r"between two logged steps|synchronizing"):
        run(config, tmp_path / "work")
