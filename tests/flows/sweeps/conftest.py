from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import scratch_dir
from tasks.runtime.stage import StageInterrupted
from tests.flows.tracking.conftest import database, overrides, tracked  # noqa: F401
from tests.support import stand_ins

NUM_STEPS = 60
VALIDATED = (15, 30, 45)


def loss_of(lr: float, step: int = NUM_STEPS) -> float:
    """Of a training that is best at a rate of 10^-2.5."""
    return 1 + abs(math.log10(lr) + 2.5) + (NUM_STEPS - step) / 100


@pytest.fixture
def trainings(stand_in_stages: list[str], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace training by a formula that writes validations as a trainer does and can be stopped;
    gives the learning rates that were trained."""
    rates: list[float] = []

    def train(*arguments: Any) -> Artifact:
        *_, out_dir, config, _ = arguments
        rates.append(config.optim.lr)
        workdir = scratch_dir(out_dir) / "run-1"
        workdir.mkdir(exist_ok=True)
        losses = {step: loss_of(config.optim.lr, step) for step in VALIDATED}
        rows = [{"step": s, "val_loss": loss, "val_bpb": loss} for s, loss in losses.items()]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        try:
            time.sleep(config.train.grace_s)
        except BaseException as stop:
            raise StageInterrupted("training stopped and saved") from stop
        return Artifact(out_dir, "train", {}, {"val_bpb": loss_of(config.optim.lr)})

    monkeypatch.setattr(stand_ins, "train", train)
    return rates


@pytest.fixture
def folder_of_sweep(tmp_path: Path) -> Callable[[], Path]:
    def find() -> Path:
        (found,) = (path for path in (tmp_path / "state/sweeps").iterdir() if "-" in path.name)
        return found

    return find
