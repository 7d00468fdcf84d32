"""Names and texts that carry escape sequences, from a source to everything that shows them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from flows import cli
from flows.commands.services import _quote
from flows.console import say, set_up_console, table, warn
from tasks.runtime.code import ROOT
from tasks.runtime.stage import StageFailure
from tests.support.data.make_artifacts import write_jsonl

CLEAR, LINK, BELL, CSI, BACK = "\x1b[2J", "\x1b]8;;http://x.org\x1b\\", "\x07", "\x9b31m", "\x08\r"
TURNED, BREAK = "\u202e\u2066", "\u2028"
HOSTILE = f"a{CLEAR}b{LINK}c{BELL}d{CSI}e{BACK}f{TURNED}g{BREAK}h\x7fi\x85j"
FORGED = f"{HOSTILE}\ningest 0123456789abcdef: done in 0.0 s\n"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
WORDS = "The people of the town have a river to be with, and that is what they have to be of. "


def acting(text: str) -> list[str]:
    return [text[max(0, m.start() - 40) : m.end() + 20] for m in ACTING.finditer(text)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records, members and files whose names and texts act on a terminal, and some that are
    quarantined."""
    folder = tmp_path_factory.mktemp("hostile") / "in"
    folder.mkdir()
    records: list[dict[str, Any]] = [
        {
            "id": f"{i} {FORGED}",
            "text": f"{HOSTILE} {WORDS}" + " ".join(f"word{i}x{j}" for j in range(60)) + ".",
            "url": f"https://x.org/{i}{HOSTILE}",
            "language": HOSTILE,
            "source": f"{FORGED}{i % 2}",
            "license": FORGED,
            "kind": HOSTILE,
        }
        for i in range(12)
    ]
    records.append({"id": "lines", "text": "first line\n\nsecond line", "source": "lines"})
    records += [
        {"id": f"short {FORGED}", "text": "Too few.", "url": HOSTILE, "source": FORGED},
        {"id": HOSTILE, "text": " "},
    ]
    write_jsonl(folder / "plain.jsonl", records)
    # A line feed, ESC and a bidirectional override are legal in names of files and members.
    with zipfile.ZipFile(folder / f"b{HOSTILE.replace('/', '_')}\nc.zip", "w") as archive:
        archive.writestr(
            f"m{FORGED}.jsonl",
            json.dumps({"id": "in zip", "text": WORDS * 8, "source": "zip"}) + "\n{broken\n",
        )
        archive.writestr(f"m{FORGED}.unknown", "x")
    (folder / f"no reader{HOSTILE.replace('/', '_')}.odd\x1b").write_text("x")
    return folder


@pytest.fixture(scope="module")
def ran(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """The data half of a run over that source in a process of its own: its places, and what it
    wrote to stdout and stderr."""
    place = tmp_path_factory.mktemp("ran")
    places = [f"store={place / 'store'}", f"state={place / 'state'}"]
    given = [
        f"source.paths=[{source}]",
        "source.source_column=source",
        "source.max_bad_frac=1",
        "num_workers=1",
    ]
    given += [
        "orchestrator=none",
        "tokenizer.vocab_size=300",
        "quality=gopher_fineweb",
        "quality.by_source={nobody: {}}",
        f"source.exclude={{kind: ['{CSI}{TURNED}']}}",
    ]
    command = [sys.executable, "-m", "flows.cli", "refresh", *places, *given]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    said = done.stdout.decode("utf-8")
    assert done.returncode == 0, said
    return places, said


@pytest.fixture
def textmill(ran: tuple[list[str], str], capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Asks a question to that run; what is written may not act on a terminal, nor forge a line."""

    def ask(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert cli.main([arguments[0], *ran[0], *arguments[1:]]) == code
        out, err = capfd.readouterr()
        assert_harmless(out + err)
        return out

    return ask


def assert_harmless(text: str) -> None:
    assert not acting(text)
    assert not [line for line in text.splitlines() if line.startswith("ingest 0123456789abcdef")]


def test_a_run_shows_what_its_source_carries_escaped(ran: tuple[list[str], str]) -> None:
    assert (
        "skipped, unsupported format" in ran[1]
        and "which no document has" in ran[1]
        and "\\u001b" in ran[1]
    )
    assert_harmless(ran[1])


@pytest.mark.parametrize(
    "wanted",
    [f"1 {FORGED}", f"https://x.org/1{HOSTILE}", f"short {FORGED}", HOSTILE],
    ids=("id", "url", "dropped", "record"),
)
def test_a_document_is_explained_in_escaped_text_and_in_exact_json(
    wanted: str, textmill: Callable[..., str]
) -> None:
    assert "\\u001b[2J" in textmill("explain", "--", wanted)
    found = json.loads(textmill("explain", "--json", "--", wanted))
    about = found.get("document") or found["record"]
    assert wanted in (about["source_id"], about.get("url"))


def test_line_ends_of_a_text_are_shown(textmill: Callable[..., str]) -> None:
    assert "    first line\n\n    second line" in textmill("explain", "lines")


def test_questions_to_a_run_are_answered_in_escaped_text(textmill: Callable[..., str]) -> None:
    assert "\\u001b" in textmill("replay", "quality.thresholds.TOO_FEW_WORDS=500")
    textmill("explain", "--", f"nobody {FORGED}", code=2)
    textmill("plan", f"source.paths=[none{CSI}]", code=2)
    textmill("gc", "keep=0")
    textmill("env")


def test_logs_and_mlflow_hold_nothing_that_acts_on_a_terminal(ran: tuple[list[str], str]) -> None:
    store, state = (Path(place.partition("=")[2]) for place in ran[0])
    texts = [
        f for f in state.rglob("*") if f.suffix in (".log", ".txt", ".yaml", ".json", ".jsonl")
    ]
    names = ("artifact.json", "quarantine.jsonl", "hits.jsonl")
    texts += [
        *(f for name in names for f in store.glob(f"[!.]*/*/{name}")),
        *store.glob(".runs/*.json"),
    ]
    assert {"overrides.txt", "resolved.yaml", *names} <= {f.name for f in texts}
    assert not {
        str(f): found for f in texts if (found := acting(f.read_text("utf-8", "surrogateescape")))
    }
    with sqlite3.connect(state / "mlflow" / "mlflow.db") as database:
        tables = [
            name
            for (name,) in database.execute("select name from sqlite_master where type = 'table'")
        ]
        cells = [
            c
            for name in tables
            for row in database.execute(f'select * from "{name}"')
            for c in row
            if isinstance(c, str)
        ]
    assert len(cells) > 200 and not [found for cell in cells if (found := acting(cell))]


@pytest.mark.parametrize(
    "arguments",
    [["plan", f"source.name={HOSTILE}"], [HOSTILE], ["explain", HOSTILE], ["run", f"+{HOSTILE}=1"]],
)
def test_what_a_user_typed_is_not_played_back_to_the_terminal(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, f"store={tmp_path}", f"state={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert not acting(err) and err.count("\n") == 1


def test_a_line_that_is_said_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_console()
    say(f"fetching {FORGED}")
    warn(f"fetching {FORGED}")
    err = capsys.readouterr().err
    assert err.count("\n") == 2 and not acting(err)


def test_cells_of_a_table_stay_in_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that nothing is folded
    lines = table(("name", "n"), [[FORGED, "1"], ["b", "2"]]).split("\n")
    assert len(lines) == 4 and len(set(map(len, lines))) == 1 and not acting("".join(lines))


def test_export_lines_are_read_by_the_shell_as_they_were_meant() -> None:
    for value in ("plain/path", "a b'c\\n", f"it's {HOSTILE}\n\\x"):
        quoted = _quote(value)
        assert not acting(quoted) and "\n" not in quoted
        command = ["bash", "-c", f'export V={quoted}; printf %s "$V"']
        shown = subprocess.run(
            command, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        assert shown.stdout.decode("utf-8") == value, shlex.join(command)


def test_states_and_log_lines_of_prefect_are_escaped() -> None:
    from flows.under_prefect import run_flow
    from tasks.runtime.prefect_tasks import _stage_task

    stream = io.StringIO()
    handler, prefect_logger = logging.StreamHandler(stream), logging.getLogger("prefect.flow_runs")
    failed = run_flow("pipeline", "report", [f"+{HOSTILE}=1"], lambda run: None)
    here = {"send_to_api": False}
    prefect_logger.addHandler(handler)
    try:
        prefect_logger.error("Finished in state %s", FORGED, extra=here)
        prefect_logger.error("a table\nof several lines", extra=here)
    finally:
        prefect_logger.removeHandler(handler)

    def make() -> NoReturn:
        raise StageFailure(FORGED)

    refused = _stage_task.fn("ingest", "0123", {}, make)
    for message in (failed.message, refused.message):
        assert message and "\\u001b" in message and not acting(message)
    assert stream.getvalue().count("\n") == 3 and not acting(stream.getvalue())
