"""Writes a model while its training goes on, or after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flows.commands.command import command, take_words
from flows.compose import RunConfig, compose
from flows.run import decide
from llm_core.config import ConfigError, local_path
from llm_core.printing import show

CONFIG, CHECKPOINTS = "config.json", "checkpoints"
"""In the work directory of a trainer."""


@command("out=DIR [step=N] [folder=DIR] [OVERRIDES]...")
def export(words: Sequence[str]) -> int:
    """The model of a training as a Hugging Face folder, in the numbers of `export.dtype`: of the
    newest checkpoint or of step=N while training goes on, which does not wait for it; of the last
    step, or of one in train.keep_models_every, once it has finished. folder=DIR takes the work
    directory of a trainer or a model folder instead."""
    given, overrides = take_words(words, "out", "step", "folder")
    config = compose(overrides)
    if not given.get("out"):
        raise ConfigError("export needs a new folder; write textmill export out=DIR")
    out, step = local_path(given["out"], "out"), _step(given.get("step"))
    from tasks.training.export import export_checkpoint, export_folder

    folder = local_path(given["folder"], "folder") if "folder" in given else None
    folder = folder or _of_run(config, step)
    if (folder / CHECKPOINTS).is_dir():
        report = export_checkpoint(folder, step, out, config.export)
    elif step is not None and "folder" in given:
        raise ConfigError(f"step ({step}) needs checkpoints, and {folder} has none; leave it out")
    else:
        report = export_folder(folder, out, config.export)
    show(json.dumps(report))
    return 0


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise ConfigError(f"step ({text}) must be a number of steps; write step=1000")
    return int(text)


def _of_run(config: RunConfig, step: int | None) -> Path:
    """The work directory of the training of a run, or a model that it left."""
    store, plan = decide(config, "train")
    train = plan["train"]
    if (artifact := store.find("train", train.node.key)) is not None:
        kept = {int(path.name.split("-")[1]): path for path in artifact.path.glob("models/step-*")}
        if step is None:
            return artifact.path / "model"
        if step not in kept:
            there = ", ".join(map(str, sorted(kept))) or "no others"
            raise ConfigError(
                f"step ({step}) was not kept, and training has finished; there are the last step"
                f" and {there}. train.keep_models_every keeps some"
            )
        return kept[step]
    work = store.work_dir("train", train.node.key)
    places = (file.parent for file in work.glob(f"out.work/run-*/{CONFIG}"))
    found = [place for place in places if (place / CHECKPOINTS).is_dir()]
    if not found:
        raise ConfigError(
            f"no training with this configuration has a checkpoint yet{train.because}; run"
            " `textmill train` with the same overrides"
        )
    return max(found, key=lambda place: (place / CHECKPOINTS).stat().st_mtime)
