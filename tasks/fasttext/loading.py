"""Loads models into fastText itself, after a look at everything that its loader takes on trust.

fastText 0.9 checks the magic number and no more (src/fasttext.cc `loadModel`, dictionary.cc,
quantmatrix.cc, loss.cc): sizes that a file only claims are allocated, rows that are not there are
read, and a division by no buckets ends the process. So the file is walked here first, by the same
layout; `tasks.fasttext.files` describes it. Cost: a second per million words; rows are not read.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC, VERSIONS = 793712314, (11, 12)
SUPERVISED, HIERARCHICAL_SOFTMAX = 3, 1
MAX_DIM = 1 << 16
MAX_NGRAM_CHARS = 1 << 10
MAX_NGRAMS = 1 << 29
"""Character n-grams of all words, which fastText lists while it loads."""
MAX_COUNT = 10**15
"""Where fastText's Huffman tree begins to take counts for free places."""
CENTROIDS = 256

HEAD = struct.Struct("<2i12id")
SIZES = struct.Struct("<3i2q")
ENTRY_END = struct.Struct("<xqb")
PAIR = struct.Struct("<2i")
SHAPE = struct.Struct("<2q")


def load_fasttext(file: Path) -> Any:
    """The model as the `fasttext` package gives it. Raises ValueError for a damaged model file."""
    check_fasttext(file)
    import fasttext

    return fasttext.load_model(str(file))


def check_fasttext(file: Path) -> None:
    """Raises ValueError where fastText's loader would read what is not there, or fail without a
    word."""
    if file.stat().st_size < HEAD.size + SIZES.size:
        raise ValueError("not a fastText model")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            _check(_Walk(data))
        except struct.error as error:
            raise ValueError("it ends early") from error


class _Walk:
    """A place in a file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        found = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return found

    def flag(self) -> bool:
        return bool(self.take(_FLAG)[0])

    def skip(self, num_bytes: int) -> None:
        if not 0 <= num_bytes <= len(self.data) - self.at:
            raise ValueError("a table is longer than the file")
        self.at += num_bytes


_FLAG, _NUMBER = struct.Struct("<B"), struct.Struct("<i")


@dataclass
class _Settings:
    dim: int
    word_ngrams: int
    loss: int
    is_supervised: bool
    buckets: int
    longest: int
    shortest: int


def _check(walk: _Walk) -> None:
    magic, version, dim, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _, _ = (
        walk.take(HEAD)
    )
    if magic != MAGIC or version not in VERSIONS:
        raise ValueError("not a fastText model of version 11 or 12")
    if not (
        1 <= dim <= MAX_DIM
        and loss in (1, 2, 3, 4)
        and kind in (1, 2, 3)
        and buckets >= 0
        and longest <= MAX_NGRAM_CHARS
    ):
        raise ValueError("its settings are none of a model")
    if version == 11 and kind == SUPERVISED:
        longest = 0  # as fastText reads it
    settings = _Settings(dim, word_ngrams, loss, kind == SUPERVISED, buckets, longest, shortest)
    if (longest > 0 or word_ngrams > 1) and buckets == 0:
        raise ValueError("it has n-grams and no buckets for them")
    num_words, num_labels, num_pairs = _check_words(walk, settings)
    pruned = num_pairs >= 0
    last_row = max((_check_pair(walk, buckets) for _ in range(max(num_pairs, 0))), default=-1)
    hashed = buckets if longest > 0 or word_ngrams > 1 else 0
    is_quantised = walk.flag()
    if pruned and not is_quantised:
        raise ValueError("its n-grams are pruned and its rows are not quantised")
    rows = _check_matrix(walk, dim, is_quantised)
    if rows < num_words + (last_row + 1 if pruned else hashed):
        raise ValueError(f"it has {rows} rows, too few for its words and n-grams")
    outputs = _check_matrix(walk, dim, walk.flag() and is_quantised)
    targets = num_labels if settings.is_supervised else num_words
    # The inner nodes of a tree over n leaves are n - 1.
    if targets < 1 or outputs < targets - (loss == HIERARCHICAL_SOFTMAX):
        raise ValueError(f"it has {outputs} outputs for {targets} labels or words")


def _check_words(walk: _Walk, settings: _Settings) -> tuple[int, int, int]:
    """(words, labels, pairs of pruned n-grams or -1), with the place behind the last word."""
    size, num_words, num_labels, _, num_pairs = walk.take(SIZES)
    if num_words < 0 or num_labels < 0 or size != num_words + num_labels or num_pairs < -1:
        raise ValueError("its numbers of words and labels do not fit each other")
    data, letters = walk.data, 0
    for number in range(size):
        end = data.find(b"\0", walk.at)
        if end < 0:
            raise ValueError("its words end early")
        length = end - walk.at
        letters += (length + 2) * (number < num_words)  # fastText marks both ends
        walk.at = end
        count, kind = walk.take(ENTRY_END)
        if kind != (number >= num_words) or not 0 <= count < MAX_COUNT:
            raise ValueError(f"entry {number} of its words is none of a model")
        if kind:
            data[end - length : end].decode()  # UnicodeDecodeError is a ValueError
    if letters * max(settings.longest - max(settings.shortest, 1) + 1, 0) > MAX_NGRAMS:
        raise ValueError("its words are too long for its n-grams")
    return num_words, num_labels, num_pairs


def _check_pair(walk: _Walk, buckets: int) -> int:
    """The row of an n-gram that survived pruning."""
    bucket, row = walk.take(PAIR)
    if not (0 <= bucket < buckets and row >= 0):
        raise ValueError("its n-grams are in no bucket")
    return int(row)


def _check_matrix(walk: _Walk, dim: int, is_quantised: bool) -> int:
    """The rows of a matrix, plain or quantised, with the place behind it."""
    has_norms = walk.flag() if is_quantised else False
    rows, width = walk.take(SHAPE)
    if rows < 0 or width != dim:
        raise ValueError("its tables do not fit each other")
    if not is_quantised:
        walk.skip(rows * width * 4)
        return int(rows)
    (num_codes,) = walk.take(_NUMBER)
    walk.skip(num_codes)
    if num_codes != rows * _check_centroids(walk, dim):
        raise ValueError("its quantised rows do not fit their centroids")
    if has_norms:
        walk.skip(rows)
        _check_centroids(walk, 1)
    return int(rows)


def _check_centroids(walk: _Walk, dim: int) -> int:
    """The parts that a row is cut into."""
    width, num_parts, part, last_part = (walk.take(_NUMBER)[0] for _ in range(4))
    if (
        width != dim
        or part < 1
        or num_parts != -(-dim // part)
        or last_part != dim - part * (num_parts - 1)
    ):
        raise ValueError("its centroids do not fit its rows")
    walk.skip(4 * dim * CENTROIDS)
    return int(num_parts)
