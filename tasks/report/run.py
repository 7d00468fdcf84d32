"""One run as the report sees it: the artifacts by stage, the headline numbers, and what deserves a
warning."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from tasks.report.quantities import (
    Facts,
    count,
    fixed,
    numbers,
    percent,
    plural,
    share,
    significant,
    span,
)
from tasks.runtime.artifact import Artifact

FEW_VALIDATION_DOCUMENTS = 100
"""Below this many held-out documents the interval of a mean over documents is itself uncertain."""
OVERFIT_FRAC = 0.01
"""A last validation loss this far above the best one is worth a word."""
HARMLESS_EVENTS = ("preempted", "resumed", "skipped_step_loss_scale_overflow")
"""Events of training that change no result."""


@dataclass(frozen=True)
class Run:
    """Artifacts of one pipeline run, by stage name, in the order of the graph."""

    artifacts: Mapping[str, Artifact]

    def metrics(self, stage: str) -> Facts:
        return Facts(self.artifacts[stage].metrics)

    def counters(self, stage: str) -> Facts:
        return Facts(self.artifacts[stage].counters)

    def record(self, stage: str) -> Facts:
        return Facts(self.artifacts[stage].record)

    @property
    def documents_read(self) -> float | None:
        return self.counters("ingest").number("read")

    @property
    def documents_kept(self) -> float | None:
        return self.counters("documents").number("kept")

    @property
    def shard_tokens(self) -> float | None:
        """What there is to train on, each document as often as the mixture repeats it."""
        return self.metrics("shards").number("splits", "train", "tokens")

    @property
    def seen_tokens(self) -> float | None:
        """What training read over all its steps; less than the shards hold, or some of it several
        times. Padding is not a token."""
        places = self.counters("train").number("tokens")
        padding_frac = self.metrics("train").number("packing", "padding_frac") or 0
        return None if places is None else places * (1 - padding_frac)

    @cached_property
    def speed_withheld(self) -> str | None:
        """Why decode speed is not shown, or None where it may be."""
        correctness = Facts(self.metrics("bench").group("correctness"))
        passed, difference = correctness.value("passed"), correctness.number("fp64_max_abs_diff")
        if passed is True:
            return None
        if passed is None:
            return "the correctness check of cached decoding was not measured"
        wrong = [p for p in correctness.rows("answers") if p.value("passed") is False]
        if wrong:
            named = ", ".join(f"{p.text('name')}: {p.text('finding')}" for p in wrong)
            return f"answers of the engine are wrong ({named})"
        if difference is not None:
            shown = significant(difference)
            return f"logits with and without the cache differ by {shown} in float64"
        checks = correctness.rows("checks")
        failed = [check.text("name") or "?" for check in checks if check.value("passed") is False]
        names = ", ".join(failed) or "no difference stated"
        return f"the correctness check of cached decoding failed ({names})"

    @cached_property
    def interval_name(self) -> str:
        """What the intervals of the evaluation are, as far as it says so."""
        policy = self.metrics("evaluate").text("policy", "interval") or ""
        level = re.match(r"\d+(\.\d+)? ?%", policy)
        # A line never ends before the sign.
        return f"{level[0]} interval".replace(" ", "\u00a0") if level else "confidence interval"

    def against_baseline(self, name: str) -> str | None:
        """How the model's bits per byte compare with the `unigram` or `bigram` baseline, beyond the
        interval or not."""
        evaluate = self.metrics("evaluate")
        value, low, high = Facts(evaluate.group("val_bpb")).each("value", "low", "high")
        baseline = evaluate.number(f"{name}_bpb")
        if value is None or baseline is None or baseline <= 0:
            return None
        named = f"the {name} baseline ({fixed(baseline)})"
        equal, where = baseline, "which lies inside the interval"
        gain = Facts(evaluate.group("gain_over_best_baseline"))
        if gain.text("baseline") == name and gain.number("low") is not None:
            # Both models on the same documents, which says more than the interval of one.
            low, high = gain.each("low", "high")
            equal, where = 0.0, "as the interval of the gain over it includes 0"
        if high is not None and low is not None and low <= equal <= high:
            return f"not distinguishable from {named}, {where}"
        change = percent(abs(1 - value / baseline))
        return f"{change} {'below' if value < baseline else 'above'} {named}"

    def headline(self) -> dict[str, float | None]:
        """The numbers on the cards, for whoever tracks runs."""
        evaluate, speed = self.metrics("evaluate"), self.metrics("bench").number("decode_tok_s")
        return {
            "documents_kept": self.documents_kept,
            "train_shard_tokens": self.shard_tokens,
            "train_seen_tokens": self.seen_tokens,
            "vocab_size": self.metrics("tokenizer").number("vocab_size"),
            "val_bpb": evaluate.number("val_bpb", "value"),
            "val_bpb_low": evaluate.number("val_bpb", "low"),
            "val_bpb_high": evaluate.number("val_bpb", "high"),
            "unigram_bpb": evaluate.number("unigram_bpb"),
            "bigram_bpb": evaluate.number("bigram_bpb"),
            "decode_tok_s": None if self.speed_withheld else speed,
        }

    @cached_property
    def warnings(self) -> list[str]:
        """What a reader must know before trusting a number, gravest first."""
        checks = (
            self._warn_of_speed(),
            self._warn_of_baselines(),
            self._warn_of_small_validation(),
            self._warn_of_overfitting(),
            self._warn_of_events(),
            self._warn_of_quarantine(),
            earlier_documents(self.artifacts),
            self._warn_of_accounting(),
            *self._warn_of_tokenizer(),
        )
        return [warning for warning in checks if warning]

    def _warn_of_speed(self) -> str | None:
        return f"Decode speed is withheld: {self.speed_withheld}." if self.speed_withheld else None

    def _warn_of_baselines(self) -> str | None:
        evaluate = self.metrics("evaluate")
        gain = Facts(evaluate.group("gain_over_best_baseline"))
        low, baseline = gain.number("low"), gain.text("baseline")
        not_shown = "The model is not shown to be better than the {} baseline: {}."
        if low is not None and baseline:
            # Both models were compared on the same documents, which says more than two intervals.
            paired = f"the gain over it is {interval_text(gain)} bits per byte"
            return not_shown.format(baseline, paired) if low <= 0 else None
        value, high = Facts(evaluate.group("val_bpb")).each("value", "high")
        if value is None:
            return None
        for name in ("unigram", "bigram"):
            known = evaluate.number(f"{name}_bpb")
            if known is not None and known <= (value if high is None else high):
                return not_shown.format(name, self.against_baseline(name))
        return None

    def _warn_of_small_validation(self) -> str | None:
        held_out = self.metrics("evaluate").number("val_bpb", "num_documents")
        if held_out is None or held_out >= FEW_VALIDATION_DOCUMENTS:
            return None
        return (
            f"The validation set has only {plural(held_out, 'document')}: intervals over fewer than"
            f" {FEW_VALIDATION_DOCUMENTS} documents are rough, and numbers by source or language"
            " are rougher."
        )

    def _warn_of_overfitting(self) -> str | None:
        curve = self.metrics("train").rows("val_curve")
        losses = [n for row in curve if (n := row.number("val_loss")) is not None]
        if len(losses) < 2 or losses[-1] <= min(losses) * (1 + OVERFIT_FRAC):
            return None
        return (
            f"Validation loss rose from {fixed(min(losses))} to {fixed(losses[-1])} nats per token"
            " before training ended."
        )

    def _warn_of_events(self) -> str | None:
        if not (found := events_text(self.metrics("train"), leave_out=HARMLESS_EVENTS)):
            return None
        return (
            f"Not all of training went well: {found}; metrics.jsonl of the train artifact has the"
            " steps."
        )

    def _warn_of_quarantine(self) -> str | None:
        quarantined, lost = self.counters("ingest").each("quarantined", "lost_estimate")
        if not quarantined:
            return None
        of_read = share(quarantined, self.documents_read)
        more = f" Damaged files would hold some {count(lost)} more, by their size." if lost else ""
        return (
            f"{plural(quarantined, 'record')} ({of_read} of those read) could not be read and went"
            f" to quarantine; see Documents.{more}"
        )

    def _warn_of_accounting(self) -> str | None:
        for stage, artifact in self.artifacts.items():
            facts = Facts(artifact.counters)
            read, kept, quarantined = facts.each("read", "kept", "quarantined")
            if read is None or kept is None:
                continue
            total = kept + sum(numbers(facts.group("dropped")).values()) + (quarantined or 0)
            if read != total:
                return (
                    f"{stage} does not add up: {count(read)} read, {count(total)} kept, dropped or"
                    " quarantined."
                )
        return None

    def _warn_of_tokenizer(self) -> list[str]:
        round_trip, unknown = self.metrics("tokenizer").each("round_trip_frac", "unknown_frac")
        found = []
        if round_trip is not None and round_trip < 1:
            found.append(
                f"Only {percent(round_trip)} of documents survive encoding and decoding unchanged."
            )
        if unknown:
            found.append(f"{percent(unknown)} of validation tokens are unknown to the vocabulary.")
        return found


def earlier_documents(artifacts: Mapping[str, Artifact]) -> str | None:
    """One sentence where a run has read documents again that earlier runs had; None elsewhere.

    Deduplication against an index (`dedup.chain`, `dedup.index`) keeps what is new. So a source
    that grows, read whole each time, gives its new documents only, which must not look like a loss.
    """
    if "dedup" not in artifacts:
        return None
    counters = Facts(artifacts["dedup"].counters)
    read_again, duplicates, read = counters.each("read_again", "earlier_duplicates", "read")
    if not read_again:
        return None
    return (
        f"Only new documents are in this run: {count(duplicates)} of {count(read)} that dedup read"
        f" are duplicates of what earlier runs kept ({count(read_again)} of them the very same"
        " documents, read again) and stay with those runs. For all in one, run the same source"
        " without dedup.chain and dedup.index."
    )


def events_text(train: Facts, leave_out: Collection[str] = ()) -> str:
    """How often each event happened in training, as `rollback × 1, slow rank × 3`; empty where none
    did."""
    events = numbers(train.group("events")).items()
    counts = [(name.replace("_", " "), n) for name, n in events if n and name not in leave_out]
    return ", ".join(f"{name} × {count(n)}" for name, n in counts)


def interval_text(facts: Facts) -> str:
    """`value (low–high)` of a measured quantity."""
    value, low, high = facts.each("value", "low", "high")
    if value is None or low is None or high is None:
        return fixed(value)
    return f"{fixed(value)} ({span(low, high)})"
