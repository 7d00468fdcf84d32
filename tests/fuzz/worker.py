"""Runs one target on changed files, in a process of its own: `python -m tests.fuzz.worker TARGET
COUNT SEED SECONDS FOLDER`.

The last input is in FOLDER/input when the process ends early: by an error (1), the clock (SIGALRM)
or a crash.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import time
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

from tests.fuzz.changes import CHANGES, Change, changed
from tests.fuzz.targets import targets

HANG_S = 10
MEMORY_BYTES = 2 << 30
"""Of address space, beyond what the sound files take."""


def run(name: str, count: int, seed: int, seconds: float, folder: Path) -> int:
    """Give the target so many inputs, or as many as the seconds allow; how many it was."""
    target = targets(folder)[name]
    place, num_inputs, ends_at = folder / "input", 0, time.monotonic() + seconds
    for data in target.seeds:
        with contextlib.suppress(*target.refusals):
            target.read(data, folder)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.sampled_from(target.seeds), CHANGES)
    def feed(sound: bytes, changes: list[Change]) -> None:
        nonlocal num_inputs
        if time.monotonic() > ends_at:
            return
        data = changed(sound, changes)
        place.write_bytes(data)
        num_inputs += 1
        signal.alarm(HANG_S)
        with contextlib.suppress(*target.refusals):
            target.read(data, folder)
        signal.alarm(0)

    feed()
    return num_inputs


if __name__ == "__main__":
    target_name, inputs, chosen_seed, left_s, work = sys.argv[1:]
    print(run(target_name, int(inputs), int(chosen_seed), float(left_s), Path(work)))
