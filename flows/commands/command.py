"""Makes click commands whose words are Hydra overrides, and whose help is shown as all else is.

An override may hold any sign, so words that click does not know are passed on as they are. What
begins with `-` and is not an option of the command is refused, unless the command takes free
words. The word `--` stays among the words: what follows it is data, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import click

from flows.commands.table import COMMANDS
from llm_core.config import ConfigError, nearest
from llm_core.printing import show

EPILOG = (
    "Overrides are group=choice or key.path=value, as in store=DIR; `textmill run --help` lists"
    " the groups."
)


def _show_help(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        show(context.get_help())
        context.exit()


def help_option(*names: str) -> click.Option:
    return click.Option(
        names,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_help,
        help="Show this message.",
    )


class Command(click.Command):
    """A command that is called with its words, as `words`, and with its options.

    free_words: a word of any form may be data.
    """

    def __init__(self, *arguments: Any, free_words: bool = False, **settings: Any) -> None:
        settings |= {"add_help_option": False, "context_settings": {"ignore_unknown_options": True}}
        super().__init__(*arguments, **settings)
        self._free_words = free_words

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        # Not a name of the option: click would find it in any word like `-5 hours`.
        ours = ["--help" if word == "-h" else word for word in args[:place]]
        # The parser removes one `--`.
        rest = super().parse_args(ctx, [*ours, *(["--"] if args[place:] else []), *args[place:]])
        for word in () if self._free_words else takewhile(lambda w: w != "--", ctx.params["words"]):
            if word.startswith("-"):
                known = [name for option in self.params for name in option.opts if name[0] == "-"]
                raise ConfigError(f"{word} is not an option; {nearest(word.split('=')[0], known)}")
        return rest

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.name in COMMANDS:
            formatter.write(f"textmill {self.name}: {COMMANDS[self.name].summary}\n\n")
        super().format_help(ctx, formatter)


def take_words(words: Sequence[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """({name: value} of the words `name=value` that are not settings, all other words). Raises
    ConfigError for one that is given twice."""
    given: dict[str, str] = {}
    rest = []
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or name not in names:
            rest.append(word)
        elif name in given:
            raise ConfigError(f"{name} is given twice; name one")
        else:
            given[name] = value
    return given, rest


def names_source(words: Sequence[str]) -> bool:
    """Whether overrides say which text is read."""
    return any(word.startswith(("source=", "source.", "run=", "experiment=")) for word in words)


def with_source(words: Sequence[str]) -> list[str]:
    """Overrides for a command that reads no text, and so needs no source."""
    return [*words] if names_source(words) else ["source=sample", *words]


def command(
    metavar: str = "[OVERRIDES]...",
    options: Sequence[click.Option] = (),
    free_words: bool = False,
    name: str | None = None,
) -> Callable[[Callable[..., int]], Command]:
    """Decorates a function of `words` and of its options that gives an exit code.

    An option `--help` among the options takes the place of click's.
    """

    def decorate(function: Callable[..., int]) -> Command:
        words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar=metavar)
        own_help = any("--help" in option.opts for option in options)
        return Command(
            name or function.__name__.replace("_", "-"),
            callback=function,
            params=[words, *options, *([] if own_help else [help_option("--help")])],
            free_words=free_words,
            epilog=EPILOG,
        )

    return decorate
