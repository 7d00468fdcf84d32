"""No changed file ends a process that reads it, holds it, or fills its memory; the fuzzer tells."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.code import ROOT
from tests.fuzz.changes import changed, draw_changes

PLANTED = """
import os, sys
from pathlib import Path
from tests.fuzz import worker
from tests.fuzz.campaign import fuzz, table
from tests.fuzz.target import Target

def read(data, folder):
    if data != b"sound":
        {act}

worker.HANG_S = 1
faultless = Target([b"sound"], lambda data, folder: None)
targets = {{"a b": Target([b"sound"], read), "other": faultless}}
found = fuzz(targets, 40, 20.0, 1, Path(sys.argv[1]))
assert found[1].num_inputs >= 20 and found[1].findings == [], "the other target goes on"
assert found[0].num_inputs < 20
print(table(found))
print(*found[0].findings, sep="\\n---\\n")
"""


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("os.abort()", "crashes with SIGABRT"),
        ("while True: pass", "hangs"),
        ("raise KeyError('planted')", "KeyError: 'planted'"),
        ("bytes(3 << 30)", "takes too much memory"),
    ],
    ids=["crash", "hang", "traceback", "memory"],
)
def test_a_planted_fault_is_found_and_its_input_kept(act: str, words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PLANTED.format(act=act), str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert words in done.stdout and "---" not in done.stdout
    assert (tmp_path / "1-a-b-1").read_bytes() != b"sound"


def test_a_sound_file_that_is_refused_is_a_finding(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.fuzz.campaign import fuzz\n"
        "from tests.fuzz.targets import Target\n"
        "target = Target([b'x'], lambda data, folder: int(data), (ValueError,))\n"
        "print(fuzz({'a': target}, 5, 5.0, 1, Path(sys.argv[1]))[0].findings)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "a sound file does it" in done.stdout


def test_the_same_seed_gives_the_same_files() -> None:
    first, again = ([draw_changes(random.Random(seed)) for _ in range(9)] for seed in (5, 5))
    assert first == again
    assert len({changed(bytes(99), draw_changes(random.Random(n))) for n in range(99)}) > 80


def campaign(kept: Path, *options: str) -> dict[str, Any]:
    """The report of a campaign in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz", "--kept", str(kept), "--seed", "1", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.timeout(120)
def test_a_few_inputs_of_some_targets_are_refused_or_read(tmp_path: Path) -> None:
    names = ["within r.tar", "reader r.parquet", "checkpoint index", "artifact"]
    report = campaign(tmp_path, "--inputs", "160", "--seconds", "60", *names)
    assert report["inputs"] >= 160 and report["targets"] == 4
    assert report["findings"] == 0 and report["few_inputs"] == {}


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_hundred_thousand_inputs_in_twenty_minutes_end_no_process(tmp_path: Path) -> None:
    began = time.monotonic()
    report = campaign(tmp_path)
    assert report["inputs"] >= 100_000 and report["findings"] == 0
    assert report["few_inputs"] == {}, "every target gets its least number of inputs"
    assert report["seconds"] <= 1200 and time.monotonic() - began <= 1200 + 30
