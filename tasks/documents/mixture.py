"""Decides how often a document is read in one epoch: shares of sources and languages, temperature,
caps, up-sampling.

The training text is divided into groups of one source and one language. A document counts `copies`
times: once, or as often as `cluster_repeats` says for the size of its cluster of duplicates
(FineWeb 2, Penedo et al. 2025, "rehydration"), times what `bucket_repeats` says for the bucket that
a score puts it in (`tasks.quality.buckets`). Shares of sources and of languages that are asked for
are met together by iterative proportional fitting (Deming and Stephan 1940): within what they ask,
groups keep the proportions of the corpus. `temperature` T gives labels without a share their part
of what is left in proportion to n^(1/T) (Devlin et al. 2018; Conneau et al. 2020). The groups are
then scaled to `target_bytes`; what a group cannot give within `max_repeats` the others give in
proportion, as in UniMax (Chung et al. 2023).

A group gets a rate, a document copies · rate repeats. The whole part is certain, the fraction is
given or not by a keyed hash of the document's id: the same for any order and number of workers, and
a larger rate only adds. Validation documents are read once. Cost: the number of groups; nothing
here sees a document's text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from llm_core.config import ConfigError, check_bounds
from llm_core.data.order import hash_ids, mix
from llm_core.printing import percent
from tasks.corpus.named_labels import NAMES_LANGUAGES, NAMES_SOURCES
from tasks.corpus.score_cuts import BUCKETS
from tasks.corpus.tally import Tally, largest
from tasks.runtime.stage import StageFailure

AMOUNTS = ("bytes", "planned_bytes", "reached_bytes", "documents")
MAX_FITTING_ROUNDS = 500
FITTED = 1e-9
"""Relative distance from the asked shares at which fitting ends."""
TOLERATED = 1e-3
"""Relative distance that is left only where two shares contradict each other."""
EXACT_DIGITS = 9
"""Repeats are rounded to this many decimals, so that rounding of a rate of 1 loses no document."""


@dataclass(frozen=True)
class MixtureConfig:
    """What share of an epoch each source and language has. The default reads every document
    once."""

    source_frac: dict[str, float] = field(default_factory=dict, metadata=NAMES_SOURCES)
    """{source: share of the training bytes}; other sources divide the rest in proportion to their
    size. 0 leaves a source out."""
    language_frac: dict[str, float] = field(default_factory=dict, metadata=NAMES_LANGUAGES)
    """{identified language: share of the training bytes}; other languages divide the rest in
    proportion to their size."""
    temperature: float = 1.0
    """Flattens the shares that are not given. 1 keeps them in proportion to size; large values make
    them equal."""
    temperature_over: Literal["language", "source"] = "language"
    """What the temperature applies to."""
    cluster_repeats: dict[str, int] = field(default_factory=dict)
    """{least size of a cluster of duplicates: copies of its survivor}; smaller clusters count
    once."""
    bucket_repeats: dict[str, int] = field(default_factory=dict)
    """{head, middle or tail of `quality.buckets`: copies of a document in it}, multiplied by those
    of its cluster; others count once."""
    max_repeats: float = 8.0
    """Most times that a document is read in one epoch."""
    target_bytes: int | None = None
    """Training bytes of one epoch. Null: all that is not left out, copies included."""
    seed: int = 0
    """Another seed repeats other documents where the number of copies is a fraction."""

    def __post_init__(self) -> None:
        check_bounds(self, temperature=(1, None), max_repeats=(1, None))
        check_bounds(self, target_bytes=(1, None), seed=(0, None))
        for name in ("source_frac", "language_frac"):
            shares = getattr(self, name)
            for label, frac in shares.items():
                if not 0 <= frac <= 1:
                    raise ConfigError(f"{name}.{label} ({frac}) must be from 0 to 1; try 0.5")
            if sum(shares.values()) > 1 + 1e-9:
                raise ConfigError(
                    f"{name} adds up to {sum(shares.values()):g}, but the shares of one epoch must"
                    " not add up to more than 1; lower some"
                )
        for size, copies in self.cluster_repeats.items():
            if not size.isdecimal() or int(size) < 1 or copies < 0:
                raise ConfigError(
                    f"cluster_repeats ({size}: {copies}) must map sizes of at least 1 to copies of"
                    " at least 0; try {2: 2, 5: 3}"
                )
        for bucket, copies in self.bucket_repeats.items():
            if bucket not in BUCKETS or copies < 0:
                raise ConfigError(
                    f"bucket_repeats ({bucket}: {copies}) must map buckets ({', '.join(BUCKETS)})"
                    " to copies of at least 0; try {head: 2, tail: 0}"
                )

    def copies_of(
        self, cluster_sizes: np.ndarray, buckets: Sequence[str | None] | None = None
    ) -> np.ndarray:
        """int64: how often a document of this cluster size and bucket counts, before any rate."""
        table = sorted((int(size), copies) for size, copies in self.cluster_repeats.items())
        least, copies = np.array([0, *(s for s, _ in table)]), np.array([1, *(c for _, c in table)])
        found = copies[np.searchsorted(least, cluster_sizes, "right") - 1].astype(np.int64)
        if buckets is None or not self.bucket_repeats:
            return found
        return found * np.array([self.bucket_repeats.get(b or "", 1) for b in buckets], np.int64)


@dataclass(frozen=True)
class Cell:
    """Training bytes of one source and language whose documents count `copies` times."""

    source: str
    language: str
    copies: int
    num_bytes: int


@dataclass(frozen=True)
class Mixture:
    """The decided rates; a label that had no training text when it was decided has rate 1."""

    rates: Mapping[tuple[str, str], float]
    planned_bytes: Mapping[tuple[str, str], float]

    def to_payload(self) -> list[list[Any]]:
        return [[source, language, rate] for (source, language), rate in sorted(self.rates.items())]


def plan_mixture(cells: Sequence[Cell], config: MixtureConfig) -> Mixture:
    """The rate of each group, so that an epoch has the wanted shares and size.

    Raises StageFailure where a named source or language is not in the corpus, or shares contradict
    each other.
    """
    sources, languages = sorted({c.source for c in cells}), sorted({c.language for c in cells})
    for name, shares, labels in (
        ("source", config.source_frac, sources),
        ("language", config.language_frac, languages),
    ):
        for label in sorted(shares):
            if label not in labels:
                known = ", ".join(labels[:10]) + ("…" if len(labels) > 10 else "")
                raise StageFailure(
                    f"documents.mixture.{name}_frac names {label}, which no training document has;"
                    f" there are: {known}"
                )
    mass = np.zeros((len(sources), len(languages)))
    groups: dict[tuple[str, str], Counter[int]] = {}
    for cell in cells:
        place = sources.index(cell.source), languages.index(cell.language)
        mass[place] += cell.copies * cell.num_bytes
        groups.setdefault((cell.source, cell.language), Counter())[cell.copies] += cell.num_bytes
    wanted = _fit(
        mass,
        _marginal(mass.sum(1), sources, config, "source"),
        _marginal(mass.sum(0), languages, config, "language"),
    )
    capacity = {
        # Documents with 0 copies cannot fill anything.
        group: config.max_repeats * (by_copies.total() - by_copies[0])
        for group, by_copies in groups.items()
    }
    share_of = {(s, lang): wanted[sources.index(s), languages.index(lang)] for s, lang in groups}
    total = float(config.target_bytes or mass[wanted > 0].sum())
    planned = _fill(share_of, capacity, total)
    rates = {
        group: _rate(groups[group], planned[group], config.max_repeats) for group in sorted(groups)
    }
    return Mixture(rates, planned)


def repeats_of(
    ids: np.ndarray, copies: np.ndarray, rates: np.ndarray, config: MixtureConfig
) -> np.ndarray:
    """int32: how often each document is read in one epoch. ids: uint8[documents, 16]."""
    often = np.round(np.minimum(copies * rates, config.max_repeats), EXACT_DIGITS)
    whole = np.floor(often)
    # Mixed once more: the order of the shards uses the same hash, and repeats must not come at one
    # end of it.
    hashes = mix(hash_ids(ids, config.seed) ^ np.uint64(0x9E3779B97F4A7C15))
    place = hashes.astype(np.float64) / 2.0**64
    return (whole + (place < often - whole)).astype(np.int32)


def mixture_metrics(
    cells: Sequence[Cell], mixture: Mixture, epoch: Mapping[str, Any], config: MixtureConfig
) -> dict[str, Any]:
    """Bytes available, planned and reached in one training epoch, by source and by language."""
    amounts = [((cell.source, cell.language), "bytes", cell.num_bytes) for cell in cells]
    for group, planned in sorted(mixture.planned_bytes.items()):
        amounts.append((group, "planned_bytes", round(planned)))
    for label, entry in epoch.items():
        source, _, language = label.rpartition("\t")
        amounts.append(((source, language), "reached_bytes", entry["bytes"]))
        amounts.append(((source, language), "documents", entry["documents"]))
    metrics: dict[str, Any] = {"configured": config != MixtureConfig()}
    for place, axis in enumerate(("by_source", "by_language")):
        tally: Tally = {}
        for group, name, amount in amounts:
            tally.setdefault(group[place], dict.fromkeys(AMOUNTS, 0))[name] += amount
        metrics[axis] = largest(tally)
    for name in AMOUNTS[:3]:
        metrics[name] = sum(entry[name] for entry in metrics["by_language"].values())
    return metrics


def _marginal(
    mass: np.ndarray,
    labels: Sequence[str],
    config: MixtureConfig,
    axis: Literal["source", "language"],
) -> np.ndarray | None:
    """Wanted shares of one axis, or None where nothing is asked of it."""
    shares = config.source_frac if axis == "source" else config.language_frac
    flattened = config.temperature > 1 and config.temperature_over == axis
    if not shares and not flattened:
        return None
    natural = (mass / max(mass.sum(), 1)) ** (1 / config.temperature if flattened else 1)
    free = np.array([label not in shares for label in labels])
    wanted = np.array([shares.get(label, 0.0) for label in labels])
    left = max(1 - wanted.sum(), 0.0)
    if natural[free].sum() > 0:
        wanted[free] = left * natural[free] / natural[free].sum()
    return wanted / wanted.sum() if wanted.sum() else wanted


def _fit(mass: np.ndarray, by_row: np.ndarray | None, by_column: np.ndarray | None) -> np.ndarray:
    """Shares with the wanted marginals that keep the proportions of `mass` within them."""
    shares = mass / max(mass.sum(), 1)
    marginals = [(axis, w) for axis, w in ((1, by_row), (0, by_column)) if w is not None]
    error = 0.0
    for _ in range(MAX_FITTING_ROUNDS):
        for axis, wanted in marginals:
            now = shares.sum(axis)
            factor = np.divide(wanted, now, out=np.zeros_like(wanted), where=now > 0)
            shares = shares * np.expand_dims(factor, axis)
        errors = [np.abs(shares.sum(axis) - wanted).max(initial=0) for axis, wanted in marginals]
        error = float(max(errors, default=0.0))
        if error < FITTED:
            break
    if error > TOLERATED:
        raise StageFailure(
            "documents.mixture.source_frac and language_frac contradict each other in this corpus:"
            f" at best {percent(error, '.1')} of the bytes are missing from a share; lower one of"
            " them or leave it out"
        )
    return shares


def _fill(
    shares: Mapping[tuple[str, str], float], capacity: Mapping[tuple[str, str], float], total: float
) -> dict[tuple[str, str], float]:
    """Bytes of each group: in proportion to its share, at most its capacity, `total` in all where
    capacities allow."""
    filled = dict.fromkeys(sorted(shares), 0.0)
    open_groups = [group for group in filled if shares[group] > 0 and capacity[group] > 0]
    left = total
    # What full groups cannot give is shared out again among the others, and may fill some of them.
    while open_groups:
        scale = left / math.fsum(shares[group] for group in open_groups)
        full = {g: capacity[g] for g in open_groups if shares[g] * scale >= capacity[g]}
        if not full:
            return filled | {group: shares[group] * scale for group in open_groups}
        filled |= full
        for num_bytes in full.values():
            left -= num_bytes
        open_groups = [group for group in open_groups if group not in full]
    return filled


def _rate(by_copies: Mapping[int, int], wanted_bytes: float, max_repeats: float) -> float:
    """The rate at which documents, each read at most `max_repeats` times, make the wanted bytes."""
    left = wanted_bytes
    weights = {copies: num for copies, num in by_copies.items() if copies and num}
    while weights:
        rate = max(left, 0.0) / math.fsum(copies * num for copies, num in weights.items())
        # Documents with most copies reach the limit first; the others then make up the rest.
        largest = max(weights)
        if round(rate * largest, EXACT_DIGITS) <= max_repeats:
            return rate
        left -= max_repeats * weights.pop(largest)
    return max_repeats
