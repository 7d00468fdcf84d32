"""Programs that run a model in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tasks.runtime.code import ROOT


def start_pair(folder: Path, program: str, device: str = "cpu") -> subprocess.Popen[str]:
    """A process that opens the `model` of a folder in two ranks and runs `program`; one of its own,
    as a process is in one group at a time. `pids()` has the process of the other rank."""
    lines = (
        "import os, signal, sys, time, torch",
        "from pathlib import Path",
        "from llm_core.infer.generation import generate",
        "from llm_core.infer.choice.sampling import GREEDY",
        "from llm_core.infer.ranks import team",
        "def pids():",
        "    return [p.pid for p in made[0]._processes]",
        "made, init = [], team.Followers.__init__",
        "def note(self, *about):",
        "    made.append(self); init(self, *about)",
        "team.Followers.__init__ = note",
        f"with team.open_models(2, {device!r}) as models:",
        f"    model = models.load(Path({str(folder)!r}), torch.float64)",
        "    generate(model, [[1, 2, 3]], GREEDY, 3)",
        *(f"    {line}" for line in program.splitlines()),
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
