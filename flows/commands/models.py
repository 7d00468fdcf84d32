"""What finished artifacts are for: text from a trained model, token shards for other engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from flows.commands.command import command
from flows.compose import RunConfig, compose
from flows.conf_files import groups
from flows.console import say
from flows.run import decide
from llm_core.config import ConfigError, local_path
from llm_core.printing import show


@command("PROMPT|- [OVERRIDES]... | [OVERRIDES]... -- PROMPT", free_words=True)
def generate(words: Sequence[str]) -> int:
    """Text that the trained model writes after a prompt."""
    prompt, overrides = read_prompt(list(words))
    config = compose(overrides)
    store, plan = decide(config, "train")
    model, tokenizer = (store.find(name, plan[name].node.key) for name in ("train", "tokenizer"))
    if model is None or tokenizer is None:
        lost = next(plan[name] for name in ("train", "tokenizer") if plan[name].why != "cached")
        raise ConfigError(
            f"no model is trained for this configuration{lost.because}; run `textmill train` with"
            " the same overrides"
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


@command("megatron|datasets DIR [OVERRIDES]...")
def export_shards(words: Sequence[str]) -> int:
    """Finished token shards, in the form of another engine."""
    from tasks.shards import exchange

    if len(words) < 2 or "=" in "".join(words[:2]):
        raise ConfigError(
            "export-shards needs a form and a folder; write textmill export-shards"
            f" {next(iter(exchange.EXPORTS))} DIR"
        )
    form, folder = words[0], local_path(words[1], "DIR")
    store, plan = decide(compose(words[2:]), "shards")
    shards = store.find("shards", plan["shards"].node.key)
    if shards is None:
        because = plan["shards"].because
        raise ConfigError(
            f"no shards are made for this configuration{because}; run `textmill refresh` with the"
            " same overrides"
        )
    counts = exchange.export_shards(shards, form, folder)
    show(
        json.dumps({"form": form, "folder": str(folder), "shards": shards.key, "documents": counts})
    )
    return 0
