"""A process that is silent is named everywhere in time, and nobody waits for one that is lost."""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from torch.distributed import HashStore

from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.hosts.flight import who_is_behind
from llm_core.parallel.hosts.liveness import Liveness, processes_seen_here

HEARTBEAT_S = 3.0
Told = list[tuple[int, str, str]]


class Group:
    """Processes of one run, whose signs of life come from threads of this one."""

    def __init__(self, world: int, flight: Path) -> None:
        self.store, self.told, self._flight = HashStore(), list[tuple[int, str, str]](), flight
        self.hosts = [Hosts(self.store, rank, world) for rank in range(world)]
        self._live: dict[int, ExitStack] = {}
        self.watches: dict[int, Liveness] = {}

    def start(self, rank: int, timeout_s: float = 60.0) -> None:
        tell = functools.partial(self.note, rank)
        one = Liveness(self.hosts[rank], HEARTBEAT_S, timeout_s, self._flight, tell)
        self._live[rank] = ExitStack()
        self.watches[rank] = self._live[rank].enter_context(one)

    def note(self, rank: int, alarm: str, text: str) -> None:
        self.told.append((rank, alarm, text))

    def end(self, rank: int, error: BaseException | None = None) -> None:
        self._live.pop(rank).__exit__(type(error) if error else None, error, None)

    def end_all(self) -> None:
        for rank in list(self._live):
            self.end(rank)

    def alarms(self, alarm: str) -> dict[int, list[str]]:
        """Rank → what it was told."""
        found: dict[int, list[str]] = {}
        for rank, kind, text in list(self.told):
            if kind == alarm:
                found.setdefault(rank, []).append(text)
        return found


@contextmanager
def group(world: int, flight: Path, silent: set[int]) -> Iterator[Group]:
    made = Group(world, flight)
    for rank in set(range(world)) - silent:
        made.start(rank)
    yield made
    made.end_all()


def soon(is_so: Callable[[], object], within_s: float = 4 * HEARTBEAT_S) -> float:
    """Seconds until it is so; a busy machine may keep threads waiting."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < within_s
        time.sleep(0.01)
    return time.monotonic() - began


def test_silent_processes_are_named_once_to_all_and_again_when_they_are_back(
    tmp_path: Path,
) -> None:
    with group(4, tmp_path, silent={1, 2}) as made:
        soon(lambda: [len(t) for t in made.alarms("silent_rank").values()] == [2, 2])
        for texts in made.alarms("silent_rank").values():
            assert [text.split(" has ")[0] for text in texts] == ["rank 1", "rank 2"]
            assert all("has given no sign of life for" in text for text in texts)
        made.start(1)
        soon(lambda: made.alarms("rank_is_back").get(0))
        standing = made.watches[0].standing
        assert standing is not None and standing.startswith("rank 2 has given no sign of life")
        made.start(2)
        soon(lambda: len(made.alarms("rank_is_back").get(0, [])) == 2)
        assert made.watches[0].standing is None
        assert len(made.alarms("silent_rank")[0]) == 2 and made.hosts[0].fault is None
        assert all((tmp_path / f"rank-0000{rank}.json").is_file() for rank in (0, 3))


def test_processes_that_live_or_have_left_are_not_named(tmp_path: Path) -> None:
    with group(4, tmp_path, silent=set()) as made:
        made.end(2)
        made.end(1)
        time.sleep(1.5 * HEARTBEAT_S)
        assert made.told == [] and list(tmp_path.iterdir()) == []


def test_what_waits_for_one_that_failed_ends(tmp_path: Path) -> None:
    with group(3, tmp_path, silent=set()) as made:
        found: list[str] = []

        def wait() -> None:
            with pytest.raises(RuntimeError) as ended:
                made.hosts[0].ask(None)
            found.append(str(ended.value))

        waiting = threading.Thread(target=wait)
        waiting.start()
        made.end(2, ValueError("a defect"))
        waiting.join(4 * HEARTBEAT_S)
        assert found == ["rank 2 has ended, others go on"]


def test_a_process_that_is_gone_from_this_machine_is_lost_at_once(tmp_path: Path) -> None:
    with group(2, tmp_path, silent={1}) as made:
        ended = subprocess.Popen(["true"])
        ended.wait()
        made.store.set("beat-1", f"7 {ended.pid} here {processes_seen_here()}")
        with pytest.raises(
            RuntimeError, match=rf"rank 1 \(process {ended.pid} on here\) has ended"
        ):
            made.hosts[0].ask(None)
        time.sleep(HEARTBEAT_S / 2)
        assert [alarm for _, alarm, _ in made.told] == ["lost_rank"]


def test_a_process_that_was_silent_before_it_ended_is_lost_at_once(tmp_path: Path) -> None:
    with (
        group(2, tmp_path, silent={1}) as made,
        subprocess.Popen(["sleep", "600"]) as stopped,
    ):
        made.store.set("beat-1", f"7 {stopped.pid} here {processes_seen_here()}")
        soon(lambda: made.alarms("silent_rank"))
        stopped.kill()
        stopped.wait()
        with pytest.raises(RuntimeError, match=rf"process {stopped.pid} on here\) has ended"):
            made.hosts[0].ask(None)


def test_a_process_of_another_user_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with group(2, tmp_path, silent={1}) as made:
        monkeypatch.setattr("os.kill", refuse)
        made.store.set("beat-1", f"7 1 here {processes_seen_here()}")
        soon(lambda: made.told)
        assert {alarm for _, alarm, _ in made.told} == {"silent_rank"}


def test_a_lost_process_is_told_once_also_where_the_one_that_watched_it_is_lost_too(
    tmp_path: Path,
) -> None:
    with group(4, tmp_path, silent=set()) as made:
        made.end(2, ValueError("a defect"))
        soon(lambda: len(made.alarms("lost_rank")) >= 3)
        made.end(1, ValueError("a defect"))
        soon(lambda: len(made.alarms("lost_rank").get(3, [])) >= 2)
        time.sleep(HEARTBEAT_S / 2)
        for rank in (0, 3):
            assert made.alarms("lost_rank")[rank] == [
                "rank 2 has ended, others go on",
                "rank 1 has ended, others go on",
            ]


def test_alarms_that_cannot_be_written_are_told_and_the_watch_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class FullDisk(Group):
        def note(self, rank: int, alarm: str, text: str) -> None:
            super().note(rank, alarm, text)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made = FullDisk(3, tmp_path / "removed" / "flight")
    made.start(0)
    soon(lambda: len(made.alarms("silent_rank").get(0, [])) == 2)
    made.start(1)
    soon(lambda: made.alarms("rank_is_back"))
    made.end(1, RuntimeError("a collective that broke off"))
    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        made.hosts[0].ask(None)
    made.end_all()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" was not written: ")[0] for line in lines] == [
        "rank 0: an alarm or its flight records",
        "rank 1: an alarm or its flight records",
    ]
    assert not (tmp_path / "removed").exists(), "a folder that was removed stays so"


def test_one_that_cannot_be_looked_for_from_here_is_not_lost(tmp_path: Path) -> None:
    with group(2, tmp_path, silent={1}) as made:
        made.store.set("beat-1", f"7 {2**22 + 1} here another-machine")
        soon(lambda: made.told)
        assert {alarm for _, alarm, _ in made.told} == {"silent_rank"}


def test_what_waits_for_a_silent_one_ends_after_the_time_out(tmp_path: Path) -> None:
    made = Group(2, tmp_path)
    made.start(0, timeout_s=1.0)
    with pytest.raises(RuntimeError, match=r"rank 1 has given no sign of life for 1\.0 s"):
        made.hosts[0].ask(None)
    made.end_all()


def entry(
    number: int, group: str, name: str = "gloo:all_reduce", is_p2p: bool = False
) -> dict[str, object]:
    about = {"collective_seq_id": number, "process_group": [group, "default_pg"]}
    return about | {"profiling_name": name, "is_p2p": is_p2p}


def test_flight_records_say_which_process_is_behind() -> None:
    both = [entry(1, "0"), entry(7, "1"), entry(0, "0", is_p2p=True)]
    last = entry(2, "0", "gloo:broadcast")
    records = [
        (0, {"entries": [*both, last]}),
        (1, {"entries": both}),
        (2, {"entries": [*both, last]}),
    ]
    assert who_is_behind(records) == [
        "group 0: rank 1 has begun 1 collectives, others wait in number 2, gloo:broadcast"
    ]
    assert who_is_behind([(0, {"entries": both}), (1, {})]) == []
