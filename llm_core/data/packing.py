"""Plans how documents are laid out in rows of `seq_len` targets.

A row is a list of segments, ranges of a split's stream. A segment [a, b) gives the targets
stream[a:b] and the inputs stream[a-1:b-1]: a document begins after the end-of-text token of the one
before, so each document, its end included, is predicted once per epoch from its first token on,
whatever the plan. Places that no segment fills are padding: input end-of- text, target ignored.

`concat` chops the stream every `seq_len` targets: no padding, most documents cut. `best_fit` (Ding
et al. 2024, "Fewer Truncations Improve Language Modeling", section 3) cuts only documents longer
than a row, into whole rows and a rest, and packs by best-fit decreasing: each piece, longest first,
into the fullest row that still takes it. `one_per_row` gives each document a row, and crops it.

Cost: `concat` over all documents is arithmetic; the others hold 16 bytes per segment, and best fit
handles all pieces of one length at once, so its time goes with `seq_len` and the number of
documents, not with their product.

`pairs` is for preferences: each row holds the two branches of one pair of answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llm_core.data.batch import IGNORED
from llm_core.data.shards import TokenShards


@dataclass(frozen=True)
class Plan:
    """Rows of segments. Row r has the segments [row_offsets[r], row_offsets[r + 1])."""

    starts: np.ndarray
    """int64 (segments,): place in the stream of the first target."""
    stops: np.ndarray
    row_offsets: np.ndarray
    """int64 (rows + 1,)."""
    num_cropped_tokens: int = 0
    """Targets that no row has."""
    num_cut_documents: int = 0
    """Documents in more than one piece, or cropped."""

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def num_targets(self) -> int:
        return int((self.stops - self.starts).sum())


@dataclass(frozen=True)
class PackingShares:
    """What a packing costs, as shares: of places, of targets, of documents."""

    padding_frac: float
    cropped_frac: float
    cut_documents_frac: float


def make_plan(starts: np.ndarray, stops: np.ndarray, seq_len: int, packing: str) -> Plan:
    """Lay out documents [starts, stops) (int64, none empty), given in the order they are read."""
    plan = {"concat": concat, "best_fit": best_fit, "one_per_row": one_per_row}[packing]
    return plan(np.asarray(starts, np.int64), np.asarray(stops, np.int64), seq_len)


def concat(starts: np.ndarray, stops: np.ndarray, seq_len: int) -> Plan:
    """One stream of the documents, cut every `seq_len` targets; an unfilled tail is dropped."""
    ends = np.cumsum(stops - starts)
    total = int(ends[-1]) if len(ends) else 0
    num_rows = total // seq_len
    used = num_rows * seq_len
    # A segment ends where a row or a document does.
    borders = np.unique(np.concatenate([np.arange(num_rows + 1) * seq_len, ends[ends < used]]))
    document = np.searchsorted(ends, borders[:-1], "right")
    segment_starts = starts[document] + borders[:-1] - (ends - (stops - starts))[document]
    row_offsets = np.searchsorted(borders, np.arange(num_rows + 1) * seq_len)
    segment_stops = segment_starts + np.diff(borders)
    num_cut = int(np.sum(np.bincount(document, minlength=len(starts)) > 1))
    return Plan(segment_starts, segment_stops, row_offsets, total - used, num_cut)


def one_per_row(starts: np.ndarray, stops: np.ndarray, seq_len: int) -> Plan:
    """The first `seq_len` targets of each document, in a row of its own."""
    lengths = stops - starts
    cropped = np.maximum(lengths - seq_len, 0)
    rows, num_cut = np.arange(len(starts) + 1, dtype=np.int64), int(np.count_nonzero(cropped))
    return Plan(starts, stops - cropped, rows, int(cropped.sum()), num_cut)


def best_fit(starts: np.ndarray, stops: np.ndarray, seq_len: int) -> Plan:
    """Pieces of at most a row, packed by best-fit decreasing; rows in order of opening."""
    num_pieces = -(-(stops - starts) // seq_len)
    document = np.repeat(np.arange(len(starts)), num_pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    piece_starts = starts[document] + number * seq_len
    piece_stops = np.minimum(piece_starts + seq_len, stops[document])
    row_of = pack_best_fit(piece_stops - piece_starts, seq_len)
    order = np.lexsort((piece_starts, row_of))
    num_rows = int(row_of.max()) + 1 if len(row_of) else 0
    row_offsets = np.searchsorted(row_of[order], np.arange(num_rows + 1))
    return Plan(
        piece_starts[order], piece_stops[order], row_offsets, 0, int(np.sum(num_pieces > 1))
    )


def pack_best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """The row of each piece by best-fit decreasing; sizes are from 1 to `capacity`.

    All pieces of one size are placed together. In strict order, a row that takes one of them is the
    fullest that fits the next until it takes no more, so it gets as many as it holds; rows of equal
    space are interchangeable.
    """
    row_of = np.empty(len(sizes), np.int64)
    by_size = np.argsort(-sizes, kind="stable")
    bounds = np.flatnonzero(np.diff(sizes[by_size], prepend=-1, append=-1))
    space: dict[int, list[np.ndarray]] = {}  # free places → rows with as many, in chunks
    levels = 0  # bit n is set where `space` has n
    num_rows = 0
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        size = int(sizes[by_size[begin]])
        while begin < end:
            fitting = levels >> size
            if fitting:
                # The lowest bit that is set: rows with least space that still take it.
                level = size + (fitting & -fitting).bit_length() - 1
                rows = space[level].pop()
            else:
                level = capacity
                rows = np.arange(num_rows, num_rows + -(-(end - begin) // (capacity // size)))
                num_rows += len(rows)
            each = level // size
            placed = min(end - begin, each * len(rows))
            row_of[by_size[begin : begin + placed]] = rows[np.arange(placed) // each]
            begin += placed
            full, rest = divmod(placed, each)
            # Rows that took as many as they hold, one that took the rest, and those left as they
            # were.
            for left, chunk in (
                (level - each * size, rows[:full]),
                (level - rest * size, rows[full : full + 1] if rest else rows[:0]),
                (level, rows[full + bool(rest) :]),
            ):
                if left and len(chunk):
                    space.setdefault(left, []).append(chunk)
                    levels |= 1 << left
            if fitting and not space[level]:
                levels &= ~(1 << level)
    return row_of


def pairs(starts: np.ndarray, stops: np.ndarray, rejected_starts: np.ndarray, seq_len: int) -> Plan:
    """Each pair of answers in a row of its own: the chosen branch, then the rejected one.

    rejected_starts: where a rejected branch begins, in order. Pairs that do not fit whole are left
    out, as a part of an answer has another probability than the answer; so are other documents.
    """
    first = np.searchsorted(rejected_starts, starts)
    border = np.append(rejected_starts, np.iinfo(np.int64).max)[first]
    is_pair = border < stops
    fits = is_pair & (stops - starts <= seq_len)
    starts, border, stops, lengths = starts[fits], border[fits], stops[fits], (stops - starts)
    return Plan(
        np.stack([starts, border], axis=1).flatten(),
        np.stack([border, stops], axis=1).flatten(),
        2 * np.arange(len(starts) + 1, dtype=np.int64),
        int(lengths[is_pair & ~fits].sum()),
        int(np.count_nonzero(is_pair & ~fits)),
    )


def join(plans: list[Plan]) -> Plan:
    """Rows of several plans, one after another."""
    segments = np.cumsum([0] + [len(plan.starts) for plan in plans])
    offsets = [
        plan.row_offsets[:-1] + base for plan, base in zip(plans, segments[:-1], strict=True)
    ]
    return Plan(
        np.concatenate([plan.starts for plan in plans]),
        np.concatenate([plan.stops for plan in plans]),
        np.concatenate([*offsets, segments[-1:]]),
        sum(plan.num_cropped_tokens for plan in plans),
        sum(plan.num_cut_documents for plan in plans),
    )


# R rows · T places
class StreamRows:
    """`concat` over a whole split without a plan: row r has the targets [r · seq_len + 1, (r + 1) ·
    seq_len + 1).

    The first token of the stream is predicted by none.
    """

    def __init__(self, shards: TokenShards, seq_len: int) -> None:
        self._shards, self._seq_len = shards, seq_len
        self.num_rows = max(0, shards.num_tokens - 1) // seq_len

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids_RT, targets_RT) int64."""
        ids_RT = np.empty((len(rows), self._seq_len), np.int64)
        targets_RT = np.empty_like(ids_RT)
        for k, start in enumerate((rows * self._seq_len).tolist()):
            self._shards.read_pair(start, ids_RT[k], targets_RT[k])
        return ids_RT, targets_RT

    def documents(self, rows: np.ndarray) -> np.ndarray:
        """int32 (R, T): which document of its row each target belongs to, from 0 on."""
        ids_RT, _ = self.read(rows)
        return self._shards.number_documents(ids_RT, rows * self._seq_len)

    def stretches(self, rows: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """(row, place, start, stop): targets from that place on are tokens [start, stop)."""
        for k, start in enumerate((rows * self._seq_len).tolist()):
            yield k, 0, start + 1, start + 1 + self._seq_len

    def shares(self) -> PackingShares:
        total = self._shards.num_tokens
        used = self.num_rows * self._seq_len
        starts, stops = self._shards.document_bounds()
        cut = np.sum((starts.clip(1) - 1) // self._seq_len != (stops - 2).clip(0) // self._seq_len)
        return PackingShares(
            0.0, 1 - used / total if total else 0.0, float(cut) / max(1, len(starts))
        )


class PlannedRows:
    """Rows of a plan, read from the shards."""

    def __init__(self, shards: TokenShards, seq_len: int, plan: Plan) -> None:
        self._shards, self._seq_len, self._plan = shards, seq_len, plan
        self.num_rows = plan.num_rows

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids_RT, targets_RT) int64."""
        ids_RT = np.full((len(rows), self._seq_len), self._shards.eos_id, np.int64)
        targets_RT = np.full_like(ids_RT, IGNORED)
        for k, place, start, stop in self.stretches(rows):
            end = place + stop - start
            if start:
                self._shards.read_pair(start - 1, ids_RT[k, place:end], targets_RT[k, place:end])
            else:
                # Nothing precedes the first document: the end-of-text in `ids_RT` stands in.
                targets_RT[k, place:end] = self._shards.read(0, stop)
                ids_RT[k, place + 1 : end] = targets_RT[k, place : end - 1]
        return ids_RT, targets_RT

    def documents(self, rows: np.ndarray) -> np.ndarray:
        """int32 (R, T): which segment of its row each target belongs to; -1 in padding."""
        out = np.full((len(rows), self._seq_len), -1, np.int32)
        for k, (first, last) in enumerate(self._segments(rows)):
            lengths = (self._plan.stops - self._plan.starts)[first:last]
            out[k, : lengths.sum()] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        return out

    def stretches(self, rows: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """(row, place, start, stop): targets from that place on are tokens [start, stop)."""
        for k, (first, last) in enumerate(self._segments(rows)):
            place = 0
            bounds = (places[first:last] for places in (self._plan.starts, self._plan.stops))
            for start, stop in zip(*(some.tolist() for some in bounds), strict=True):
                yield k, place, start, stop
                place += stop - start

    def shares(self, num_documents: int) -> PackingShares:
        places, targets = self._plan.num_rows * self._seq_len, self._plan.num_targets
        return PackingShares(
            1 - targets / places if places else 0.0,
            self._plan.num_cropped_tokens / max(1, targets + self._plan.num_cropped_tokens),
            self._plan.num_cut_documents / max(1, num_documents),
        )

    def _segments(self, rows: np.ndarray) -> list[tuple[int, int]]:
        offsets = self._plan.row_offsets
        return list(zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True))
