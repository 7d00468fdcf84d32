"""Text of any origin on a terminal: what acts is escaped, everything else stays."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.printing import get_logger, note, printable, printable_line, show
from llm_core.training import train

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "a\x1b]8;;http://x\x07b\x9b31mc\rd\x08e\x7ff\u202eg\u2066h\u2028i\u2029j\ud800k\x00l\x85m"
ANY_TEXT = st.text(st.characters(), max_size=200)
SURROGATES = st.text(st.characters(categories=("Cs", "Cc", "Cf", "Zl", "Zp", "Lo")), max_size=200)


def acts(text: str, line: bool = False) -> bool:
    """Whether a terminal does something other than show a character. Independent of the patterns of
    the module."""
    kept = "" if line else "\n\t"
    return any(
        (unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") and c not in kept)
        or unicodedata.bidirectional(c)
        in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        for c in text
    )


@given(ANY_TEXT | SURROGATES)
def test_nothing_that_is_printed_acts_on_a_terminal(text: str) -> None:
    assert not acts(printable(text)) and not acts(printable_line(text), line=True)
    assert len(printable_line(text).splitlines()) <= 1


@given(ANY_TEXT | SURROGATES)
def test_escaping_twice_is_escaping_once(text: str) -> None:
    assert printable(printable(text)) == printable(text)
    assert (
        printable_line(printable_line(text))
        == printable_line(text)
        == printable(printable_line(text))
    )


@given(ANY_TEXT | SURROGATES)
def test_text_without_acting_characters_stays_as_it_is(text: str) -> None:
    harmless = "".join(c for c in text if not acts(c) and not "\u206a" <= c <= "\u206f")
    assert printable(harmless) == harmless


@given(st.dictionaries(ANY_TEXT, ANY_TEXT | SURROGATES), st.sampled_from((None, 1)))
def test_escaped_json_holds_the_same_values(values: dict[str, str], indent: int | None) -> None:
    whole = {k: v.encode("utf-8", "replace").decode() for k, v in values.items()}
    for ensure_ascii in (True, False):
        text = json.dumps(whole, ensure_ascii=ensure_ascii, indent=indent)
        assert json.loads(printable(text)) == whole and not acts(printable(text))


@pytest.mark.parametrize(
    "text",
    [
        "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️",
        "مرحبا‏ بالعالم",
        "שלום‎",
        "नमस्ते क्‍ष",
        "می‌خواهم",
        "e\u0301 Å",
        "ไทย\u200bไทย",
        "two\nlines\tand a tab",
    ],
)
def test_text_in_any_script_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_escapes_name_the_character() -> None:
    assert printable("\x1b[31m\u202e\x9b\n\t") == "\\u001b[31m\\u202e\\u009b\n\t"
    assert printable_line("a\nb\tc\rd") == "a\\nb\\tc\\u000dd"


def test_stdout_and_stderr_get_no_acting_character(capsys: pytest.CaptureFixture[str]) -> None:
    show(HOSTILE + "\nsecond line")
    note(HOSTILE + "\nno second line")
    out, err = capsys.readouterr()
    assert not acts(out) and out.count("\n") == 2
    assert not acts(err) and err.count("\n") == 1


def test_every_handler_of_a_logger_gets_escaped_lines() -> None:
    stream, logger = io.StringIO(), get_logger("llm_core.test_printing")
    handler = logging.StreamHandler(stream)  # without a formatter of ours, as Prefect's
    logger.addHandler(handler)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("a %s\nforged line", HOSTILE)
    finally:
        logger.removeHandler(handler)
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("\\nforged line") and trace[0].startswith("Traceback")
    assert not acts(stream.getvalue())


def test_a_defect_and_a_log_line_without_a_handler_are_escaped() -> None:
    code = (
        "import logging; from llm_core.printing import escape_defects; escape_defects()\n"
        f"logging.getLogger('some.library').warning('%s', {HOSTILE!a})\n"
        f"raise RuntimeError({HOSTILE!a} + '\\nnext')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    err = done.stderr.decode("utf-8")
    assert (
        done.returncode == 1 and "RuntimeError: a\\u001b]8" in err and err.startswith("a\\u001b]8")
    )
    assert not acts(err)


def test_a_trainer_is_refused_in_one_escaped_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = HOSTILE.replace("\ud800", "").replace("\x00", "") + "\nforged"
    with pytest.raises(SystemExit):
        train.main(["--config", str(tmp_path / name), "--workdir", str(tmp_path)])
    err = capsys.readouterr().err
    assert "\\u202e" in err and not acts(err) and err.count("\n") == 1


WRITERS = re.compile(
    r"print|traceback\.print_\w+|sys\.(__)?std(out|err)(__)?(\.buffer)?\.write(lines)?"
)


def writes_past_the_module(tree: ast.AST) -> list[str]:
    """Calls that write to a standard stream, and loggers that are kept to write to."""
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and WRITERS.fullmatch(ast.unparse(n.func))
    ]
    calls += [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and ast.unparse(n.value.func) == "logging.getLogger"
    ]
    return [f"line {call.lineno}: {ast.unparse(call.func)}" for call in calls]


def test_nothing_is_written_past_the_printing_module() -> None:
    # prerequisites runs on any Python 3, before anything is installed, and has nothing to show but
    # paths of this machine.
    exempt = {ROOT / "llm_core" / "printing.py", ROOT / "flows" / "prerequisites.py"}
    files = [
        file
        for package in ("flows", "tasks", "llm_core")
        for file in sorted((ROOT / package).rglob("*.py"))
    ]
    assert len(files) > 100
    past = {
        str(file.relative_to(ROOT)): found
        for file in files
        if file not in exempt
        and (found := writes_past_the_module(ast.parse(file.read_text("utf-8"))))
    }
    assert not past
