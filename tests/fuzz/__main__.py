"""Fuzzes every target and says what each did: `python -m tests.fuzz [--inputs N] [--seconds S]
[--seed N] [TARGET …]`."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.targets import targets

GRACE_S = 120
"""To start, to make the sound files, and for the last input."""


def fuzz(
    names: Sequence[str], num_inputs: int, seconds: float, seed: int, kept: Path
) -> tuple[int, list[str]]:
    """(inputs given, what went wrong); inputs that ended a process are copied to `kept`."""
    given, failures, ends_at = 0, [], time.monotonic() + seconds
    for number, name in enumerate(names):
        left = len(names) - number
        count = -(-(num_inputs - given) // left) if num_inputs > given else 1
        left_s = max(1.0, (ends_at - time.monotonic()) / left)
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "tests.fuzz.worker",
                name,
                str(count),
                str(seed),
                f"{left_s:.1f}",
                folder,
            ]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=left_s + GRACE_S, check=False
                )
                code, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired:
                code, output, errors = -signal.SIGALRM, "", ""
            if code == 0:
                given += int(output)
                print(f"{name}: {int(output):,} inputs", flush=True)
                continue
            kept.mkdir(parents=True, exist_ok=True)
            place = kept / f"{name.replace(' ', '-')}-{seed}"
            if (Path(folder) / "input").exists():
                shutil.copy(Path(folder) / "input", place)
            cause = (
                "hangs"
                if code == -signal.SIGALRM
                else f"ended with {code}: {errors.strip()[-2000:]}"
            )
            failures.append(f"{name}: {cause}; the input is {place}")
            print(failures[-1], flush=True)
    return given, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--kept", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = options.targets or list(targets(Path(folder)))
    given, failures = fuzz(names, options.inputs, options.seconds, options.seed, options.kept)
    print(f"{given:,} inputs, {len(failures)} failures, seed {options.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
