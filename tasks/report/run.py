"""One run as the report sees it: the artifacts by stage, the headline numbers, and what deserves a
warning."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from tasks.report.earlier_runs import earlier_documents
from tasks.report.quantities import (
    Facts,
    count,
    fixed,
    number,
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
        places, padding_frac = (
            self.counters("train").number("tokens"),
            self.metrics("train").number("packing", "padding_frac"),
        )
        return None if places is None else places * (1 - (padding_frac or 0))

    @cached_property
    def speed_withheld(self) -> str | None:
        """Why decode speed is not shown, or None where it may be."""
        passed = self.metrics("bench").value("correctness", "passed")
        if passed is True:
            return None
        if passed is None:
            return "the correctness check of cached decoding was not measured"
        difference = self.metrics("bench").number("correctness", "fp64_max_abs_diff")
        if difference is None:
            checks = self.metrics("bench").rows("correctness", "checks")
            failed = [
                check.text("name") or "?" for check in checks if check.value("passed") is False
            ]
            return (
                "the correctness check of cached decoding failed"
                f" ({', '.join(failed) or 'no difference stated'})"
            )
        return f"logits with and without the cache differ by {significant(difference)} in float64"

    @cached_property
    def interval_name(self) -> str:
        """What the intervals of the evaluation are, as far as it says so."""
        policy = self.metrics("evaluate").text("policy", "interval") or ""
        level = re.match(r"\d+(\.\d+)? ?%", policy)
        return f"{level[0]} interval" if level else "confidence interval"

    def against_baseline(self, name: str) -> str | None:
        """How the model's bits per byte compare with the `unigram` or `bigram` baseline, beyond the
        interval or not."""
        evaluate = self.metrics("evaluate")
        value, high, low = (evaluate.number("val_bpb", key) for key in ("value", "high", "low"))
        baseline = evaluate.number(f"{name}_bpb")
        if value is None or baseline is None or baseline <= 0:
            return None
        change = percent(abs(1 - value / baseline))
        if high is not None and low is not None and low <= baseline <= high:
            return (
                f"not distinguishable from the {name} baseline ({fixed(baseline)}), which lies"
                " inside the interval"
            )
        return (
            f"{change} {'below' if value < baseline else 'above'} the {name} baseline"
            f" ({fixed(baseline)})"
        )

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
        if low is not None and baseline:
            paired = f"the gain over it is {interval_text(gain)} bits per byte"
            return (
                f"The model is not shown to be better than the {baseline} baseline: {paired}."
                if low <= 0
                else None
            )
        value, high = evaluate.number("val_bpb", "value"), evaluate.number("val_bpb", "high")
        for name in ("unigram", "bigram"):
            known = evaluate.number(f"{name}_bpb")
            if (
                value is not None
                and known is not None
                and (high if high is not None else value) >= known
            ):
                return (
                    f"The model is not shown to be better than the {name} baseline:"
                    f" {self.against_baseline(name)}."
                )
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
        losses = [
            n
            for row in self.metrics("train").rows("val_curve")
            if (n := row.number("val_loss")) is not None
        ]
        if len(losses) < 2 or losses[-1] <= min(losses) * (1 + OVERFIT_FRAC):
            return None
        return (
            f"Validation loss rose from {fixed(min(losses))} to {fixed(losses[-1])} nats per token"
            " before training ended."
        )

    def _warn_of_events(self) -> str | None:
        found = events_text(
            self.metrics("train"),
            leave_out=("preempted", "resumed", "skipped_step_loss_scale_overflow"),
        )
        return (
            f"Not all of training went well: {found}; metrics.jsonl of the train artifact has the"
            " steps."
            if found
            else None
        )

    def _warn_of_quarantine(self) -> str | None:
        quarantined = self.counters("ingest").number("quarantined")
        if not quarantined:
            return None
        of_read, lost = (
            share(quarantined, self.documents_read),
            self.counters("ingest").number("lost_estimate"),
        )
        more = f" Damaged files would hold some {count(lost)} more, by their size." if lost else ""
        return (
            f"{plural(quarantined, 'record')} ({of_read} of those read) could not be read and went"
            f" to quarantine; see Documents.{more}"
        )

    def _warn_of_accounting(self) -> str | None:
        for stage, artifact in self.artifacts.items():
            facts = Facts(artifact.counters)
            read, kept = facts.number("read"), facts.number("kept")
            dropped = [
                n for value in facts.group("dropped").values() if (n := number(value)) is not None
            ]
            total = (kept or 0) + sum(dropped) + (facts.number("quarantined") or 0)
            if read is not None and kept is not None and read != total:
                return (
                    f"{stage} does not add up: {count(read)} read, {count(total)} kept, dropped or"
                    " quarantined."
                )
        return None

    def _warn_of_tokenizer(self) -> list[str]:
        tokenizer = self.metrics("tokenizer")
        round_trip, unknown = tokenizer.number("round_trip_frac"), tokenizer.number("unknown_frac")
        found = []
        if round_trip is not None and round_trip < 1:
            found.append(
                f"Only {percent(round_trip)} of documents survive encoding and decoding unchanged."
            )
        if unknown:
            found.append(f"{percent(unknown)} of validation tokens are unknown to the vocabulary.")
        return found


def events_text(train: Facts, leave_out: Collection[str] = ()) -> str:
    """How often each event happened in training, as `rollback × 1, slow rank × 3`; empty where none
    did."""
    counts = {
        name: n
        for name, value in train.group("events").items()
        if name not in leave_out and (n := number(value))
    }
    return ", ".join(f"{name.replace('_', ' ')} × {count(n)}" for name, n in sorted(counts.items()))


def interval_text(facts: Facts, digits: int = 3) -> str:
    """`value (low–high)` of a measured quantity."""
    value, low, high = facts.number("value"), facts.number("low"), facts.number("high")
    if value is None or low is None or high is None:
        return fixed(value, digits)
    return f"{fixed(value, digits)} ({span(low, high, digits)})"
