"""The command line: `textmill <flow> [hydra overrides]`.

A user error is one line on stderr and exit code 2, never a traceback; a stop is 130 or 143,
or 75 (try again) where training was asked to stop and saved; damage that `verify` found and left is
1; a defect is a traceback and 1. A sweep has the highest code of its runs. The configuration is
composed, checked and found good before Hydra's own application is entered, which serves `--info`,
`--cfg hydra`, `--hydra-help` and tab completion only. The last line of a run on stdout is one JSON
object.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from flows.commands.entries import COMMANDS, FLOWS
from flows.commands.settings_help import overview
from flows.compose import (
    CONF_DIR,
    RunConfig,
    as_yaml,
    compose,
    groups,
    one_line,
    settable,
    split_hydra,
    store_full_config,
    sweep_points,
)
from flows.console import say, set_up_console
from flows.parameters import withhold
from flows.run import (
    Terminated,
    decide,
    describe,
    is_interruption,
    open_run,
    sigterm_raises,
    summarize,
)
from flows.services.local import ServiceError, ensure_server, use_environment
from flows.sweeps import run_sweep
from llm_core.config import ConfigError, nearest
from llm_core.printing import note, show
from llm_core.secrets import mask_secrets
from tasks.runtime.artifact import ArtifactMismatch
from tasks.runtime.keys import digest
from tasks.runtime.stage import StageFailure, StageInterrupted

_WITH_VALUE = ("-c", "--cfg", "-i", "--info", "-p", "--package", "-sc", "--shell-completion")
_SWITCHES = (*_WITH_VALUE, "-m", "--multirun", "-r", "--resolve", "-h", "--help", "--hydra-help")


def main(argv: Sequence[str] | None = None) -> int:
    """Console script. Returns the exit code."""
    if argv is None:
        _speak_utf8()
    set_up_console()
    return exit_code(lambda: _checked(list(sys.argv[1:] if argv is None else argv)))


def exit_code(action: Callable[[], int]) -> int:
    """What `action` gives; what it raises is said in one line, and has a code. A defect raises."""
    try:
        return action()
    except (ConfigError, StageFailure, ArtifactMismatch, ServiceError) as error:
        return _complain(error)
    except BrokenPipeError:
        return _stop_speaking()
    except MemoryError:
        return _complain(
            "memory has run out; give more (ulimit -v), or use fewer workers (num_workers=1) and"
            " smaller pieces (source.max_text_bytes_per_file); what is made is kept, run again"
        )
    except OSError as error:
        if error.errno not in _WAYS_OUT:
            raise
        return _complain(
            f"{error.filename or 'a file'}: {os.strerror(error.errno)}; {_WAYS_OUT[error.errno]}"
        )
    except BaseException as error:
        if not is_interruption(error):
            raise
        return _complain_of_stop(error)


def _checked(arguments: list[str]) -> int:
    _check_utf8(arguments)
    code = _dispatch(arguments)
    sys.stdout.flush()
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["help"]:
        show(_help())
        return 0
    name, rest = arguments[0], arguments[1:]
    if name in ("-sc", "--shell-completion"):  # what the installed completion calls
        return _complete(arguments)
    if name in FLOWS:
        return _flow(name, rest)
    if name in COMMANDS:
        if rest and rest[0] in ("-h", "--help"):
            show(f"textmill {name}: {COMMANDS[name][1]}\n\n{_help()}")
            return 0
        return COMMANDS[name][0](rest)
    raise ConfigError(f"{name} is not a flow or command; {nearest(name, [*FLOWS, *COMMANDS])}")


def _flow(name: str, arguments: list[str]) -> int:
    switches, overrides = _split(arguments)
    sweep = [s for s in switches if s in ("-m", "--multirun")]
    if len(switches) > len(sweep):  # --cfg, --info, --help: something is shown and nothing runs
        if sweep:
            other = next(s for s in switches if s not in sweep)
            raise ConfigError(
                f"{sweep[0]} runs a sweep and {other} shows something; give one of them"
            )
        if {"-h", "--help"} & set(switches):
            show(overview())
            return 0
        if not {"--hydra-help", "-sc", "--shell-completion"} & set(switches):
            config = compose(overrides)
            if "job" in (switches.get("-c"), switches.get("--cfg")):
                package = switches.get("-p") or switches.get("--package") or ""
                show(mask_secrets(as_yaml(config, package)), end="")
                return 0
        shown = [argument for argument in arguments if argument not in overrides]
        return _hydra_application([*shown, *settable(overrides)])
    if not sweep:
        return _run(name, overrides, compose(overrides))
    # Every point is checked before the first one runs.
    overrides, hydra_overrides = split_hydra(overrides)
    points = sweep_points(overrides)
    configs = [compose([*point, *hydra_overrides]) for point in points]
    result = run_sweep(name, points, hydra_overrides, configs[0])
    if name == "tokenizer":
        _compare_tokenizers(
            [config for config, code in zip(configs, result.codes, strict=True) if code == 0]
        )
    return result.exit_code


def _compare_tokenizers(configs: Sequence[RunConfig]) -> None:
    """A page over the tokenizers of a sweep, and which of them suits the model."""
    from tasks.report.tokenizer_sweep import candidates, recommend, write_sweep

    made = []
    for config in configs:
        store, plan = decide(config, "tokenizer")
        if (artifact := store.find("tokenizer", plan["tokenizer"].node.key)) is not None:
            made.append(artifact)
    if lost := len(configs) - len(made):
        say(
            f"tokenizers: {lost} of {len(configs)} are not on the page: code or input changed while"
            " they were made; run it again"
        )
    if not made:
        return
    model, seq_len = configs[0].model, configs[0].train.seq_len
    found = candidates(made, model, seq_len)
    best = recommend(found)
    file = configs[0].state / "sweeps" / f"tokenizers-{digest([c.key for c in found])}.html"
    page = write_sweep(found, model, seq_len, file)
    say(f"tokenizers: {best.name} takes the least compute per byte, or nearly; page {page}")
    show(
        json.dumps(
            {
                "recommended": {"name": best.name, "key": best.key, "vocab_size": best.vocab_size},
                "page": str(page),
            }
        )
    )


def run_point(name: str, overrides: Sequence[str]) -> int:
    """One point of a sweep, in whatever process it is launched."""
    return _run(name, overrides, compose(overrides))


def _run(name: str, overrides: Sequence[str], config: RunConfig) -> int:
    """One run of a flow, under Prefect or in this process alone."""
    if config.orchestrator == "none":
        summary, description = _run_here(name, overrides, config)
    else:
        summary, description = _run_under_prefect(name, overrides, config)
    show(description)
    show(json.dumps(summary), flush=True)
    return 0


def _run_here(name: str, overrides: Sequence[str], config: RunConfig) -> tuple[dict[str, Any], str]:
    decide(config, FLOWS[name].target)  # a plan that cannot be, before anything slow is imported
    use_environment(config.state)
    from flows.pipeline import stages
    from tasks.runtime.execute import make_artifact

    entry = FLOWS[name]
    with (
        sigterm_raises(),
        open_run(entry.function, entry.target, config, overrides, make_artifact) as run,
    ):
        stages(run)
    return summarize(run), describe(run)


def _run_under_prefect(
    name: str, overrides: Sequence[str], config: RunConfig
) -> tuple[dict[str, Any], str]:
    entry = FLOWS[name]
    decide(config, entry.target)  # a plan that cannot be, before a server is started for it
    use_environment(config.state)
    url = ensure_server(config.state, say)
    # Prefect's own lines go to its UI; here they would bury ours.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    import httpx
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    flow = getattr(importlib.import_module(entry.module), entry.function)
    # A flow run ends by waiting a second for its heartbeat; nobody watches over a run in the
    # foreground.
    try:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            state = flow(overrides=withhold(overrides), return_state=True)
    except httpx.TransportError as error:
        raise ServiceError(
            f"the Prefect server at {url} is unavailable ({error}); finished work is kept, run"
            " again"
        ) from error
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    if state.is_cancelled():
        raise Terminated(state.message or "cancelled")
    return result["summary"], result["description"]


def _help() -> str:
    flows = "\n".join(f"  {name:13} {entry.summary}" for name, entry in FLOWS.items())
    commands = "\n".join(f"  {name:13} {summary}" for name, (_, summary) in COMMANDS.items())
    return f"""textmill: from raw text to a measured language model

usage: textmill <flow> [overrides]     e.g. textmill run run=demo, textmill run -m optim.lr=1e-3,3e-3

flows
{flows}

commands
{commands}

overrides      group=choice, key.path=value; `textmill run --help` lists groups and choices,
               `textmill help NAME` explains a setting, `textmill run --cfg job` shows all values
controls       start=STAGE only=STAGE force=[STAGE,…] orchestrator=prefect|none runner=thread|process|ray|dask num_workers=N
               store=DIR state=DIR
completion     eval "$(textmill run -sc install=bash)"
groups         {", ".join(groups())}"""  # noqa: E501


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Hydra's switches with their values, and the overrides."""
    switches: dict[str, str] = {}
    overrides, switch, value_follows = [], "", False
    for argument in arguments:
        if value_follows:
            switches[switch], value_follows = argument, False
            continue
        switch, _, value = argument.partition("=")
        if argument.startswith("-"):
            if switch not in _SWITCHES:
                raise ConfigError(
                    f"{argument} is not an option; {nearest(switch, list(_SWITCHES))}"
                )
            switches[switch] = value
            value_follows = switch in _WITH_VALUE and "=" not in argument
        else:
            overrides.append(argument)
    return switches, overrides


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
    finally:
        sys.argv = before
        show(mask_secrets(shown.getvalue()), end="")
    return 0


def _complete(arguments: Sequence[str]) -> int:
    """Words after `textmill`: flows and commands for the first one, Hydra's choices for the
    others."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if "query" in arguments[-1] and len(words) == 2:
        show(" ".join(name for name in [*FLOWS, *COMMANDS] if name.startswith(words[1])))
        return 0
    os.environ["COMP_LINE"] = " ".join(["textmill", *words[2:]])
    return _hydra_application(arguments)


_ELSEWHERE = "allow it, or set store, state or source.paths to another place"
_ANOTHER_DISK = (
    "free some (textmill gc) or set store and state to another disk; what is made is kept, run"
    " again"
)
_OPEN_FILES = (
    "raise the limit of open files (ulimit -n) or lower num_workers; what is made is kept, run"
    " again"
)
_WAYS_OUT = {
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
    errno.ENOTDIR: _ELSEWHERE,
    errno.EEXIST: _ELSEWHERE,
    errno.EISDIR: _ELSEWHERE,
    errno.ENAMETOOLONG: _ELSEWHERE,
    errno.ENOSPC: _ANOTHER_DISK,
    errno.EDQUOT: _ANOTHER_DISK,
    errno.EFBIG: _ANOTHER_DISK,
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EIO: (
        "the disk cannot be read or written there; what is made is kept, run again when it can"
    ),
    errno.ESTALE: "the network disk has changed there; what is made is kept, run again",
}
"""What the place, not the program, can be wrong with, and what to do about it."""


def _check_utf8(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no UTF-8, which Python keeps as lone surrogates that nothing further on
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
            "the current directory is gone, and relative paths start there; change to one that is"
            " there"
        ) from error


def _speak_utf8() -> None:
    """Begin again in UTF-8 where the locale has another encoding: names of files and our tables go
    beyond it."""
    if sys.getfilesystemencoding() != "utf-8":
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"}
        )


def _stop_speaking() -> int:
    """Whoever read stdout has gone, as `head` does; what else is held for it goes nowhere. The code
    of a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _complain(error: object) -> int:
    note(f"textmill: {one_line(error)}")
    return 2


def _complain_of_stop(error: BaseException) -> int:
    said = one_line(error)
    note(f"textmill: stopped; the same command resumes here{f' ({said})' if said else ''}")
    if isinstance(error, StageInterrupted):  # what queues and launchers take for: start it again
        return os.EX_TEMPFAIL
    return 130 if isinstance(error, KeyboardInterrupt) else 143


if __name__ == "__main__":
    sys.exit(main())
