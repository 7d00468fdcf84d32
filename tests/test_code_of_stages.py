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
import json, sys, threading
from pathlib import Path
from flows import cli
from tasks.runtime import execute
from tasks.runtime.code import ROOT

ran = {}
run_stage = execute.run_stage

def traced(stage, *arguments):
    codes = set()
    def note(frame, event, _):
        if event == "call":
            codes.add(frame.f_code)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        return run_stage(stage, *arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        places = {(code.co_filename, code.co_qualname.split(".")[0]) for code in codes}
        ran[stage.name] = sorted(
            (".".join(Path(file).relative_to(ROOT).with_suffix("").parts), name)
            for file, name in places
            if file.startswith(str(ROOT)) and not name.startswith("<")
        )

execute.run_stage = traced
code = cli.main(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps(ran))
sys.exit(code)
"""
RUNNERS = ("tasks.runtime.", "flows.")
"""What hands a stage its parts; how is no part of a key."""


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
    for name, functions in ran.items():
        stage = STAGES[name]
        reached = set(reached_definitions((stage.module, *stage.entry_points)))
        own = [tuple(each) for each in functions if not each[0].startswith(RUNNERS)]
        assert not [each for each in own if each not in reached], name
        assert own, name
