"""Shows what can be set: settings explained, the composed values, and completions of a word.

Hydra's own application serves completion, `--info`, `--cfg hydra|all` and `--hydra-help` only. The
configuration is composed, checked and found good before it is entered.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from flows.commands.command import command
from flows.commands.settings_help import help_text, overview
from flows.commands.table import COMMANDS, FLOWS
from flows.compose import as_yaml, compose, settable, store_full_config
from flows.conf_files import CONF_DIR
from llm_core.config import ConfigError, nearest
from llm_core.printing import show
from llm_core.secrets import mask_secrets

MULTIRUN = click.Option(
    ["-m", "--multirun"], is_flag=True, help="Run every combination of the values given."
)
_INFO = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
PAGES = (
    click.Option(
        ["-c", "--cfg"], type=click.Choice(["job", "hydra", "all"]), help="Show the configuration."
    ),
    click.Option(["-r", "--resolve"], is_flag=True, help="The same with references resolved."),
    click.Option(["-p", "--package"], help="The same of one part, e.g. train."),
    click.Option(
        ["-i", "--info"],
        type=click.Choice(_INFO),
        is_flag=False,
        flag_value="all",
        help="Show how the configuration is composed.",
    ),
    click.Option(["--help"], is_flag=True, help="Show groups and choices."),
    click.Option(["--hydra-help"], is_flag=True, help="Show Hydra's own options."),
    click.Option(["-sc", "--shell-completion"], help="What `textmill completion` calls."),
)
"""Options of a flow that show something and run nothing."""
SHELLS = ("bash", "fish", "zsh")


def show_page(pages: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """What the options given of `PAGES` ask for."""
    if pages["help"]:
        show(overview())
        return 0
    if not (pages["hydra_help"] or pages["shell_completion"]):
        config = compose(overrides)
        if pages["cfg"] == "job":
            show(mask_secrets(as_yaml(config, pages["package"] or "")), end="")
            return 0
    return _hydra_application([*_switches(pages), *settable(overrides)])


def _switches(pages: Mapping[str, Any]) -> list[str]:
    """The options given, in Hydra's words."""
    given: list[str] = []
    for name, value in pages.items():
        if value:
            given.append(f"--{name.replace('_', '-')}")
            given += [value] * (value is not True)
    return given


def _hydra_application(arguments: Sequence[str]) -> int:
    """Enter Hydra's own application, which shows something."""
    import hydra

    before, shown, name = sys.argv, io.StringIO(), store_full_config()
    sys.argv = ["textmill", *arguments]
    try:
        with contextlib.redirect_stdout(shown):
            hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name=name)(
                lambda _: None
            )()
    except SystemExit as end:  # after some pages
        return int(end.code or 0)
    finally:
        sys.argv = before
        show(mask_secrets(shown.getvalue()), end="")
    return 0


def complete(arguments: Sequence[str]) -> int:
    """Words after `textmill`: flows and commands for the first one, Hydra's choices for the
    others."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if "query" in arguments[-1] and len(words) == 2:
        show(" ".join(name for name in [*FLOWS, *COMMANDS] if name.startswith(words[1])))
        return 0
    os.environ["COMP_LINE"] = " ".join(["textmill", *words[2:]])
    return _hydra_application(arguments)


@command("[bash|fish|zsh]")
def completion(words: Sequence[str]) -> int:
    """A script for a shell that completes flows, commands and overrides."""
    shell = words[0] if words else "bash"
    if shell not in SHELLS or len(words) > 1:
        raise ConfigError(f"completion takes one shell; {nearest(shell, list(SHELLS))}")
    return _hydra_application(["--shell-completion", f"install={shell}"])


@command("[NAME]...")
def help(words: Sequence[str]) -> int:
    """What settings or groups mean, or what `textmill` can do."""
    overview = click.get_current_context().find_root().get_help
    show("\n\n".join(map(help_text, words)) or overview())
    return 0
