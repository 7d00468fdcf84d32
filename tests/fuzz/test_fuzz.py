"""No changed file ends a process that reads it, holds it, or fills its memory; and the fuzzer would
tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.code import ROOT
from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import targets

PLANTED = """
import os, sys
from pathlib import Path
from tests.fuzz import worker
from tests.fuzz.targets import Target

def read(data, folder):
    if data != b"sound":
        {act}

worker.HANG_S = 1
worker.targets = lambda folder: {{"planted": Target([b"sound"], read)}}
worker.run("planted", 20, 1, 20.0, Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("os.abort()", -6),
        ("while True: pass", -14),
        ("raise KeyError(1)", 1),
        ("bytes(3 << 30)", 1),
    ],
    ids=["crash", "hang", "error", "memory"],
)
def test_a_planted_fault_is_found_and_its_input_kept(act: str, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PLANTED.format(act=act), str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr[-500:]
    assert (tmp_path / "input").read_bytes() != b"sound"


@pytest.mark.timeout(120)
def test_a_few_inputs_of_some_targets_are_refused_or_read(tmp_path: Path) -> None:
    given, failures = fuzz(
        ["within r.tar", "reader r.parquet", "artifact"], 150, 60.0, 1, tmp_path / "kept"
    )
    assert failures == [] and given == 150


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_hundred_thousand_inputs_end_no_process(tmp_path: Path) -> None:
    given, failures = fuzz(list(targets(tmp_path)), 100_000, 1200.0, 1, tmp_path / "kept")
    assert failures == [] and given >= 100_000
