"""What is printed fits the terminal it is printed to."""

from __future__ import annotations

import io
import sys
import time

import pytest

from flows import console
from flows.console import Progress
from tasks.runtime.graph import STAGES
from tests.flows.conftest import RunCli

TERMINAL_COLUMNS = 80


def test_tables_fit_a_terminal(stand_in_stages: list[str], run_cli: RunCli) -> None:
    planned, done = run_cli("plan")["out"], run_cli("run")["out"]
    for shown in (planned, done):
        lines = shown.splitlines()
        rows = lines[: lines.index("")]
        assert len(rows) == 2 + len(STAGES)
        assert max(map(len, rows)) <= TERMINAL_COLUMNS, rows


def test_store_is_named_beside_the_keys(
    stand_in_stages: list[str], run_cli: RunCli, places: list[str]
) -> None:
    root = places[0].removeprefix("store=")
    assert f"{root}/<stage>/<key>" in run_cli("plan")["out"]
    assert f"{root}/<stage>/<key>" in run_cli("run")["out"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stage_without_parts_says_that_it_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(console, "say", said.append)
    monkeypatch.setattr(Progress, "CLOCK_EVERY_S", 0.5)
    progress = Progress("tokenizer")
    deadline = time.monotonic() + 20
    while not said and time.monotonic() < deadline:
        time.sleep(0.05)
    progress.close()
    assert said[0].startswith("tokenizer: ") and said[0].endswith(" s so far")


def test_a_terminal_shows_the_time_until_parts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress("quality")
    assert shown(terminal, "quality: 00:")
    progress(1, 3)
    progress(2, 3)
    assert shown(terminal, "2/3")
    progress.close()


def shown(terminal: Terminal, text: str) -> bool:
    deadline = time.monotonic() + 20
    while text not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.05)
    return text in terminal.getvalue()


def test_progress_of_one_part_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(console, "say", said.append)
    for total in (1, 3):
        progress = Progress("dedup", with_clock=False)
        progress._said_at -= 60
        progress(0, total)
    assert said == ["dedup: 0 of 3 parts"]
