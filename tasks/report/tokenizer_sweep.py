"""Compares tokenizers of one corpus on a page, with what each costs a model.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

from llm_core.model.config import ModelConfig
from llm_core.printing import percent
from tasks.report.charts import Chart, Series, lines
from tasks.report.page import Card, Section, page
from tasks.runtime.artifact import Artifact

TOLERANCE = 0.01
TONES = ("a", "b", "r1", "r2")
"""Colours of the kinds of tokenizers."""


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
        metrics, size = artifact.metrics, artifact.metrics["vocab_size"]
        of_split = metrics["bytes_per_token"]
        per_token = of_split.get("validation") or of_split["train"]
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
    best = recommend(found)
    least = min(c.flops_per_byte for c in found)
    tones = dict(zip(sorted({c.kind for c in found}), cycle(TONES)))

    def chart(value: str, scale: float, y_label: str) -> Chart:
        series = []
        for kind, tone in tones.items():
            own = [c for c in found if c.kind == kind]
            points = [(c.embedding_parameters / 1e6, getattr(c, value) * scale) for c in own]
            series.append(Series(kind, points, tone, dots=True))
        return partial(lines, series, x_label="embedding weights, millions", y_label=y_label)

    rows = [
        (
            c.kind,
            f"{c.vocab_size:,}{' ✓' if c == best else ''}",
            f"{c.bytes_per_token:.3f}",
            f"{c.fertility:.2f}",
            percent(c.single_character_frac, ".1"),
            f"{c.embedding_parameters:,}",
            f"{c.flops_per_byte / 1e6:.3f}",
            percent(c.flops_per_byte / least - 1, "+.1"),
            c.key,
        )
        for c in found
    ]
    body = replace(model, vocab_size=best.vocab_size)
    share = best.embedding_parameters / max(1, body.num_parameters())
    price = f"{best.flops_per_byte / 1e6:.3f} MFLOP per byte"
    density, weights = f"{best.bytes_per_token:.3f}", f"{best.embedding_parameters:,} weights"
    cards = [
        Card("recommended", best.name, [price], "least compute per byte, or nearly"),
        Card("bytes per token", density, ["UTF-8"], "held-out documents where there are any"),
        Card("embedding", percent(share), [weights], "share of the model's weights"),
    ]
    values = {
        "rows": rows,
        "tolerance": percent(TOLERANCE),
        "legend": [(f"line {tone}", kind) for kind, tone in tones.items()],
        "density": chart("bytes_per_token", 1.0, "bytes per token"),
        "price": chart("flops_per_byte", 1e-6, "MFLOP per byte"),
        "seq_len": seq_len,
    }
    section = Section("comparison", "Comparison", "", values)
    shape = f"width {model.dim} and {model.num_layers} layers"
    subtitle = f"{len(found)} tokenizers for a model of {shape}"
    return page("Tokenizers compared", subtitle, cards, None, [section], "Sweep")


def write_sweep(found: Sequence[Candidate], model: ModelConfig, seq_len: int, file: Path) -> Path:
    """Write the page; the file it is in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(sweep_page(found, model, seq_len), "utf-8")
    return file
