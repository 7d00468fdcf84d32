"""Settings of the training stage for a small model, and the trainer it starts."""

import dataclasses
from pathlib import Path

from tasks.runtime.parts import scratch_dir
from tasks.training.config import TrainStageConfig
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN

CONFIG = TrainStageConfig(dataclasses.replace(MODEL, vocab_size=0), OPTIM, TRAIN)
LONG = dataclasses.replace(
    CONFIG,
    train=dataclasses.replace(TRAIN, num_steps=100_000, checkpoint_every=100_000, validate_every=0),
)


def workdir(out_dir: Path) -> Path:
    (found,) = scratch_dir(out_dir).glob("run-*")
    return found


def trainer_of(work: Path) -> int:
    """The trainer's process id, from the lock it holds."""
    inode = (work / "trainer.lock").stat().st_ino
    for line in Path("/proc/locks").read_text("utf-8").splitlines():
        fields = line.split()
        if fields[-3].endswith(f":{inode}"):
            return int(fields[-4])
    raise AssertionError("nobody holds the lock")
