"""What is printed fits the terminal it is printed to."""

from __future__ import annotations

import pytest

from flows import console
from tests.flows.conftest import RunCli

TERMINAL_COLUMNS = 80


def test_tables_fit_a_terminal(stand_in_stages: list[str], run_cli: RunCli) -> None:
    planned, done = run_cli("plan")["out"], run_cli("run")["out"]
    for shown in (planned, done):
        lines = shown.splitlines()
        rows = lines[: lines.index("")]
        assert len(rows) == 2 + 12
        assert max(map(len, rows)) <= TERMINAL_COLUMNS, rows


def test_store_is_named_beside_the_keys(stand_in_stages: list[str], run_cli: RunCli, places: list[str]) -> None:
    root = places[0].removeprefix("store=")
    assert f"{root}/<stage>/<key>" in run_cli("plan")["out"]
    assert f"{root}/<stage>/<key>" in run_cli("run")["out"]


def test_progress_of_one_part_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(console, "say", said.append)
    for total in (1, 3):
        progress = console.Progress("dedup")
        progress._said_at -= 60
        progress(0, total)
    assert said == ["dedup: 0 of 3 parts"]
