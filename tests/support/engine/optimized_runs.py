"""Short runs with one optimizer, and the events they leave."""

import dataclasses
from pathlib import Path
from typing import Any

from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.train import run
from tests.support.engine.small_runs import OPTIM, run_config


def make_config(folder: Path, train: dict[str, Any] | None = None, **optim: Any) -> RunConfig:
    config = run_config(
        folder, train={"num_steps": 8, "checkpoint_every": 4, "validate_every": 0} | (train or {})
    )
    return dataclasses.replace(config, optim=dataclasses.replace(OPTIM, **optim))


def events(workdir: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(workdir / "metrics.jsonl") if "event" in row]


def in_folder(config: RunConfig, folder: Path) -> Path:
    folder.mkdir()
    run(config, folder)
    return folder
