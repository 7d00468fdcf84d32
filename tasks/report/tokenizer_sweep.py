"""Compares several tokenizers of one corpus on a page, with what each costs a model.

A larger vocabulary needs fewer tokens for a text and makes each one dearer, by the embedding and
the output layer. What counts is their product: training FLOPs per byte of text = FLOPs per token of
the configured model with that vocabulary / bytes per token, measured on held-out documents where
there are any. Recommended is the smallest vocabulary within `TOLERANCE` of the least FLOPs per
byte: where sizes are as good, a smaller one leaves more memory, and more examples of each token.

Reads the metrics of finished tokenizer artifacts; writes one page without outside references.
Leaves out: what a vocabulary does to quality at equal compute, which a sweep of the whole pipeline
measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_core.model.config import ModelConfig
from tasks.report.charts import Series, lines
from tasks.report.markup import Markup
from tasks.report.page import Card, Section, figure, legend, page, table
from tasks.runtime.artifact import Artifact

TOLERANCE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A tokenizer and its price in one model."""

    kind: str
    key: str
    vocab_size: int
    bytes_per_token: float
    fertility: float
    single_character_frac: float
    embedding_parameters: int
    """Weights that the vocabulary decides: the embedding, and the output layer where it is not
    tied."""
    flops_per_byte: float

    @property
    def name(self) -> str:
        return f"{self.kind} {self.vocab_size:,}"


def candidates(tokenizers: Sequence[Artifact], model: ModelConfig, seq_len: int) -> list[Candidate]:
    """One for each artifact, by size; equal artifacts once."""
    found = {}
    for artifact in tokenizers:
        metrics = artifact.metrics
        per_token = (
            metrics["bytes_per_token"].get("validation") or metrics["bytes_per_token"]["train"]
        )
        size = metrics["vocab_size"]
        priced = replace(model, vocab_size=size)
        found[artifact.key] = Candidate(
            metrics["kind"],
            artifact.key,
            size,
            per_token,
            metrics["fertility"],
            metrics["single_character_frac"],
            size * model.dim * (1 if model.tied_embeddings else 2),
            priced.training_flops_per_token(seq_len) / per_token if per_token else float("inf"),
        )
    return sorted(found.values(), key=lambda c: (c.vocab_size, c.name, c.key))


def recommend(found: Sequence[Candidate]) -> Candidate:
    """The smallest vocabulary whose FLOPs per byte are within `TOLERANCE` of the least."""
    least = min(c.flops_per_byte for c in found)
    return next(c for c in found if c.flops_per_byte <= least * (1 + TOLERANCE))


def sweep_page(found: Sequence[Candidate], model: ModelConfig, seq_len: int) -> str:
    """The comparison as one HTML page."""
    best = recommend(found)
    least = min(c.flops_per_byte for c in found)
    kinds = sorted({c.kind for c in found})
    tones = ("a", "b", "r1", "r2")

    def chart(value: str, scale: float, y_label: str) -> Callable[[int], Markup]:
        series = [
            Series(
                kind,
                [
                    (c.embedding_parameters / 1e6, getattr(c, value) * scale)
                    for c in found
                    if c.kind == kind
                ],
                tones[k % len(tones)],
                dots=True,
            )
            for k, kind in enumerate(kinds)
        ]
        return lambda width: lines(
            series, width, x_label="embedding weights, millions", y_label=y_label
        )

    keys = (
        legend(*((f"line {tones[k % len(tones)]}", kind) for k, kind in enumerate(kinds)))
        if len(kinds) > 1
        else None
    )
    gain = figure(
        "Bytes per token against the weights that the vocabulary costs",
        chart("bytes_per_token", 1.0, "bytes per token"),
        "Higher is fewer tokens for the same text.",
        keys,
    )
    price = figure(
        "Training compute per byte of text",
        chart("flops_per_byte", 1e-6, "MFLOP per byte"),
        f"Lower is cheaper: FLOPs per token of this model at seq_len {seq_len}, over bytes per"
        " token.",
        keys,
    )
    rows = [
        [
            c.kind,
            f"{c.vocab_size:,}" + (" ✓" if c == best else ""),
            f"{c.bytes_per_token:.3f}",
            f"{c.fertility:.2f}",
            f"{c.single_character_frac:.1%}",
            f"{c.embedding_parameters:,}",
            f"{c.flops_per_byte / 1e6:.3f}",
            f"{c.flops_per_byte / least - 1:+.1%}",
            c.key,
        ]
        for c in found
    ]
    columns = (
        "kind",
        "vocabulary",
        "bytes/token",
        "tokens/word",
        "one character",
        "weights",
        "MFLOP/byte",
        "to least",
        "key",
    )
    body = replace(model, vocab_size=best.vocab_size)
    share = best.embedding_parameters / max(1, body.num_parameters())
    cards = [
        Card(
            "recommended",
            best.name,
            f"{best.flops_per_byte / 1e6:.3f} MFLOP per byte",
            "least compute per byte, or nearly",
        ),
        Card(
            "bytes per token",
            f"{best.bytes_per_token:.3f}",
            "UTF-8",
            "held-out documents where there are any",
        ),
        Card(
            "embedding",
            f"{share:.0%}",
            f"{best.embedding_parameters:,} weights",
            "share of the model's weights",
        ),
    ]
    note = (
        f"✓ Recommended is the smallest vocabulary within {TOLERANCE:.0%} of the least compute per"
        " byte."
    )
    section = Section(
        "comparison", "Comparison", "", [table(None, columns, rows, note, left=1), gain, price]
    )
    title = (
        f"{len(found)} tokenizers for a model of width {model.dim} and {model.num_layers} layers"
    )
    return page("Tokenizers compared", title, cards, None, [section], "Sweep")


def write_sweep(found: Sequence[Candidate], model: ModelConfig, seq_len: int, file: Path) -> Path:
    """Write the page; the file it is in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(sweep_page(found, model, seq_len), "utf-8")
    return file
