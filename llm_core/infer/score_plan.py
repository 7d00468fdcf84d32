"""Plans which continuations are scored in one pass, and which of their tokens only once.

The answers of one question form a *row*: the trunk, which are the tokens that all of them begin
with, and a branch for what each has of its own. A branch attends the trunk and itself
(`llm_core.infer.cache.branches`), so a question of K answers costs one context and K answers, not K
contexts. Rows whose trunks begin alike, as those of few-shot prompts do, form a *family*: what they
share is its prefix, and computed once for all of them.

Rows of similar length stand in one batch, longest first, so that little is padding and memory runs
out early or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

MIN_PREFIX_TOKENS = 16
"""Shorter beginnings are not worth a family."""
MIN_KEPT_FRAC = 0.5
"""A row whose trunk would shorten the prefix of a family further begins another one."""
PREFIX_STEP = 8
"""A prefix has a multiple of so many tokens: kernels of GPUs copy masks of other widths."""
MIN_SAVED_FRAC = 0.25
"""A family must save so much of a pass: it needs one for its prefix, and leaves its last one less
than full."""


@dataclass(frozen=True)
class Continuation:
    """A context and its answer; the tokens from `begin` on are scored."""

    ids: tuple[int, ...]
    begin: int

    def __post_init__(self) -> None:
        assert 1 <= self.begin < len(self.ids), "a continuation needs a context and an answer"


@dataclass(frozen=True)
class Row:
    """Distinct sequences of one group. A last token is predicted and never read, so the inputs of a
    sequence are all but that one."""

    group: int
    sequences: tuple[Continuation, ...]

    @cached_property
    def trunk(self) -> tuple[int, ...]:
        """The inputs that all sequences begin with."""
        inputs = [each.ids[:-1] for each in self.sequences]
        # What the first and the last in order share, all between them share.
        first, last = min(inputs), max(inputs)
        return first[: num_common(first, last)]

    @cached_property
    def num_tokens(self) -> int:
        own = (len(each.ids) - 1 - len(self.trunk) for each in self.sequences)
        return len(self.trunk) + sum(own)

    @cached_property
    def longest_prefix(self) -> int:
        """First tokens whose outputs no sequence needs."""
        return min(len(self.trunk), min(each.begin for each in self.sequences) - 1)


@dataclass(frozen=True)
class Batch:
    """Rows of one pass; `num_prefix` of their first tokens are computed before, for all alike."""

    rows: tuple[Row, ...]
    num_prefix: int = 0

    @property
    def prefix(self) -> tuple[int, ...]:
        return self.rows[0].trunk[: self.num_prefix]


def plan(
    groups: Sequence[Sequence[Continuation]], batch_tokens: int, shares_context: bool
) -> list[Batch]:
    """Batches of all groups; those of one prefix follow each other.

    batch_tokens: tokens of a batch, padding included; at least one row is taken.
    """
    rows = [
        Row(number, sequences)
        for number, group in enumerate(groups)
        for sequences in _sequences(group, shares_context)
    ]
    batches: list[Batch] = []
    alone: list[Row] = []
    for family, shared in _families(rows) if shares_context else [(rows, 0)]:
        num_prefix = shared - shared % PREFIX_STEP
        if num_prefix and (len(family) - 1) * num_prefix >= MIN_SAVED_FRAC * batch_tokens:
            batches += _batches(family, num_prefix, batch_tokens)
        else:
            alone += family
    return [*_batches(alone, 0, batch_tokens), *batches]


def num_common(first: Sequence[int], other: Sequence[int]) -> int:
    """First tokens that two sequences share."""
    pairs = enumerate(zip(first, other, strict=False))
    shorter = min(len(first), len(other))
    return next((place for place, (one, two) in pairs if one != two), shorter)


def _sequences(
    group: Sequence[Continuation], shares_context: bool
) -> list[tuple[Continuation, ...]]:
    distinct = tuple(dict.fromkeys(group))
    if shares_context:
        return [distinct] if distinct else []
    return [(each,) for each in distinct]


def _families(rows: Sequence[Row]) -> Iterator[tuple[list[Row], int]]:
    """(rows, first tokens that all of them share), in order of their trunks."""
    family: list[Row] = []
    shared = 0
    for row in sorted(rows, key=lambda row: (row.trunk, row.group)):
        left = min(shared, row.longest_prefix)
        left = min(left, num_common(family[0].trunk, row.trunk)) if family else 0
        if family and left >= max(MIN_PREFIX_TOKENS, MIN_KEPT_FRAC * shared):
            family.append(row)
            shared = left
            continue
        if family:
            yield family, shared
        family, shared = [row], row.longest_prefix
    if family:
        yield family, shared


def _batches(rows: Sequence[Row], num_prefix: int, batch_tokens: int) -> Iterator[Batch]:
    ordered = sorted(rows, key=lambda row: (-row.num_tokens, row.group))
    begin = 0
    while begin < len(ordered):
        size = max(1, batch_tokens // (ordered[begin].num_tokens - num_prefix))
        yield Batch(tuple(ordered[begin : begin + size]), num_prefix)
        begin += size
