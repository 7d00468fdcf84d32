"""What is printed fits the terminal it is printed to."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from flows import console
from flows.console import Progress, set_up_console, table
from llm_core.live import LiveBar
from llm_core.printing import note
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
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress("quality")
    assert shown(terminal, "quality") and shown(terminal, "0:00:0")
    progress(1, 3)
    progress(2, 3)
    assert shown(terminal, "2/3 parts") and shown(terminal, "parts/s") and shown(terminal, " left")
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


def test_a_live_line_shows_text_escaped_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    bar = LiveBar("[bold]a\x1b[2Jb\u202e", "part")
    bar.update(1, 3, "HF_TOKEN=hf_0123456789")
    note("\x1b]8;;http://x.org\x07 noted")
    bar.close()
    written = terminal.getvalue()
    assert "[bold]a\\u001b[2Jb\\u202e" in written and "HF_TOKEN=***" in written
    assert "\\u001b]8;;http://x.org\\u0007 noted\n" in written
    # Colours, cursor up and erase line are rich's own.
    assert set(re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", written)) == {"\x1b", "\r"}
    assert set(re.findall("\x1b\\[[\\d;]*(.)", written)) <= {"m", "K", "A"}


@pytest.mark.parametrize("terminal", ["pipe", "dumb"])
def test_what_cannot_move_its_cursor_gets_lines(
    terminal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal() if terminal == "dumb" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "dumb" if terminal == "dumb" else "xterm")
    monkeypatch.setattr(console.logger, "handlers", [])
    set_up_console()
    progress = Progress("dedup")
    progress._said_at -= 60
    progress(1, 3)
    progress.close()
    assert stream.getvalue() == "dedup: 1 of 3 parts\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_table_folds_on_a_terminal_and_in_a_pipe(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["ingest", "12", "word " * 40], ["dedup", "3", "[red]" + "x" * 200]]
    monkeypatch.setattr(sys, "stdout", stream())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = table(("stage", "n", "why"), rows).splitlines()
    assert max(map(len, lines)) <= 80 and lines[2].startswith("ingest  12  word word")
    assert "\x1b" not in "".join(lines) and "[red]xxx" in "".join(lines)


def test_a_table_in_a_pipe_keeps_every_column_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "40")
    rows = [[f"{16 * c}" for c in "abcdef"]]
    assert table(tuple("uvwxyz"), rows, spare=("u", "v")).splitlines()[2].split() == rows[0]


@pytest.mark.parametrize("columns", [40, 50, 60, 70, 80])
def test_a_narrow_table_keeps_words_whole_and_leaves_out_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [["contamination", "1,234 documents", "1,200 documents", "12.0", "0653e50e390ebbe2"]]
    header = ("stage", "in", "out", "seconds", "key")
    lines = table(header, rows, spare=("in", "seconds", "out")).splitlines()
    words = set(" ".join(lines[2:]).split())
    assert max(map(len, lines)) <= columns and {"contamination", "0653e50e390ebbe2"} <= words
    assert words <= set(" ".join(rows[0]).split()), lines
    assert ("in" in lines[0].split()) == (columns >= 70) and ("out" in lines[0]) == (columns >= 50)


def test_a_table_without_rows_has_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    assert table(("stage", "in", "", "key"), [], spare=("in",)).split()[:3] == [
        "stage",
        "in",
        "key",
    ]
