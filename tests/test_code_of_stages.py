"""What a stage runs is what its key says it can run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT, reached_definitions
from tasks.runtime.graph import STAGES
from tests.support.whole_runs import command, environment

TRACED = """
import inspect, json, sys, threading
from pathlib import Path
from flows import cli
from tasks.runtime.code import ROOT
from tasks.runtime.stage import Stage

ran = {}
run_stage = Stage.run

def module_of(file):
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")

def traced(stage, *arguments):
    codes = set()
    def note(frame, event, _):
        # Functions only: an import runs the bodies of all classes of a module.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            codes.add(frame.f_code)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        return run_stage(stage, *arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        places = {(code.co_filename, code.co_qualname.split(".")[0]) for code in codes}
        own = [
            (Path(file).relative_to(ROOT), name)
            for file, name in places
            if file.startswith((f"{ROOT}/tasks/", f"{ROOT}/llm_core/")) and name[0] != "<"
        ]
        python = [(file, name) for file, name in own if file.suffix == ".py"]
        functions = sorted((module_of(file), name) for file, name in python)
        templates = sorted({file.as_posix() for file, _ in own if file.suffix != ".py"})
        ran[stage.name] = functions, templates

Stage.run = traced
code = cli.main(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps(ran))
sys.exit(code)
"""
NOT_IN_KEYS = (
    *("tasks.runtime.", "llm_core.printing", "llm_core.live"),
    *("tasks.training.cluster_job", "tasks.clusters.", "tasks.training.planned"),
    "llm_core.planner.",
)
"""What hands a stage its parts, shows how far it is, submits its job, and predicts what it needs:
none of it changes a result."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_function_that_a_stage_runs_is_in_the_code_of_its_key(
    small_corpus: Path, tmp_path: Path
) -> None:
    arguments = command("run", small_corpus, tmp_path, "num_workers=1")[3:]
    program = [sys.executable, "-c", TRACED, str(tmp_path / "ran.json"), *arguments]
    done = subprocess.run(program, env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    ran = json.loads((tmp_path / "ran.json").read_text())
    assert set(ran) == set(STAGES)
    for name, (functions, templates) in ran.items():
        stage = STAGES[name]
        assert all(file.startswith(stage.data_files) for file in templates), name
        reached = set(reached_definitions((stage.module, *stage.entry_points)))
        own = [tuple(each) for each in functions if not each[0].startswith(NOT_IN_KEYS)]
        assert not [each for each in own if each not in reached], name
        assert own, name
