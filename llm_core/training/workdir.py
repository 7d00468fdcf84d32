"""The work directory of a trainer: one trainer at a time holds it, and leaves its models there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from llm_core.durable import sync_folder
from llm_core.huggingface.export import ModelWriter
from llm_core.locks import open_lock
from llm_core.model.config import ModelConfig
from llm_core.printing import show
from llm_core.training.metric_log import METRICS_FILE, is_of_run, iter_rows
from llm_core.training.status import LOCK_FILE

MODEL_FOLDER, MODELS_FOLDER = "model", "models"
"""Of the last step, and of earlier ones in a folder each."""


@contextmanager
def hold_workdir(workdir: Path) -> Iterator[None]:
    """Be the only trainer in a directory, by a lock of the first rank that ends with it."""
    if not is_first_rank():
        yield
        return
    with open_lock(workdir / LOCK_FILE) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            show("an earlier trainer is still saving; waiting for it to end", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def last_step(workdir: Path) -> int:
    step = 0
    for row in iter_rows(workdir / METRICS_FILE):
        step = step if is_of_run(row) else int(row["step"])
    return step


def publish_model(
    config: ModelConfig,
    weights: Iterable[tuple[str, Tensor]],
    workdir: Path,
    eos_id: int | None,
    turn_end_ids: Sequence[int],
    folder: str,
    beside: Callable[[Path], None] | None = None,
) -> None:
    """Export to `folder`, which is the whole model or is not there. On the first rank; the others
    go through `weights` too.

    weights: (name, weight) in any order; memory holds one. beside: writes more into the folder
    before it is there.
    """
    if not is_first_rank():
        for _ in weights:
            pass
        return
    final, unpublished = workdir / folder, workdir / f".{MODEL_FOLDER}.tmp"
    final.parent.mkdir(exist_ok=True)
    for path in (unpublished, final):
        if path.exists():
            shutil.rmtree(path)
    writer = None
    for name, weight in weights:
        if writer is None:
            writer = ModelWriter(config, weight.dtype, unpublished, eos_id, turn_end_ids)
        writer.put(name, weight)
    assert writer is not None, "a model has weights"
    writer.finish()
    if beside is not None:
        beside(unpublished)
    os.rename(unpublished, final)
    sync_folder(final.parent)
