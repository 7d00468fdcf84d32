"""Chooses the numbers that a run is compared by.

They are on the MLflow run of a pipeline, in the last line of a command, and in `textmill compare`.
`val_bpb` is that of `evaluate`, over whole documents with an interval; a run that ends with
training has that of its last validation, over packed sequences. `val_bpb_of` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from tasks.runtime.artifact import Artifact

OBJECTIVE = "val_bpb"
"""The number that runs are compared by, and sweeps are ranked by unless they say otherwise."""


class Number(NamedTuple):
    """A headline number: whether less or more of it is better, and where it comes from."""

    direction: Literal["minimize", "maximize"]
    stages: tuple[str, ...]
    """That measure it; the first one that a run reached counts."""
    names: tuple[str, ...]
    """In the artifact of each stage."""
    is_counter: bool = False

    def of(self, artifacts: Mapping[str, Artifact]) -> tuple[Any, str | None]:
        """The number and the stage that measured it."""
        for stage, name in zip(self.stages, self.names, strict=True):
            if stage in artifacts:
                made = artifacts[stage]
                value = (made.counters if self.is_counter else made.metrics).get(name)
                if isinstance(value, Mapping):
                    value = value.get("value", value.get("median"))
                if value is not None:
                    return value, stage
        return None, None


HEADLINE = {
    OBJECTIVE: Number("minimize", ("evaluate", "train"), (OBJECTIVE, OBJECTIVE)),
    "val_loss": Number("minimize", ("train",), ("final_val_loss",)),
    "train_loss": Number("minimize", ("train",), ("final_train_loss",)),
    "train_tokens_per_s": Number("maximize", ("train",), ("tokens_per_s",)),
    "decode_tok_s": Number("maximize", ("bench",), ("decode_tok_s",)),
    "prefill_tok_s": Number("maximize", ("bench",), ("prefill_tok_s",)),
    "documents_kept": Number("maximize", ("documents",), ("kept",), is_counter=True),
    "trained_tokens": Number("maximize", ("train",), ("tokens",), is_counter=True),
    "num_parameters": Number("minimize", ("train",), ("num_parameters",)),
    "vocab_size": Number("minimize", ("tokenizer",), ("vocab_size",)),
    "bigram_bpb": Number("minimize", ("evaluate",), ("bigram_bpb",)),
    "unigram_bpb": Number("minimize", ("evaluate",), ("unigram_bpb",)),
}

MEASURED_IN_TRAINING = (OBJECTIVE, "val_loss")
"""Headline numbers that each validation of a training has."""


def headline(artifacts: Mapping[str, Artifact]) -> dict[str, Any]:
    """The numbers of the stages that a run reached, the objective first; None for the others."""
    found = {name: number.of(artifacts) for name, number in HEADLINE.items()}
    values = {name: value for name, (value, _) in found.items()}
    return {OBJECTIVE: None, f"{OBJECTIVE}_of": found[OBJECTIVE][1]} | values
