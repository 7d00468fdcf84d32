"""Shares inputs and time among targets, two processes at once, and tables what each did.

The first round gives every target an equal count and an equal time. Later rounds give what is
missing to those that are fast, in proportion to their speed, so that all take the same time.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.target import Target
from tests.fuzz.worker import Counts, fork

NUM_WORKERS = 2
FIRST_ROUND_FRAC = 0.6
"""Of all time; the rest is for starts and later rounds."""
GRACE_S = 60
"""For the sound files and the last input; a process that takes longer is ended."""


@dataclass
class Outcome:
    """What one target did in all rounds."""

    target: str
    num_inputs: int = 0
    elapsed_s: float = 0.0
    start_s: float = 0.0
    peak_bytes: int = 0
    """Resident, beyond what the sound files take."""
    findings: list[str] = field(default_factory=list)

    @property
    def inputs_per_s(self) -> float:
        return self.num_inputs / max(self.elapsed_s, 1e-3)


@dataclass(frozen=True)
class Turn:
    """One process of one target."""

    name: str
    count: int
    seed: str
    seconds: float


@dataclass(frozen=True)
class _Running:
    turn: Turn
    counts: Counts
    folder: Path
    began: float


def fuzz(
    targets: Mapping[str, Target],
    num_inputs: int,
    seconds: float,
    seed: int,
    kept: Path,
) -> list[Outcome]:
    """Feed all targets; inputs that end a process are copied to `kept`."""
    ends_at = time.monotonic() + seconds
    outcomes = {name: Outcome(name) for name in targets}
    share = math.ceil(num_inputs / len(targets))
    share_s = FIRST_ROUND_FRAC * seconds * min(NUM_WORKERS, len(targets)) / len(targets)
    turns = [Turn(name, share, f"{seed}-{name}-1", share_s) for name in targets]
    for round_number in range(2, 100):
        _run_turns(turns, targets, outcomes, ends_at, kept)
        missing = num_inputs - sum(outcome.num_inputs for outcome in outcomes.values())
        left_s = ends_at - time.monotonic()
        sound = [outcome for outcome in outcomes.values() if not outcome.findings]
        ready = [outcome for outcome in sound if outcome.num_inputs >= share] or sound
        if missing <= 0 or left_s < 1 or not ready:
            break
        speed = sum(outcome.inputs_per_s for outcome in ready)
        turns = [
            Turn(
                outcome.target,
                math.ceil(missing * outcome.inputs_per_s / speed) or 1,
                f"{seed}-{outcome.target}-{round_number}",
                left_s * min(NUM_WORKERS, len(ready)) / len(ready),
            )
            for outcome in ready
        ]
    return list(outcomes.values())


def _run_turns(
    turns: Sequence[Turn],
    targets: Mapping[str, Target],
    outcomes: Mapping[str, Outcome],
    ends_at: float,
    kept: Path,
) -> None:
    waiting, running = list(reversed(turns)), dict[int, _Running]()
    with tempfile.TemporaryDirectory() as place:
        while waiting or running:
            while waiting and len(running) < NUM_WORKERS:
                turn, counts = waiting.pop(), Counts()
                seconds = min(turn.seconds, max(0.0, ends_at - time.monotonic()))
                folder = Path(tempfile.mkdtemp(dir=place))
                process = fork(targets[turn.name], turn.count, turn.seed, seconds, folder, counts)
                running[process] = _Running(turn, counts, folder, time.monotonic())
            process, status, usage = os.wait4(-1, os.WNOHANG)
            if process:
                _settle(running.pop(process), status, usage.ru_maxrss << 10, outcomes, kept)
                continue
            for late, one in running.items():
                if time.monotonic() - one.began > one.turn.seconds + GRACE_S:
                    os.kill(late, signal.SIGKILL)
            time.sleep(0.01)


def _settle(
    one: _Running,
    status: int,
    peak_bytes: int,
    outcomes: Mapping[str, Outcome],
    kept: Path,
) -> None:
    """Add what an ended process did to the outcome of its target."""
    outcome = outcomes[one.turn.name]
    num_inputs, elapsed_s, held_bytes = one.counts.read()
    outcome.num_inputs += num_inputs
    outcome.elapsed_s += elapsed_s
    outcome.start_s = max(outcome.start_s, time.monotonic() - one.began - elapsed_s)
    if held_bytes:  # else no changed file was given
        outcome.peak_bytes = max(outcome.peak_bytes, peak_bytes - held_bytes)
    if status:
        code = os.waitstatus_to_exitcode(status)
        errors = (one.folder / "errors").read_text("utf-8", "replace").strip()
        outcome.findings.append(f"{_cause(code, errors)}; {_keep(one, kept)}")
    shutil.rmtree(one.folder)


def _cause(code: int, errors: str) -> str:
    if code in (-signal.SIGALRM, -signal.SIGKILL):
        return "hangs"
    if code < 0:
        return f"crashes with {signal.Signals(-code).name}: {errors[-2000:]}"
    return f"{'takes too much memory' if 'MemoryError' in errors else 'fails'}: {errors[-2000:]}"


def _keep(one: _Running, kept: Path) -> str:
    if not (one.folder / "input").exists():
        return "a sound file does it"
    kept.mkdir(parents=True, exist_ok=True)
    place = kept / one.turn.seed.replace(" ", "-")
    shutil.copy(one.folder / "input", place)
    return f"the input is {place}"


def table(outcomes: Iterable[Outcome]) -> str:
    """A line for each target."""
    lines = [f"{'target':32}{'inputs':>9}{'inputs/s':>10}{'start s':>9}{'MiB':>7}  findings"]
    for outcome in outcomes:
        lines.append(
            f"{outcome.target:32}{outcome.num_inputs:>9,}{outcome.inputs_per_s:>10,.0f}"
            f"{outcome.start_s:>9.1f}{outcome.peak_bytes / 2**20:>7,.0f}  {len(outcome.findings)}"
        )
    return "\n".join(lines)
