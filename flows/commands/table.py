"""Lists what `textmill` can do: flows run stages, commands show, start, write or remove something.

Names and words only: `textmill --help` and tab completion read this and load nothing behind it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A flow or command, by the name that the command line gives it."""

    module: str
    function: str
    """A click command of that module, or a Prefect flow."""
    summary: str


@dataclass(frozen=True)
class FlowEntry(Entry):
    """A flow, which runs up to the stage `target`."""

    target: str


FLOWS = {
    "run": FlowEntry(
        "flows.pipeline", "pipeline", "everything, from raw text to the report", "report"
    ),
    "refresh": FlowEntry(
        "flows.pipeline", "refresh", "the data half: new input to token shards", "shards"
    ),
    "train": FlowEntry(
        "flows.pipeline", "train", "a trained model, with the data it still needs", "train"
    ),
    "tokenizer": FlowEntry(
        "flows.pipeline",
        "tokenizer",
        "a tokenizer, trained and measured; -m compares several",
        "tokenizer",
    ),
    "evaluate": FlowEntry("flows.pipeline", "evaluate", "quality of the trained model", "evaluate"),
    "bench": FlowEntry(
        "flows.pipeline", "bench", "speed of the trained model on this machine", "bench"
    ),
}

COMMANDS = {
    "plan": Entry("flows.commands.runs", "plan", "what a flow would run, and why; fetches nothing"),
    "explain": Entry("flows.commands.questions", "explain", "what happened to a document"),
    "hits": Entry(
        "flows.commands.questions", "hits", "evaluation items in documents, with the text of both"
    ),
    "replay": Entry("flows.commands.questions", "replay", "what other quality rules would keep"),
    "generate": Entry("flows.commands.models", "generate", "text after a prompt"),
    "export-shards": Entry(
        "flows.commands.models", "export_shards", "token shards for other engines"
    ),
    "up": Entry(
        "flows.commands.services",
        "up",
        "start a local Prefect server and worker, and leave them running",
    ),
    "down": Entry("flows.commands.services", "down", "stop what up and ui started"),
    "env": Entry(
        "flows.commands.services",
        "env",
        'for plain prefect and mlflow commands: eval "$(textmill env)"',
    ),
    "ui": Entry("flows.commands.services", "ui", "start the MLflow UI; show where both UIs are"),
    "verify": Entry(
        "flows.commands.verify",
        "verify",
        "read every artifact and name damaged files; --repair rebuilds what the overrides name",
    ),
    "gc": Entry(
        "flows.commands.unused",
        "gc",
        "list what no recent run refers to; --yes removes it, keep=10 runs",
    ),
    "help": Entry("flows.commands.settings", "help", "what a setting means"),
    "completion": Entry(
        "flows.commands.settings",
        "completion",
        'for tab completion: eval "$(textmill completion bash)"',
    ),
}
