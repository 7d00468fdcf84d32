"""Lists the commands of `textmill`: flows run stages; commands show, start, write or remove
something.

A command takes the words after its name and gives the exit code; user errors are raised as
ConfigError.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass

from flows.commands.questions import explain, hits, replay
from flows.commands.settings_help import help_text
from flows.commands.signatures import exchange_signatures
from flows.commands.unused import remove, unused
from flows.commands.verify import verify
from flows.compose import RunConfig, compose, groups
from flows.console import say, table
from flows.run import decide
from flows.services.access import auth_file
from flows.services.local import (
    client_environment,
    configured_server,
    down,
    environment,
    mlflow_ui,
    server_url,
    up,
    use_environment,
)
from flows.tracking.mlflow_log import MlflowLog
from llm_core.config import ConfigError, local_path, nearest
from llm_core.printing import printable_line, show
from llm_core.secrets import mask_secrets
from tasks.runtime.graph import ancestors
from tasks.runtime.plan import plan_rows
from tasks.runtime.store import Store


@dataclass(frozen=True)
class FlowEntry:
    """A flow by the name the command line gives it."""

    module: str
    function: str
    target: str
    summary: str


FLOWS = {
    "run": FlowEntry(
        "flows.pipeline", "pipeline", "report", "everything, from raw text to the report"
    ),
    "refresh": FlowEntry(
        "flows.refresh", "refresh", "shards", "the data half: new input to token shards"
    ),
    "train": FlowEntry(
        "flows.train", "train", "train", "a trained model, with the data it still needs"
    ),
    "tokenizer": FlowEntry(
        "flows.tokenizer",
        "tokenizer",
        "tokenizer",
        "a tokenizer, trained and measured; -m compares several",
    ),
    "evaluate": FlowEntry("flows.evaluate", "evaluate", "evaluate", "quality of the trained model"),
    "bench": FlowEntry(
        "flows.bench", "bench", "bench", "speed of the trained model on this machine"
    ),
}


def show_plan(arguments: list[str]) -> int:
    """What would run, and why."""
    name = arguments.pop(0) if arguments and "=" not in arguments[0] else "run"
    if name not in FLOWS:
        raise ConfigError(f"{name} is not a flow; {nearest(name, list(FLOWS))}")
    config = compose(arguments)
    if unfetched := config.source.unfetched():
        # A key needs the contents of all inputs, so none is known before they are here.
        known = [file.size_bytes for file in unfetched if file.size_bytes is not None]
        size = f"{sum(known) / 1e6:,.1f} MB" if len(known) == len(unfetched) else "size not told"
        rows = [
            (stage, "?", "not read" if stage == "ingest" else "follows ingest")
            for stage in ancestors(FLOWS[name].target)
        ]
        show(table(("stage", "key", "why"), rows))
        first = f"first {unfetched[0].address}"
        show(
            f"\nnot read: {len(unfetched):,} file(s), {size}, {first}; a run fetches them to"
            f" {config.source.cache}"
        )
        return 0
    store, plan = decide(config, FLOWS[name].target)
    show(table(("stage", "key", "why"), plan_rows(plan)))
    show(
        f"\n{sum(step.runs for step in plan.steps)} of {len(plan.steps)} stages would run; store"
        f" {store.root}/<stage>/<key>"
    )
    return 0


def start_services(arguments: list[str]) -> int:
    state = compose(arguments).state
    use_environment(state)
    url = up(state, say)
    show(url.removesuffix("/api"))
    return 0


def stop_services(arguments: list[str]) -> int:
    stopped = down(compose(arguments).state)
    say("stopped " + ", ".join(stopped) if stopped else "nothing was running")
    return 0


def show_environment(arguments: list[str]) -> int:
    """`export` lines for a shell in which plain `prefect` and `mlflow` commands should work."""
    state = compose(arguments).state
    url, configured = server_url(state), configured_server(state)
    for name, value in (
        client_environment(state, url) if url and not configured else environment(state)
    ).items():
        show(f"export {name}={_quote(value)}")
    if configured:
        say(
            f"# the Prefect server at {configured} stays the one to talk to; unset PREFECT_API_URL"
            " for a local one"
        )
    elif not url:
        say("# no local Prefect server is running; `textmill up` starts one")
    return 0


def explain_setting(arguments: list[str]) -> int:
    if len(arguments) != 1:
        raise ConfigError("help takes one setting or group, e.g. textmill help train.seq_len")
    show(help_text(arguments[0]))
    return 0


def _quote(value: str) -> str:
    """`value` as one word of a shell."""
    if printable_line(value) == value:
        return shlex.quote(value)
    # Escaped for the terminal, and read again by the shell.
    return "$'" + printable_line(value.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def show_interfaces(arguments: list[str]) -> int:
    config = compose(arguments)
    state, tracking = config.state, config.tracking
    address, uri = mlflow_ui(state), tracking.resolve_uri(state)
    if (
        tracking.enabled and tracking.uri is None and not uri.startswith("http")
    ):  # else the server is not ours to ask
        address = MlflowLog(uri, tracking.experiment, state).runs_page(address)
    show(f"mlflow   {mask_secrets(address)}")
    url, local = os.environ.get("PREFECT_API_URL"), server_url(state)
    show(
        "prefect "
        f" {(url or local or '').removesuffix('/api') or 'not running; textmill up starts it'}"
    )
    if local and (not url or url == local):
        show(f"         the password to sign in with is the line in {auth_file(state)}")
    return 0


def collect(arguments: list[str]) -> int:
    """Show, and with --yes remove, what no recent run refers to, nor the last that completed a
    stage."""
    yes = "--yes" in arguments
    keep, overrides = 10, []
    for argument in arguments:
        if argument.startswith("keep="):
            if not argument[5:].isdecimal():
                raise ConfigError(
                    f"keep ({argument[5:]}) must be a whole number of runs, e.g. keep=10"
                )
            keep = int(argument[5:])
        elif argument != "--yes":
            overrides.append(argument)
    store = Store(compose(overrides).store)
    items = unused(store, keep, say)
    total = sum(item.size_bytes for item in items) / 1e6
    if items:
        rows = [[item.kind, f"{item.size_bytes / 1e6:.1f} MB", str(item.path)] for item in items]
        show(table(("kind", "size", "path"), rows) + "\n")
    if not yes:
        show(
            f"{len(items)} items, {total:.1f} MB, that none of the last {keep} runs refers to"
            + ("; --yes removes them" * bool(items))
        )
        return 0
    show(f"removed {remove(items) / 1e6:.1f} MB that none of the last {keep} runs refers to")
    return 0


def generate(arguments: list[str]) -> int:
    """Text that the trained model writes after a prompt."""
    prompt, overrides = read_prompt(arguments)
    config = compose(overrides)
    store, plan = decide(config, "train")
    model, tokenizer = (store.find(name, plan[name].node.key) for name in ("train", "tokenizer"))
    if model is None or tokenizer is None:
        why = next(plan[name].why for name in ("train", "tokenizer") if plan[name].why != "cached")
        raise ConfigError(
            f"no model is trained for this configuration ({why}); run `textmill train` with the"
            " same overrides"
        )
    from tasks.evaluation.generate import generate_text

    def show_piece(piece: str) -> None:
        show(piece, end="", flush=True)

    settings = config.evaluate
    sampling, limit = settings.sampling(), settings.max_new_tokens
    answer = generate_text(
        model.path / "model", tokenizer.path, prompt, sampling, limit, show_piece, settings.device
    )
    show()
    if answer.reached_max_seq_len:
        say(
            f"the answer stops after {answer.num_tokens} of evaluate.max_new_tokens ({limit})"
            " tokens: the model's max_seq_len is full; a shorter prompt leaves more room"
        )
    return 0


def read_prompt(arguments: list[str]) -> tuple[str, list[str]]:
    """The prompt and the overrides: the first word, or what follows `--`; `-` reads stdin. Raises
    ConfigError without one."""
    if "--" in arguments:
        place = arguments.index("--")
        before, after = arguments[:place], arguments[place + 1 :]
        if not after:
            raise ConfigError(
                'generate needs a prompt after --; write textmill generate [overrides] -- "- one"'
            )
        return after[0], [*before, *after[1:]]
    if not arguments:
        raise ConfigError(
            'generate needs a prompt; write textmill generate "Once upon a time" [overrides], or -'
            " for stdin"
        )
    prompt, overrides = arguments[0], arguments[1:]
    if prompt == "-":
        return _read_stdin(), overrides
    name, is_override, _ = prompt.partition("=")
    if prompt.startswith("-") or (
        is_override and name.split(".")[0] in {*groups(), *RunConfig.__dataclass_fields__}
    ):
        raise ConfigError(
            f"generate needs a prompt, and {prompt!r} looks like a setting; such a prompt goes"
            " after --, as in textmill generate -- PROMPT"
        )
    return prompt, overrides


def _read_stdin() -> str:
    """All of stdin but a last line break, as `$(command)` would give it."""
    content = sys.stdin.buffer.read()
    try:
        return content.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the prompt on stdin is not UTF-8 (byte {content[error.start]:#04x} at {error.start});"
            " convert it, e.g. iconv -f latin1 -t utf-8 FILE | textmill generate -"
        ) from error


def export(arguments: list[str]) -> int:
    """Finished token shards, in the form of another engine."""
    from tasks.shards.exchange import EXPORTS, export_shards

    if len(arguments) < 2 or "=" in "".join(arguments[:2]):
        raise ConfigError(
            "export-shards needs a form and a folder; write textmill export-shards"
            f" {next(iter(EXPORTS))} DIR"
        )
    form, folder = arguments[0], local_path(arguments[1], "DIR")
    store, plan = decide(compose(arguments[2:]), "shards")
    shards = store.find("shards", plan["shards"].node.key)
    if shards is None:
        why = plan["shards"].why
        raise ConfigError(
            f"no shards are made for this configuration ({why}); run `textmill refresh` with the"
            " same overrides"
        )
    counts = export_shards(shards, form, folder)
    show(
        json.dumps({"form": form, "folder": str(folder), "shards": shards.key, "documents": counts})
    )
    return 0


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "plan": (
        show_plan,
        "what a flow would run, and why; fetches nothing: textmill plan [flow] [overrides]",
    ),
    "explain": (explain, "what happened to a document: textmill explain ID [run=RUN] [--json]"),
    "hits": (
        hits,
        (
            "evaluation items in documents, with the text of both: textmill hits [run=RUN] [--json]"
            " > FILE"
        ),
    ),
    "replay": (
        replay,
        "what other quality rules would keep: textmill replay quality.thresholds.RULE=N [--json]",
    ),
    "generate": (
        generate,
        (
            'text after a prompt: textmill generate "prompt"|- [overrides], or [overrides] -- "-'
            ' prompt"'
        ),
    ),
    "export-shards": (
        export,
        "token shards for other engines: textmill export-shards megatron|datasets DIR [overrides]",
    ),
    "help": (explain_setting, "what a setting or group means: textmill help quality.thresholds"),
    "exchange-signatures": (
        exchange_signatures,
        (
            "min-hashes to datasketch, and near duplicates of its own: textmill"
            " exchange-signatures export|match FILE [overrides]"
        ),
    ),
    "up": (start_services, "start a local Prefect server and worker, and leave them running"),
    "down": (stop_services, "stop what up and ui started"),
    "env": (show_environment, 'for plain prefect and mlflow commands: eval "$(textmill env)"'),
    "ui": (show_interfaces, "start the MLflow UI; show where both UIs are"),
    "verify": (
        verify,
        (
            "read every artifact and name damaged files; --repair rebuilds what the overrides name:"
            " textmill verify"
        ),
    ),
    "gc": (collect, "list what no recent run refers to; --yes removes it, keep=10 runs"),
}
