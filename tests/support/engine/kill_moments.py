"""Kills what writes a run before each of its file-system calls: `python -m
tests.support.engine.kill_moments FOLDER`.

With a number behind it a whole run is killed, before one call in so many, and run again. For each
scenario a child process does the work and is killed before call 1, another before call 2, and so
on. The kill is that of a machine that loses power: files that were not synced lose half of their
bytes. What remains is read again, and has to be one of the states that the scenario allows.
`found.json` says, for each call, what remained.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.checkpoint.checkpoints import Checkpoints
from llm_core.checkpoint.state import collect_state
from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model
from llm_core.optim.config import GuardConfig
from llm_core.training import step as step_module
from llm_core.training.rollback import Rollback
from llm_core.training.train import run_in
from tests.support.engine.poison import poisoned_accumulation
from tests.support.engine.small_runs import OPTIM, result_bytes, run_config
from tests.support.engine.small_states import ALONE, Run, equal

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
BY_NAME = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
GUARD = GuardConfig(rollback_skips=1, rollback_window_steps=4, rollback_every_steps=3)
SKIPPING = dataclasses.replace(OPTIM, guard=GUARD)


@dataclass
class Moments:
    """Counts the calls that change a folder, and dies before one of them. Only for a child: hooks
    stay to the end.

    die_before: number of the call, from 1; 0: none.
    """

    folder: Path
    die_before: int
    calls: list[str] = field(default_factory=list)
    synced: set[int] = field(default_factory=set)

    def watch(self) -> None:
        self.old = {path.stat().st_ino for path in self.folder.rglob("*") if path.is_file()}
        plain, sys_fsync = os.fsync, self.synced.add

        def fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            self.note("fsync", os.readlink(f"/proc/self/fd/{number}"))
            plain(number)
            sys_fsync(os.fstat(number).st_ino)

        os.fsync = fsync
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, (str, bytes, Path)) and (
                set(mode or "") & set("wax+") or flags & WRITING
            ):
                self.note("open", os.fsdecode(path))
        elif event in BY_NAME:
            handle = next(
                (
                    a
                    for a in arguments[1:]
                    if isinstance(a, int) and a > 2 and event in ("os.remove", "os.rmdir")
                ),
                None,
            )
            place = os.readlink(f"/proc/self/fd/{handle}") if handle is not None else ""
            self.note(event, os.path.join(place, os.fsdecode(arguments[0])))

    def note(self, call: str, path: str) -> None:
        if not Path(path).is_relative_to(self.folder):
            return
        self.calls.append(f"{call} {Path(path).relative_to(self.folder)}")
        if len(self.calls) == self.die_before:
            self.lose_what_is_not_synced()
            os.kill(os.getpid(), signal.SIGKILL)

    def lose_what_is_not_synced(self) -> None:
        self.die_before = 0
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.old | self.synced:
                os.truncate(path, path.stat().st_size // 2)


@dataclass(frozen=True)
class Scenario:
    """prepare: makes a folder. work: what is killed. check: what remained, in words, or raises
    AssertionError."""

    prepare: Callable[[Path], None]
    work: Callable[[Path], object]
    check: Callable[[Path], str]


@torch.no_grad()
def state(moves: int) -> Run:
    """A run that has been moved on so many times."""
    run = Run(dim=8, optim=SKIPPING)
    for name, tensor in collect_state(*run.parts).items():
        if not name.startswith("guard."):
            tensor.add_(moves)
    return run


def save(root: Path, steps: list[int], **settings: Any) -> None:
    """Checkpoints of steps whose state has been moved on as many times."""
    with Checkpoints(root, ALONE, **settings) as checkpoints:
        for step in steps:
            checkpoints.save(step, *state(step).parts, val_loss=1.0 / (step + 1))


def resumes(root: Path, allowed: dict[int, dict[str, Tensor]]) -> str:
    """The step that a run resumes from, with the very state that is allowed for it."""
    run = state(0)
    with Checkpoints(root, ALONE) as checkpoints:
        step = checkpoints.load(*run.parts)
    assert step in allowed, f"resumes at {step}, not at one of {sorted(allowed)}"
    assert equal(run.values(), allowed[step]), f"another state than that of step {step}"
    return f"step {step}"


def saving(keep_last: int, keep_best: bool, before: list[int], step: int) -> Scenario:
    settings = {"keep_last": keep_last, "keep_best": keep_best}
    newest = max(before)
    allowed = {at: state(at).values() for at in (newest, step)}
    return Scenario(
        lambda folder: save(folder / "checkpoints", before, **settings),
        lambda folder: save(folder / "checkpoints", [step], **settings),
        lambda folder: resumes(folder / "checkpoints", allowed),
    )


def going_back(keep_last: int, before: list[int]) -> Scenario:
    """From step 9 to the point of step 6; checkpoints of steps `before` are there."""

    def prepare(folder: Path) -> None:
        save(folder / "points", [3, 6])
        save(folder / "checkpoints", before, keep_last=keep_last)

    def work(folder: Path) -> None:
        run = state(9)
        points = Checkpoints(folder / "points", ALONE)
        with Checkpoints(folder / "checkpoints", ALONE, keep_last=keep_last) as checkpoints, points:
            assert Rollback(GUARD, points).go_back(9, *run.parts, checkpoints) == 6

    def check(folder: Path) -> str:
        after = state(6)
        after.optimizer.guard.note_rollbacks([(9, 6)])
        allowed = {step: state(step).values() for step in before}
        found = resumes(folder / "points", {6: state(6).values()})
        assert found == "step 6", "a run that resumes from a later checkpoint goes back again"
        try:
            return resumes(folder / "checkpoints", allowed | {6: after.values()})
        except AssertionError:
            return resumes(folder / "checkpoints", allowed)

    return Scenario(prepare, work, check)


def exporting() -> Scenario:
    def export(folder: Path, moves: int) -> None:
        model = state(moves).layout.bare
        export_model(model.config, model.state_dict(), folder / "model", part_bytes=2_000)

    def check(folder: Path) -> str:
        try:
            model = load_model(folder / "model")
        except ConfigError as error:
            assert "has no config.json" in str(error), error
            found = "no model"
        else:
            moves = [
                n for n in (1, 2) if same(model.state_dict(), state(n).layout.bare.state_dict())
            ]
            assert moves, "a model that is neither the one before nor the one after"
            found = f"model {moves[0]}"
        export(folder, 2)
        assert same(load_model(folder / "model").state_dict(), state(2).layout.bare.state_dict())
        return found

    return Scenario(lambda folder: export(folder, 1), lambda folder: export(folder, 2), check)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


def killed_at_each_call(
    scenario: Scenario, folder: Path, every: int = 1
) -> Iterator[tuple[str, str]]:
    """(call, what remained) for a kill before each call of the work, or before one in `every`; then
    the calls."""
    prepared, place, told = folder / "prepared", folder / "place", folder / "calls.json"
    prepared.mkdir(parents=True)
    scenario.prepare(prepared)
    number, ended = 1 - every, False
    while not ended:
        number += every
        shutil.copytree(prepared, place)
        ended = run_and_kill(scenario.work, place, number, told)
        if not ended:
            yield f"call {number}", verdict(scenario, place)
        shutil.rmtree(place)
    for call in json.loads(told.read_text("utf-8")):
        yield call, "called"


def verdict(scenario: Scenario, place: Path) -> str:
    try:
        return scenario.check(place)
    except (AssertionError, ValueError, OSError) as error:
        return f"LOST: {type(error).__name__}: {error}"


def run_and_kill(work: Callable[[Path], object], place: Path, number: int, told: Path) -> bool:
    """Work in a fork that dies before call `number`; whether it came to its end instead, and told
    its calls."""
    child = os.fork()
    if child == 0:
        moments = Moments(place, number)
        moments.watch()
        code = 1
        try:
            work(place)
            told.write_text(json.dumps(moments.calls), "utf-8")
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the work failed by itself, code {code}"
    return code == 0


def whole_run(folder: Path) -> Scenario:
    """A run of eight steps that goes back once: killed, and run again to its end."""
    config = run_config(folder, train={"num_steps": 8, "checkpoint_every": 2, "validate_every": 4})
    guard = GuardConfig(rollback_skips=2, rollback_window_steps=6, rollback_every_steps=3)
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, guard=guard))
    step_module.accumulate_gradients = poisoned_accumulation(
        config, {4: float("nan"), 5: float("nan")}
    )
    whole, told = folder / "whole", folder / "whole.json"
    whole.mkdir()
    assert run_and_kill(lambda place: str(run_in(place, config)), whole, 0, told)
    expected = result_bytes(whole)

    def check(place: Path) -> str:
        assert run_and_kill(lambda place: str(run_in(place, config)), place, 0, told)
        assert result_bytes(place) == expected, (
            "other bytes than those of a run that was not killed"
        )
        return "finished"

    return Scenario(lambda place: None, lambda place: str(run_in(place, config)), check)


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        torch.set_num_threads(1)
        found = {
            "run": list(
                killed_at_each_call(whole_run(folder), folder / "run", every=int(sys.argv[2]))
            )
        }
        (folder / "found.json").write_text(json.dumps(found, indent=1), "utf-8")
        return
    torch.set_num_threads(1)  # forks of a process with threads may hang
    scenarios = {
        "save the first": Scenario(
            lambda folder: (folder / "checkpoints").mkdir(),
            lambda folder: save(folder / "checkpoints", [1]),
            lambda folder: resumes(
                folder / "checkpoints", {0: state(0).values(), 1: state(1).values()}
            ),
        ),
        "save and prune": saving(1, False, [1], 2),
        "save and keep the best": saving(1, True, [1, 2], 3),
        "save again": saving(1, False, [2], 2),
        "go back": going_back(2, [7, 8]),
        "go back to a saved step": going_back(1, [6]),
        "export": exporting(),
    }
    found = {name: list(killed_at_each_call(one, folder / name)) for name, one in scenarios.items()}
    (folder / "found.json").write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
