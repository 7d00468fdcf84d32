"""Lists what `textmill` can do: flows run stages, commands show, start, write or remove something.

Names and words only: `textmill --help` and tab completion read this and load nothing behind it.
"""

from __future__ import annotations

from typing import NamedTuple


class FlowEntry(NamedTuple):
    """A flow of `flows.pipeline`, the stage up to which it runs, and its deployment in
    prefect.yaml."""

    flow: str
    target: str
    summary: str
    deployment: str


class Entry(NamedTuple):
    """A command, which is the function of its name in a module of `flows.commands`."""

    module: str
    summary: str


FLOWS = {
    "run": FlowEntry("pipeline", "report", "everything, from raw text to the report", "local"),
    "refresh": FlowEntry(
        "refresh", "shards", "the data half: new input to token shards", "nightly"
    ),
    "train": FlowEntry(
        "train", "train", "a trained model, with the data it still needs", "local-train"
    ),
    "tokenizer": FlowEntry(
        "tokenizer",
        "tokenizer",
        "a tokenizer, trained and measured; -m compares several",
        "local-tokenizer",
    ),
    "evaluate": FlowEntry("evaluate", "evaluate", "quality of the trained model", "local-evaluate"),
    "bench": FlowEntry(
        "bench",
        "bench",
        "speed of the trained model, or of bench.folder=DIR; compare A B",
        "local-bench",
    ),
}


def command_of(flow: str) -> str:
    """The command that runs a flow."""
    return next(command for command, entry in FLOWS.items() if entry.flow == flow)


COMMANDS = {
    "plan": Entry("runs", "what a flow would run, and why; fetches nothing"),
    "doctor": Entry("machine.doctor", "check this machine, and say what to fix"),
    "calibrate": Entry("machine.calibrate", "measure this machine, for plan hardware=this"),
    "explain": Entry("questions", "what happened to a document"),
    "hits": Entry("questions", "evaluation items in documents, with the text of both"),
    "replay": Entry("questions", "what other quality rules would keep"),
    "compare": Entry("compare", "runs, or the points of a sweep, with intervals and differences"),
    "fit-scaling": Entry("planning.scaling", "how loss falls with weights and tokens in a sweep"),
    "generate": Entry("models", "text after a prompt"),
    "serve": Entry("models", "an OpenAI-compatible server for a model, with a chat page"),
    "quantize": Entry("models", "the model with weights in 8 or 4 bits, in a new folder"),
    "export": Entry("export", "the model of a step, also while training goes on, in a new folder"),
    "export-shards": Entry("models", "token shards for other engines"),
    "exchange-signatures": Entry("models", "min-hashes to datasketch, and matches of its own"),
    "status": Entry("queue", "live, queued and dead runs, their progress, what comes next"),
    "submit": Entry("queue", "check a run and queue it for the worker: textmill submit refresh …"),
    "schedule": Entry("queue", "run a flow on a schedule, with its own overrides; list schedules"),
    "up": Entry("services", "start a local Prefect server and worker, and leave them running"),
    "down": Entry("services", "stop what up and ui started"),
    "env": Entry("services", 'for plain prefect and mlflow commands: eval "$(textmill env)"'),
    "ui": Entry("services", "start the MLflow UI; show where both UIs are"),
    "verify": Entry("verify", "read every artifact, name damaged files, and --repair them"),
    "gc": Entry("unused", "list what no recent run refers to; --yes removes it, keep=10 runs"),
    "help": Entry("settings", "what a setting or group means: textmill help quality.thresholds"),
    "completion": Entry("settings", 'for tab completion: eval "$(textmill completion bash)"'),
}
