"""Chooses the numbers that a run is compared by.

They are on the MLflow run of a pipeline, in the last line of a command, and in `textmill compare`.
`val_bpb` is that of `evaluate`, over whole documents with an interval; a run that ends with
training has that of its last validation, over packed sequences. `val_bpb_of` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.runtime.artifact import Artifact

OBJECTIVE = "val_bpb"
"""The number that sweeps are ranked by; less is better."""


def headline(artifacts: Mapping[str, Artifact]) -> dict[str, Any]:
    """The numbers of the stages that a run reached, the objective first; None for the others."""

    def metric(stage: str, name: str) -> Any:
        value = artifacts[stage].metrics.get(name) if stage in artifacts else None
        return value.get("value", value.get("median")) if isinstance(value, Mapping) else value

    def counter(stage: str, name: str) -> Any:
        return artifacts[stage].counters.get(name) if stage in artifacts else None

    evaluated = metric("evaluate", OBJECTIVE)
    found = {"evaluate": evaluated, "train": metric("train", OBJECTIVE)}
    judge = next((stage for stage, value in found.items() if value is not None), None)
    return {
        OBJECTIVE: found[judge] if judge else None,
        f"{OBJECTIVE}_of": judge,
        "val_loss": metric("train", "final_val_loss"),
        "train_loss": metric("train", "final_train_loss"),
        "train_tokens_per_s": metric("train", "tokens_per_s"),
        "decode_tok_s": metric("bench", "decode_tok_s"),
        "prefill_tok_s": metric("bench", "prefill_tok_s"),
        "documents_kept": counter("documents", "kept"),
        "trained_tokens": counter("train", "tokens"),
        "num_parameters": metric("train", "num_parameters"),
        "vocab_size": metric("tokenizer", "vocab_size"),
        "bigram_bpb": metric("evaluate", "bigram_bpb"),
        "unigram_bpb": metric("evaluate", "unigram_bpb"),
    }
