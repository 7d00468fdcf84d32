"""What finished artifacts are for: text from a trained model, a server of it, its weights in fewer
bits, token shards for other engines, and min-hash signatures exchanged with datasketch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from flows.commands.command import command, take_words
from flows.compose import RunConfig, compose
from flows.conf_files import groups
from flows.console import say
from flows.run import decide
from llm_core.config import ConfigError, local_path
from llm_core.printing import show
from tasks.runtime.artifact import Artifact


@command("PROMPT|- [OVERRIDES]... | [OVERRIDES]... -- PROMPT", free_words=True)
def generate(words: Sequence[str]) -> int:
    """Text that a model writes after a prompt: the trained model, or the Hugging Face model of
    folder=DIR."""
    prompt, overrides = read_prompt(list(words))
    config, folder, _ = _model_of(overrides)
    from tasks.evaluation.generate import generate_text

    def show_piece(piece: str) -> None:
        show(piece, end="", flush=True)

    settings = config.generate
    sampling, limit = settings.sampling(), settings.max_new_tokens
    place, stop = settings.device, settings.stop
    ranks, draft = settings.tensor_parallel, settings.draft
    answer = generate_text(
        folder, folder, prompt, sampling, limit, show_piece, place, stop, ranks, draft
    )
    show()
    if answer.reached_max_seq_len:
        say(
            f"the answer stops after {answer.num_tokens} of generate.max_new_tokens ({limit})"
            " tokens: the model's max_seq_len is full; a shorter prompt leaves more room"
        )
    return 0


_KEY_FILE = click.Option(
    ["--api-key-file"], metavar="FILE", help="Ask clients for the key in FILE (serve.api_key_file)."
)


@command(options=[_KEY_FILE])
def serve(words: Sequence[str], api_key_file: str | None) -> int:
    """Serve the trained model, or the Hugging Face model of folder=DIR, over an OpenAI-compatible
    API with a chat page. Ctrl-C or SIGTERM stops it once running answers are written."""
    if api_key_file is not None:
        quoted = api_key_file.replace("\\", "\\\\").replace("'", "\\'")
        words = [*words, f"serve.api_key_file='{quoted}'"]
    config, folder, name = _model_of(words)
    from tasks.serving.server import serve_folder

    serve_folder(folder, name, config.serve, config.generate)
    return 0


def _model_of(words: Sequence[str]) -> tuple[RunConfig, Path, str]:
    """(settings, folder of a model, its name): the folder that `folder=` names, else that of the
    run."""
    given, overrides = take_words(words, "folder")
    config = compose(overrides)
    if "folder" in given:
        folder = local_path(given["folder"], "folder")
        if not folder.is_dir():
            raise ConfigError(f"folder ({folder}) is not a folder; name that of a model")
        return config, folder, folder.resolve().name
    (model,) = _finished(config, ("train",), "no model is trained", "train")
    return config, model.path / "model", f"textmill-{model.key[:8]}"


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
        is_override and name.split(".")[0] in {*groups(), *RunConfig.__dataclass_fields__, "folder"}
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
    (shards,) = _finished(compose(words[2:]), ("shards",), "no shards are made", "refresh")
    counts = exchange.export_shards(shards, form, folder)
    show(
        json.dumps({"form": form, "folder": str(folder), "shards": shards.key, "documents": counts})
    )
    return 0


@command("export|match FILE [OVERRIDES]...")
def exchange_signatures(words: Sequence[str]) -> int:
    """`export` writes the signatures of a run that kept its index (`dedup.keep_index=true`) to a
    Parquet file. `match` reads such a file, made here or by `write_minhashes` elsewhere, and prints
    the near duplicates that the index has of each of its documents, one JSON object a line."""
    from tasks.dedup.datasketch_exchange import export_signatures, match_signatures

    if len(words) < 2 or words[0] not in ("export", "match") or "=" in words[1]:
        raise ConfigError(
            "exchange-signatures needs a direction and a file; write textmill exchange-signatures"
            " export FILE, or match FILE"
        )
    direction, file, config = words[0], local_path(words[1], "FILE"), compose(words[2:])
    (dedup,) = _finished(config, ("dedup",), "no documents are deduplicated", "refresh")
    if direction == "export":
        if file.exists():
            raise ConfigError(f"{file} exists already; name a new file")
        if not file.absolute().parent.is_dir():
            raise ConfigError(f"{file.parent} is not a folder; make it, or name another file")
        count = export_signatures(dedup, config.dedup, file)
        show(json.dumps({"file": str(file), "dedup": dedup.key, "signatures": count}))
        return 0
    for theirs, ours, similarity in match_signatures(dedup, config.dedup, file):
        row = {"id": theirs.hex(), "duplicate_of": ours.hex(), "similarity": similarity}
        show(json.dumps(row))
    return 0


@command("out=DIR [folder=DIR] [OVERRIDES]...")
def quantize(words: Sequence[str]) -> int:
    """The trained model with weights in `quantize.format`, written to the new folder out=DIR, which
    generate and serve take as folder=DIR. Reports bits per byte on the validation documents before
    and after. folder=DIR takes a Hugging Face model instead, without these scores."""
    given, overrides = take_words(words, "out", "folder")
    config = compose(overrides)
    if not given.get("out"):
        raise ConfigError("quantize needs a new folder; write textmill quantize out=DIR")
    out = local_path(given["out"], "out")
    from tasks.evaluation.quantize import quantize_folder

    if "folder" in given:
        folder, evaluated = local_path(given["folder"], "folder"), None
    else:
        stages = ("train", "shards", "tokenizer", "documents")
        train, shards, tokenizer, documents = _finished(
            config, stages, "no model is trained", "train"
        )
        folder, evaluated = train.path / "model", (documents, tokenizer, shards, train)
    report = quantize_folder(folder, out, config.quantize, evaluated, config.evaluate)
    if evaluated is None:
        say("bits per byte were not measured: only the model of a run has validation documents")
    show(json.dumps(report))
    return 0


def _finished(config: RunConfig, stages: Sequence[str], lack: str, flow: str) -> list[Artifact]:
    """The artifacts of stages, the latest stage first. Raises ConfigError that says what is missing
    (`lack`) and which flow makes it."""
    store, plan = decide(config, stages[0])
    found = []
    for step in (plan[name] for name in stages):
        if (artifact := store.find(step.node.stage, step.node.key)) is None:
            raise ConfigError(
                f"{lack} for this configuration{step.because}; run `textmill {flow}` with the same"
                " overrides"
            )
        found.append(artifact)
    return found
