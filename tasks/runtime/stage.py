"""Declares what the store and the planner need to know about a stage: no behaviour.

A stage function has the shape `verb(parents..., out_dir, config, run_parts=serial) -> Artifact`:
parents are Artifacts in the declared order, `out_dir` is an empty directory to write into; what
must survive a kill goes to parts or to `scratch_dir(out_dir)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.runtime.artifact import Artifact


class StageFailure(RuntimeError):
    """A stage that cannot give a result from this input; the message says what was found and the
    way out."""


class StageInterrupted(RuntimeError):
    """A stage that was asked to stop, saved its state, and can resume."""


@dataclass(frozen=True)
class Stage:
    """A node of the graph.

    module, function: where the stage function lives; imported only when it runs. parents: stages
    whose artifacts it takes, in the order of its arguments. libraries: distributions whose version
    changes the result. entry_points: modules it starts as programs of their own; their code is part
    of the key. data_files: files and folders of this tree that it reads, such as templates; their
    contents are part of the key. reads_inputs: its config has `input_files() -> {name: Path}`;
    contents enter the key. measured: results are measurements of this machine; the key holds a
    device fingerprint.
    disk_factor: free bytes it needs per byte of its parents. shows_progress: it tells how far it is
    by itself. reads_records: it takes counters and metrics of its parents, and no file of theirs.
    accept: function of its module, (artifact, config) -> None, that raises StageFailure where an
    artifact, found or made, is not
        good enough to go on with. What it judges by is not in the key, so another judgement
        costs no new work.
    """

    name: str
    module: str
    function: str
    parents: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    schema_version: int = 1
    reads_inputs: bool = False
    measured: bool = False
    disk_factor: float = 2.0
    shows_progress: bool = False
    reads_records: bool = False
    accept: str | None = None

    def load(self) -> Callable[..., Artifact]:
        return getattr(importlib.import_module(self.module), self.function)  # type: ignore[no-any-return]

    def require_acceptable(self, artifact: Artifact, config: Any) -> None:
        """Raise StageFailure where `accept` says so."""
        if self.accept:
            getattr(importlib.import_module(self.module), self.accept)(artifact, config)


StageConfigs = Mapping[str, Any]
"""Stage name → config dataclass of that stage."""


def run_stage(
    stage: Stage, parents: Mapping[str, Artifact], out_dir: Path, config: Any, run_parts: Any
) -> Artifact:
    """Call the stage function with its parents in declared order."""
    return stage.load()(*(parents[name] for name in stage.parents), out_dir, config, run_parts)
