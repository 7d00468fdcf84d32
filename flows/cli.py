"""The command line: `textmill <flow> [hydra overrides]`, or `textmill <command> [words]`.

A group of click commands, each loaded when it is called: help needs the table of their names alone.
Errors and exit codes are those of `flows.exit_codes`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

import click

from flows.commands.command import help_option
from flows.commands.table import COMMANDS, FLOWS
from flows.conf_files import groups
from flows.console import set_up_console
from flows.exit_codes import exit_code
from llm_core.config import ConfigError, nearest

CONTROLS = (
    (
        "overrides",
        "group=choice, key.path=value; `textmill run --help` lists groups and choices, `textmill"
        " help NAME` explains a setting, `textmill run --cfg job` shows all values",
    ),
    (
        "controls",
        "start=STAGE only=STAGE force=[STAGE,…] orchestrator=prefect|none"
        " runner=thread|process|ray|dask num_workers=N store=DIR state=DIR",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Console script. Returns the exit code."""
    if argv is None:
        _speak_utf8()
    set_up_console()
    code = exit_code(lambda: _checked(list(sys.argv[1:] if argv is None else argv)))
    if argv is None:
        # Python looks through every object once more when it ends: a second, with MLflow loaded.
        gc.freeze()
    return code


def _checked(arguments: list[str]) -> int:
    _check_utf8(arguments)
    code = _dispatch(arguments)
    sys.stdout.flush()
    return code


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] in (["-sc"], ["--shell-completion"]):  # what the installed completion calls
        from flows.commands.settings import complete

        return complete(arguments)
    # Not `textmill.main`, which has its own ideas of Ctrl-C and of a closed pipe.
    with textmill.make_context("textmill", arguments or ["--help"]) as context:
        return textmill.invoke(context)  # type: ignore[no-any-return]


class Textmill(click.Group):
    """Finds flows and commands in the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*FLOWS, *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in FLOWS:
            from flows.commands.runs import flow_command

            return flow_command(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"flows.commands.{COMMANDS[cmd_name].module}")
        return getattr(module, cmd_name.replace("-", "_"))  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str, click.Command, list[str]]:
        name, *rest = args
        if name == "bench" and _is_own_bench(rest):
            from flows.commands.bench import bench

            return name, bench, rest
        if found := self.get_command(ctx, name):
            return name, found, rest
        raise ConfigError(f"{name} is not a flow or command; {nearest(name, [*FLOWS, *COMMANDS])}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in (("flows", FLOWS), ("commands", COMMANDS)):
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])
        with formatter.section("settings"):
            formatter.write_dl([*CONTROLS, ("groups", ", ".join(groups()))])


textmill = Textmill(
    help="From raw text to a measured language model, e.g. textmill run run=demo, or textmill run"
    " -m optim.lr=1e-3,3e-3",
    params=[help_option("-h", "--help")],
    add_help_option=False,
    options_metavar="",
    subcommand_metavar="FLOW|COMMAND [OVERRIDES]...",
)


def _is_own_bench(words: Sequence[str]) -> bool:
    """Whether `bench` compares, or measures a folder, instead of running the flow."""
    return words[:1] == ["compare"] or any(word.startswith("bench.folder=") for word in words)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Refuse bytes that are not UTF-8, which Python keeps as lone surrogates that nothing later
    can write."""
    for text in arguments:
        if _holds_bytes(text):
            raise ConfigError(
                f"{text!r} is not UTF-8; write it in UTF-8, or rename the file or folder that it"
                " names"
            )
    if _holds_bytes(place := _current_directory()):
        raise ConfigError(
            f"the current directory {place!r} is not UTF-8; rename the folder or change to another"
        )


def _holds_bytes(text: str) -> bool:
    return not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the current directory no longer exists, and relative paths start there; change to"
            " another folder"
        ) from error


def _speak_utf8() -> None:
    """Begin again in UTF-8 where the locale has another encoding: names of files and our tables go
    beyond it."""
    if sys.getfilesystemencoding() != "utf-8":
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"}
        )


if __name__ == "__main__":
    sys.exit(main())
