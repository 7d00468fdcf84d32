"""Parts: the same results for every executor, and a killed stage goes on at the missing part."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from tasks.corpus.documentset import sum_counters
from tasks.runtime import parts
from tasks.runtime.code import ROOT
from tasks.runtime.parts import (
    Part,
    PartRunner,
    process_executor,
    scratch_dir,
    serial,
    thread_executor,
)

PARTS = [Part(f"p{i}", f"d{i}", {"n": i}) for i in range(7)]


def square(part: Part, directory: Path, config: dict) -> dict:
    (directory / "value.txt").write_text(str(part.payload["n"] ** 2))
    with Path(config["log"]).open("a") as log:
        log.write(part.name + "\n")
    if part.name == config.get("fail"):
        raise ValueError("this part is broken")
    time.sleep(config.get("sleep", 0))
    return {"n": part.payload["n"]}


def results(runner: PartRunner, out: Path, config: dict) -> list:
    return [
        (r.name, (r.path / "value.txt").read_text(), r.counters["n"])
        for r in runner(square, PARTS, config, out)
    ]


@pytest.mark.parametrize(
    "runner",
    [
        serial,
        PartRunner(make_executor=thread_executor(3)),
        PartRunner(make_executor=process_executor(2)),
    ],
    ids=["serial", "thread", "process"],
)
def test_every_executor_gives_the_same_results_in_the_order_of_the_parts(
    runner: PartRunner, tmp_path: Path
) -> None:
    config = {"log": str(tmp_path / "log")}
    assert results(runner, tmp_path / "out", config) == [(f"p{i}", str(i * i), i) for i in range(7)]


def test_finished_parts_are_not_made_again(tmp_path: Path) -> None:
    config = {"log": str(tmp_path / "log")}
    first = results(serial, tmp_path / "out", config)
    assert results(serial, tmp_path / "out", config) == first
    assert (tmp_path / "log").read_text().split() == [p.name for p in PARTS]


@pytest.mark.parametrize("damage", [b"", b"8", b"99999"])
def test_a_damaged_part_is_made_again_and_no_other(damage: bytes, tmp_path: Path) -> None:
    config = {"log": str(tmp_path / "log")}
    first = results(serial, tmp_path / "out", config)
    (tmp_path / "out.work" / "d3" / "value.txt").write_bytes(damage)
    assert results(serial, tmp_path / "out", config) == first
    assert (tmp_path / "log").read_text().split()[7:] == ["p3"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda record: record.write_bytes(
            record.read_bytes().replace(b'"counters": 3', b'"counters": 7').replace(b"p3", b"q3")
        ),
        lambda record: record.write_bytes(b"\xff" + record.read_bytes()[1:]),
        lambda record: record.write_bytes(record.read_bytes()[:-9]),
        lambda record: record.write_bytes(b"[]"),
        lambda record: record.unlink(),
    ],
    ids=["another value", "no text", "cut off", "no record", "gone"],
)
def test_a_damaged_record_of_a_part_is_said_and_the_part_made_again(
    harm: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"log": str(tmp_path / "log")}
    first = results(serial, tmp_path / "out", config)
    harm(tmp_path / "out.work" / "d3" / "part.json")
    with caplog.at_level("WARNING", "tasks.runtime.parts"):
        assert results(serial, tmp_path / "out", config) == first
    assert (tmp_path / "log").read_text().split()[7:] == ["p3"]
    assert (
        len(
            [
                r
                for r in caplog.records
                if "part p3" in r.getMessage() and "is damaged: part.json" in r.getMessage()
            ]
        )
        == 1
    )


def test_an_error_in_a_part_is_raised_and_finished_parts_stay(tmp_path: Path) -> None:
    config = {"log": str(tmp_path / "log"), "fail": "p4"}
    with pytest.raises(ValueError, match="this part is broken"):
        serial(square, PARTS, config, tmp_path / "out")
    results(serial, tmp_path / "out", {"log": str(tmp_path / "log")})
    assert (tmp_path / "log").read_text().split() == [
        "p0",
        "p1",
        "p2",
        "p3",
        "p4",
        "p4",
        "p5",
        "p6",
    ]


def test_part_that_another_run_finishes_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    config = {"log": str(tmp_path / "log")}
    runner = PartRunner(parts_dir=tmp_path / "parts")
    read_by_others = []

    def slower(part: Part, directory: Path, config: dict) -> dict:
        # Two runs of other inputs share this part; the other one makes it first and goes on to read
        # it.
        if part.name == "p2":
            (theirs,) = runner(square, [part], config, tmp_path / "other")
            read_by_others.append((theirs.path / "value.txt").stat().st_ino)
        if part.name == "p3":
            (tmp_path / "parts" / "d3" / "half").mkdir(parents=True)
        return square(part, directory, config)

    made = runner(slower, PARTS, config, tmp_path / "out")
    assert [(r.path / "value.txt").read_text() for r in made] == [str(i * i) for i in range(7)]
    assert read_by_others == [(made[2].path / "value.txt").stat().st_ino]
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == [p.digest for p in PARTS]


SCRIPT = """
import sys
from pathlib import Path
from tasks.runtime.parts import PartRunner, process_executor, serial
from tests.tasks.runtime.test_parts import PARTS, square
if __name__ == "__main__":
    out, workers = Path(sys.argv[1]), int(sys.argv[2])
    runner = PartRunner(make_executor=process_executor(workers)) if workers > 1 else serial
    runner(square, PARTS, {"log": str(out.parent / "log"), "sleep": 0.15}, out)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_stage_goes_on_at_the_missing_part_and_its_workers_die_with_it(
    workers: int, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(out), str(workers)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(scratch_dir(out).glob("d*"))) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    done = len(list(scratch_dir(out).glob("d*")))
    time.sleep(0.5)
    assert 2 <= done < 7, "killed too early or too late to tell"
    assert len(list(scratch_dir(out).glob("d*"))) == done, (
        "a worker went on after its parent was killed"
    )
    assert results(serial, out, {"log": str(tmp_path / "log2")}) == [
        (f"p{i}", str(i * i), i) for i in range(7)
    ]
    assert len((tmp_path / "log2").read_text().split()) == 7 - done


@pytest.mark.parametrize(("start_s", "opened"), [(60.0, 0), (0.02, 1), (0.0, 1)])
def test_workers_are_started_only_for_work_worth_their_start(
    start_s: float, opened: int, tmp_path: Path
) -> None:
    calls = []

    def make_executor():
        calls.append("opened")
        return thread_executor(2)()

    runner = PartRunner(make_executor=make_executor, start_s=start_s)
    assert (
        len(results(runner, tmp_path / "out", {"log": str(tmp_path / "log"), "sleep": 0.01})) == 7
    )
    assert len(calls) == opened


class CountingExecutor(ThreadPoolExecutor):
    """Remembers how many calls were submitted and not finished, at most."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.unfinished, self.most, self._lock = 0, 0, Lock()

    def submit(self, *call: Any, **named: Any) -> Any:
        with self._lock:
            self.unfinished += 1
            self.most = max(self.most, self.unfinished)
        future = super().submit(*call, **named)
        future.add_done_callback(self._count_done)
        return future

    def _count_done(self, _: Any) -> None:
        with self._lock:
            self.unfinished -= 1


def test_no_more_parts_than_the_bound_are_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_IN_FLIGHT", 3)
    executor = CountingExecutor(2)
    runner = PartRunner(make_executor=lambda: executor)
    assert results(runner, tmp_path / "out", {"log": str(tmp_path / "log")}) == [
        (f"p{i}", str(i * i), i) for i in range(7)
    ]
    assert 2 <= executor.most <= 3


def test_progress_counts_every_part_once(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    runner = PartRunner(progress=lambda finished, total: told.append((finished, total)))
    results(runner, tmp_path / "out", {"log": str(tmp_path / "log")})
    assert told == [(i, 7) for i in range(8)]


def heavy(part: Part, directory: Path, config: dict) -> dict:
    (directory / "value.bin").write_bytes(bytes(HEAVY_BYTES))
    # As quality counts which rules break together.
    table = {f"rule {i}": {f"rule {j}": part.payload["n"] for j in range(30)} for i in range(30)}
    return {"n": part.payload["n"], "table": table}


HEAVY_BYTES, KEPT_BYTES = 400_000, 5_000


@pytest.mark.parametrize("runner", [serial, PartRunner(make_executor=thread_executor(2))])
def test_a_stage_of_many_parts_holds_neither_what_they_held_nor_all_they_counted(
    runner: PartRunner, tmp_path: Path
) -> None:
    many = [Part(f"p{i}", f"d{i}", {"n": i}) for i in range(300)]
    runner(heavy, many[:1], {}, tmp_path / "first")  # what is loaded once
    tracemalloc.start()
    try:
        made = runner(heavy, many, {}, tmp_path / "out")
        total = sum_counters(one.counters for one in made)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [one.counters["n"] for one in made] == list(range(300))
    assert total["n"] == total["table"]["rule 0"]["rule 29"] == sum(range(300))
    # Two workers and the digests of files of either.
    assert peak_bytes < 8 * HEAVY_BYTES + len(many) * KEPT_BYTES
