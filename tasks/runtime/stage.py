"""Declares what the store and the planner need to know about a stage: no behaviour.

A stage function has the shape `verb(parents..., out_dir, config, run_parts=serial) -> Artifact`:
parents are Artifacts in the declared order, `out_dir` is an empty directory to write into; what
must survive a kill goes to parts or to `scratch_dir(out_dir)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.runtime.artifact import Artifact


class StageFailure(RuntimeError):
    """A stage that cannot give a result from this input; the message says why and the way out."""


class StageInterrupted(RuntimeError):
    """A stage that was asked to stop, saved its state, and can resume."""


@dataclass(frozen=True)
class Stage:
    """A node of the graph, with what decides its key and how it is run."""

    name: str
    module: str
    """Where the stage function lives; imported only when it runs."""
    function: str
    parents: tuple[str, ...] = ()
    """Stages whose artifacts it takes, in the order of its arguments."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version changes the result."""
    entry_points: tuple[str, ...] = ()
    """Modules that it starts as programs of their own; their code is part of the key."""
    data_files: tuple[str, ...] = ()
    """Files and folders of this tree that it reads, such as templates; they are part of the key."""
    measured: bool = False
    """Results are measurements of this machine; the key holds a device fingerprint."""
    shows_progress: bool = False
    """It shows its progress itself."""
    reads_records: bool = False
    """It takes counters and metrics of its parents, and no file of theirs."""
    accept: str | None = None
    """Function of its module, (artifact, config) -> None, that raises StageFailure for an artifact,
    found or made, that is not good enough to go on with. What it judges by is not in the key, so
    another judgement costs no new work."""

    def run(
        self, parents: Mapping[str, Artifact], out_dir: Path, config: Any, run_parts: Any
    ) -> Artifact:
        """Call the stage function with its parents in declared order."""
        function = getattr(importlib.import_module(self.module), self.function)
        return function(*(parents[name] for name in self.parents), out_dir, config, run_parts)  # type: ignore[no-any-return]

    def require_acceptable(self, artifact: Artifact, config: Any) -> None:
        """Raise StageFailure where `accept` says so."""
        if self.accept:
            getattr(importlib.import_module(self.module), self.accept)(artifact, config)


StageConfigs = Mapping[str, Any]
"""Stage name → config dataclass of that stage. The files that its `input_files() -> {name: Path}`
names, where it has that method, are part of the stage's key by their content."""
