"""Kills runs and services at random moments until they have died often, and holds what they made
against an undisturbed run.

`python -m tests.torture [--kills 200] [--seed N] [--place DIR]`. A round makes every artifact of a
small pipeline anew: in one kind of round a command runs alone with worker processes, in the other
the worker of `textmill up` runs a deployment. SIGKILL goes to one process of those there are, or to
all at once; then the same is asked again, as a user would. After each round the artifacts must have
the bytes of the undisturbed run, and nothing may be left behind: no process, work, announcement or
unsent journal, and no run that Prefect or MLflow takes for alive.

The last line is JSON: {"kills", "seed", "rounds", "victims": {name: kills}, "findings": [text],
"elapsed_s": {"whole", "services", "alone", "served"}}: the undisturbed run, the start of services,
and both kinds of rounds. The exit code is 1 where there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree

from flows.live.announced import read_live
from flows.services.local import mlflow_ui
from flows.services.prefect_api import Unreachable
from flows.services.processes import descendants, start_time
from llm_core.printing import note, show
from tests.support.deployed_runs import OVERRIDES, Deployed, deployed
from tests.support.whole_runs import (
    contents,
    kill_tree,
    make_corpus,
    run,
    signal_if_alive,
    started,
)

LENGTH = ["train.num_steps=60", "train.checkpoint_every=5", "train.validate_every=20"]
"""Long enough that training is often what is killed."""
LONGEST_PAUSE_S, NEXT_STAGE_S = 6.0, 60.0
ROUND_S, SETTLED_S = 1800.0, 150.0
EVERY_S = 0.2
"""How often something is looked at: a server is asked for it."""
KILLS_OF_A_ROUND = (8, 24)
"""So many that the completion of a round costs less than its kills."""


@dataclass
class Torture:
    """What is killed so far, and what was found."""

    place: Path
    corpus: Path
    kills: int
    random: random.Random
    victims: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    rounds: int = 0
    elapsed_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def left(self) -> int:
        return self.kills - self.victims.total()

    def pause(self, is_over: Callable[[], bool], place: Path) -> bool:
        """Wait a random time, mostly after a run in a place has begun another stage: much of it is
        the start of programs. Whether something was over before."""
        before = stages_at_work(place)
        if self.random.random() < 0.7 and wait(
            lambda: is_over() or not stages_at_work(place) <= before, NEXT_STAGE_S, EVERY_S
        ):
            longest_s = LONGEST_PAUSE_S / 2
        else:
            longest_s = LONGEST_PAUSE_S
        return wait(is_over, self.random.uniform(0.1, longest_s), EVERY_S)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.elapsed_s[name] += time.monotonic() - began

    def count(self, victim: str, moment: str) -> None:
        self.victims[victim] += 1
        note(f"kill {self.victims.total()} of {self.kills}: {victim} {moment}")

    def alone(self, expected: object) -> None:
        """A command that is killed, and given again, until it completes."""
        place = self.place / "alone"
        runner = self.random.choice(["process", "thread"])
        until, most, killed = time.monotonic() + ROUND_S, self.random.randint(*KILLS_OF_A_ROUND), 0
        while True:
            assert time.monotonic() < until, f"no end in {ROUND_S} s: {place / 'log.txt'}"
            with started("run", self.corpus, place, *LENGTH, f"runner={runner}") as process:
                tree = {process.pid}
                while self.left and killed < most:
                    if self.pause(partial(has_exited, process), place):
                        break
                    tree |= set(descendants([process.pid]))
                    killed += 1
                    if self.random.random() < 0.4:
                        kill_tree(process)
                        self.count("everything", f"of a run alone ({runner})")
                        break
                    alive = [pid for pid in sorted(tree) if start_time(pid)]
                    pid = self.random.choice(alive)
                    signal_if_alive(pid, signal.SIGKILL)
                    self.count("command" if pid == process.pid else "child", f"alone ({runner})")
                code = process.wait(ROUND_S)
                self.expect(gone(tree), f"processes outlive a run alone: {alive_of(tree)}")
            if code == 0:
                break
            if code not in (2, -signal.SIGKILL):
                self.findings.append(f"a run alone ended with {code}; see {place / 'log.txt'}")
        self.compare(place, expected)
        rmtree(place / "store")

    def served(self, services: Deployed, expected: object) -> None:
        """A deployed run that is killed with its services, and submitted again."""
        places = [f"source.paths=['{self.corpus}']", *LENGTH, "tracking=local"]
        flow_run, killed = services.submit(*places), 0
        until, most = time.monotonic() + ROUND_S, self.random.randint(*KILLS_OF_A_ROUND)
        while True:
            assert time.monotonic() < until, f"no end in {ROUND_S} s: {services.state / 'logs'}"
            over = self.pause(partial(quietly, services, flow_run), services.place)
            if not over and self.left and killed < most:
                found = services.processes(flow_run)
                one = self.random.choice(sorted(found))
                victims = sorted(found) if self.random.random() < 0.1 else [one]
                services.kill(flow_run, victims)
                killed += 1
                self.count("+".join(victims), "under textmill up")
                time.sleep(self.random.uniform(0.0, LONGEST_PAUSE_S))
                services.up()
                mlflow_ui(services.state)
                continue
            if not over:
                continue
            ended = services.run(flow_run)
            if ended["state_type"] == "COMPLETED":
                break
            if not ended["state"]["message"]:
                self.findings.append(f"{ended['name']} ended as {ended['state_type']}: no reason")
            flow_run = services.submit(*places)
        self.compare(services.place, expected)
        settled = time.monotonic() + SETTLED_S
        while (open_ends := list(unsettled(services))) and time.monotonic() < settled:
            time.sleep(1.0)
        self.findings += open_ends
        rmtree(services.place / "store")

    def compare(self, place: Path, expected: object) -> None:
        """The artifacts of a completed round, and what work is left beside them."""
        try:
            self.expect(contents(place) == expected, f"round {self.rounds}: other artifacts")
        except AssertionError as error:
            self.findings.append(f"round {self.rounds}: {error}")
        left = [str(path) for path in (place / "store/.work").glob("*/*/*")]
        self.expect(not left, f"round {self.rounds}: left in .work: {left}")
        live = [str(path) for path in (place / "state/live").glob("*.json")]
        self.expect(wait(lambda: not any(map(os.path.exists, live))), f"still announced: {live}")
        self.rounds += 1
        note(f"round {self.rounds}: {len(self.findings)} findings so far")

    def expect(self, holds: bool, finding: str) -> None:
        if not holds:
            note(finding)
            self.findings.append(finding)


def has_exited(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def quietly(services: Deployed, flow_run: str) -> bool:
    """Whether a flow run has ended, as far as its server can be asked."""
    try:
        return services.has_ended(flow_run)
    except Unreachable:
        return False


def unsettled(services: Deployed) -> Iterator[str]:
    """What is taken for alive, or was not sent, once all is over."""
    yield from (f"not at an end in Prefect: {run}" for run in services.others(""))
    with contextlib.closing(
        sqlite3.connect(services.state / "mlflow/mlflow.db", timeout=30)
    ) as database:
        query = "select name from runs where status = 'RUNNING'"
        yield from (f"RUNNING in MLflow: {name}" for (name,) in database.execute(query))
    for journal in (services.state / "mlflow/unsent").glob("*/*.jsonl"):
        yield f"not sent to MLflow: {journal}"


def alive_of(pids: set[int]) -> list[int]:
    return [pid for pid in pids if start_time(pid)]


def gone(pids: set[int]) -> bool:
    """Whether processes end by themselves, as those of a killed run must: a trainer saves first."""
    return wait(lambda: not alive_of(pids))


def stages_at_work(place: Path) -> set[str | None]:
    return {run.stage for run in read_live(place / "state") if not run.is_dead} - {None}


def wait(condition: Callable[[], bool], limit_s: float = 60.0, every_s: float = 0.1) -> bool:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="an empty folder, kept afterwards")
    options = parser.parse_args()
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        os.environ.pop(name, None)
    os.environ["OMP_NUM_THREADS"] = "1"  # training is the same for equal threads
    with tempfile.TemporaryDirectory() as folder:
        place = (options.place or Path(folder)).resolve()
        corpus = make_corpus(place / "corpus")
        torture = Torture(place, corpus, options.kills, random.Random(options.seed))
        with torture.timed("whole"):
            note("the undisturbed run")
            run("run", corpus, place / "whole", *OVERRIDES, *LENGTH, "orchestrator=none")
            expected = contents(place / "whole")
        with contextlib.ExitStack() as started_services:
            with torture.timed("services"):
                services = started_services.enter_context(deployed(place / "served"))
            while torture.left:
                with torture.timed("alone"):
                    torture.alone(expected)
                if torture.left:
                    with torture.timed("served"):
                        torture.served(services, expected)
    report = {
        "kills": torture.victims.total(),
        "seed": options.seed,
        "rounds": torture.rounds,
        "victims": dict(torture.victims),
        "findings": torture.findings,
        "elapsed_s": {name: round(passed) for name, passed in torture.elapsed_s.items()},
    }
    show(json.dumps(report))
    return 1 if torture.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
