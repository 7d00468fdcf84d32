"""Reads fastText model files, and checks them before fastText's own loader sees them.

The binary format of fastText 0.9 (src/fasttext.cc `loadModel`, dictionary.cc, densematrix.cc,
quantmatrix.cc, productquantizer.cc): settings, words and labels, the places of hashed n-grams that
survived pruning, input rows, output rows. fastText checks the magic number and no more: sizes that
a file only claims are allocated, rows that are not there are read, and a division by zero buckets
ends the process. So a file is walked here first. `read_model` then gives supervised models of
version 12 as arrays for kernels; fastText itself applies all others.

Cost: a second per million words. The file is mapped, and rows are only read where they are asked
for; quantised ones are then written out.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HIERARCHICAL_SOFTMAX, SOFTMAX = 1, 3
"""Losses: outputs are the inner nodes of a tree over the labels, or one row for each label."""
LOSSES, KINDS, SUPERVISED = (1, 2, 3, 4), (1, 2, 3), 3
MAGIC, VERSIONS = 793712314, (11, 12)
HEAD = struct.Struct("<2i12id")
SIZES = struct.Struct("<3i2q")
ENTRY_END = struct.Struct("<xqb")
CENTROIDS = 256
MAX_DIM = 1 << 16
MAX_NGRAM_CHARS = 1 << 10
MAX_NGRAMS = 1 << 29
"""Character n-grams of all words, which fastText lists while it loads."""
MAX_COUNT = 10**15
"""Where fastText's Huffman tree begins to take counts for free places."""
MAX_PRUNED_BUCKETS = 1 << 27
"""A pruned model holds few of its buckets, and each takes five bytes while it is read; fastText's
default is 2,000,000."""


@dataclass(frozen=True)
class FastTextModel:
    """A supervised model. Words and hashed n-grams as `tasks.kernels.models.fasttext_rows` reads
    them."""

    labels: tuple[str, ...]
    label_counts: tuple[int, ...]
    """Of the texts it was trained on; they fall."""
    words: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Slots of a hash table (int32, -1 where free), the bytes of all words and eight more, where
    each ends."""
    lengths: np.ndarray
    """int64: shortest and longest n-gram of characters, buckets, number of the word `</s>` (-1
    where there is none), longest n-gram of words."""
    grams: tuple[np.ndarray, np.ndarray]
    """A bit by bucket where it survived pruning (uint64), and how many did before each 64 of them
    (int32); empty if all did."""
    rows: np.ndarray
    """float32 [words, then n-grams by bucket; dim and zeros up to a multiple of LANES]; each begins
    a line of the cache."""
    outputs: np.ndarray
    """float32 [labels or inner nodes, dim]."""


def load_fasttext(file: Path) -> Any:
    """The model as the `fasttext` package gives it. Raises ValueError for a damaged model file."""
    check_fasttext(file)
    import fasttext

    return fasttext.load_model(str(file))


def check_fasttext(file: Path) -> None:
    """Raises ValueError where fastText's loader would read what is not there, or fail without a
    word."""
    model = _Walk(file)
    # fastText marks both ends of a word with a letter.
    letters = sum(len(word) + 2 for word in model.words)
    if letters * max(model.longest - max(model.shortest, 1) + 1, 0) > MAX_NGRAMS:
        raise ValueError("its words are too long for its n-grams")
    model.walk_tables()


def read_labels(file: Path) -> list[str]:
    """The labels of any supervised fastText model, without the prefix. Raises ValueError for a file
    that is not one."""
    # Models of many languages have gigabytes of rows behind their words, so the walk ends here.
    labels = _Walk(file).labels
    if not labels:
        raise ValueError("it has no labels")
    return [label.removeprefix("__label__") for label in labels]


def read_model(file: Path, loss: int, most_word_ngrams: int = 1 << 30) -> FastTextModel | None:
    """The model in a file, or None where it is not a supervised model of version 12 with this loss
    and n-grams of so many words.

    Raises ValueError for a damaged file of such a model.
    """
    from tasks.kernels.models.fasttext_rows import fill_slots, lines

    with file.open("rb") as stream:
        head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    magic, version, *_, word_ngrams, own_loss, kind, _, _, _, _, _ = HEAD.unpack(head)
    if (magic, version, own_loss, kind) != (MAGIC, VERSIONS[-1], loss, SUPERVISED):
        return None
    if not 1 <= word_ngrams <= most_word_ngrams:
        return None
    model = _Walk(file)
    pruned, dense_rows, outputs = model.walk_tables()
    num_words, ends = len(model.words), np.cumsum([len(word) for word in model.words], dtype=int)
    letters = np.frombuffer(b"".join(model.words) + bytes(8), np.uint8)
    slots = np.full(1 << max(4, (2 * num_words).bit_length()), -1, np.int32)
    fill_slots(letters, ends, slots)
    end_of_line = model.words.index(b"</s>") if b"</s>" in model.words else -1
    buckets = max(model.buckets, 1)
    # Without n-grams fastText reads words alone, however short an n-gram could be.
    lengths = [model.shortest, model.longest, buckets, end_of_line, word_ngrams]
    survived, rows = np.zeros(0, np.int64), dense_rows()
    if pruned is not None:
        if model.buckets > MAX_PRUNED_BUCKETS:
            raise ValueError(f"it has {model.buckets} buckets, which is too many to prune")
        places = np.full(model.buckets, -1, np.int32)
        places[pruned[:, 0]] = pruned[:, 1]
        survived = np.flatnonzero(places >= 0)
        rows = rows[np.concatenate([np.arange(num_words), num_words + places[survived]])]
    in_lines = lines(*rows.shape)
    in_lines[:, : model.dim] = rows
    return FastTextModel(
        tuple(model.labels),
        tuple(model.label_counts),
        (slots, letters, ends),
        np.array(lengths, np.int64),
        _bits(survived, 0 if pruned is None else model.buckets),
        in_lines,
        outputs(),
    )


def _bits(survived: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """`FastTextModel.grams` of the buckets that survived, in order."""
    bits = np.zeros(-(-buckets // 64) * 8, np.uint8)
    np.bitwise_or.at(bits, survived >> 3, (1 << (survived & 7)).astype(np.uint8))
    words = bits.view("<u8").astype(np.uint64)
    before = np.searchsorted(survived, 64 * np.arange(len(words))).astype(np.int32)
    return words, before


class _Walk:
    """A model file that is read in order and never past its end. Raises ValueError for damage."""

    def __init__(self, file: Path) -> None:
        """Read the settings, words and labels."""
        if file.stat().st_size < HEAD.size + SIZES.size:
            raise ValueError("not a fastText model")
        with file.open("rb") as stream:
            # Never closed by hand: arrays, also those in the frames of an error, point into it.
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        magic, version, self.dim, _, _, _, _, self.word_ngrams, *rest = HEAD.unpack_from(self._data)
        self.loss, kind, self.buckets, self.shortest, self.longest, _, _ = rest
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError("not a fastText model of version 11 or 12")
        if (
            not 1 <= self.dim <= MAX_DIM
            or self.loss not in LOSSES
            or kind not in KINDS
            or self.buckets < 0
            or self.longest > MAX_NGRAM_CHARS
        ):
            raise ValueError("its settings are not those of a model")
        self.is_supervised = kind == SUPERVISED
        if version == VERSIONS[0] and self.is_supervised:
            self.longest = 0  # as fastText reads it
        size, num_words, num_labels, _, self._num_pairs = SIZES.unpack_from(self._data, HEAD.size)
        if min(num_words, num_labels, self._num_pairs + 1) < 0 or size != num_words + num_labels:
            raise ValueError("its numbers of words and labels contradict each other")
        self._at = HEAD.size + SIZES.size
        self.words, self.labels, self.label_counts = list[bytes](), list[str](), list[int]()
        for number in range(size):
            self._read_entry(number, is_label=number >= num_words)

    def _read_entry(self, number: int, is_label: bool) -> None:
        end = self._data.find(b"\0", self._at)
        if not 0 <= end <= len(self._data) - ENTRY_END.size:
            raise ValueError("its words end early")
        name = self._data[self._at : end]
        count, kind = ENTRY_END.unpack_from(self._data, end)
        self._at = end + ENTRY_END.size
        if kind != is_label or not 0 <= count < MAX_COUNT:
            raise ValueError(f"entry {number} of its words is not that of a model")
        if is_label:
            self.labels.append(name.decode())  # UnicodeDecodeError is a ValueError
            self.label_counts.append(count)
        else:
            self.words.append(name)

    def walk_tables(
        self,
    ) -> tuple[np.ndarray | None, Callable[[], np.ndarray], Callable[[], np.ndarray]]:
        """(bucket and row of each n-gram that survived pruning, or None where all did; two
        functions, which give the rows and the outputs)."""
        pairs = self._array("<i4", 2 * max(self._num_pairs, 0)).reshape(-1, 2)
        is_pruned = self._num_pairs >= 0
        if pairs.min(initial=0) < 0 or pairs[:, 0].max(initial=-1) >= self.buckets:
            raise ValueError("its n-grams are in no bucket")
        has_ngrams = self.longest > 0 or self.word_ngrams > 1
        if has_ngrams and self.buckets == 0:
            raise ValueError("it has n-grams and no buckets for them")
        is_quantised = bool(self._number("<u1"))
        if is_pruned and not is_quantised:
            raise ValueError("its n-grams are pruned and its rows are not quantised")
        num_rows, rows = self._matrix(is_quantised)
        hashed = self.buckets if has_ngrams else 0
        if num_rows < len(self.words) + (pairs[:, 1].max(initial=-1) + 1 if is_pruned else hashed):
            raise ValueError(f"it has {num_rows} rows, too few for its words and n-grams")
        num_outputs, outputs = self._matrix(bool(self._number("<u1")) and is_quantised)
        targets = len(self.labels) if self.is_supervised else len(self.words)
        # The inner nodes of a tree over n leaves are n - 1.
        if targets < 1 or num_outputs < targets - (self.loss == HIERARCHICAL_SOFTMAX):
            raise ValueError(f"it has {num_outputs} outputs for {targets} labels or words")
        return pairs if is_pruned else None, rows, outputs

    def _matrix(self, is_quantised: bool) -> tuple[int, Callable[[], np.ndarray]]:
        """The number of rows, and what gives them as float32.

        Product quantisation (Jégou et al. 2011): each part of a row is a centroid, times the row's
        norm.
        """
        has_norms = is_quantised and bool(self._number("<u1"))
        num_rows, width = self._array("<i8", 2).tolist()
        if num_rows < 0 or width != self.dim:
            raise ValueError("its tables do not fit each other")
        if not is_quantised:
            values = self._array("<f4", num_rows * width).reshape(num_rows, width)
            return num_rows, lambda: np.array(values, np.float32)  # aligned, unlike the file
        codes = self._array("<u1", self._number("<i4"))
        parts = self._centroids(width)
        if len(codes) != num_rows * len(parts):
            raise ValueError("its quantised rows do not fit their centroids")
        codes = codes.reshape(num_rows, len(parts))
        norms = (self._array("<u1", num_rows), *self._centroids(1)) if has_norms else None

        def written_out() -> np.ndarray:
            rows = np.concatenate([part[codes[:, i]] for i, part in enumerate(parts)], axis=1)
            return rows if norms is None else rows * norms[1][norms[0]]

        return num_rows, written_out

    def _centroids(self, dim: int) -> list[np.ndarray]:
        """The centroids of each part that a row is cut into; the last part may be shorter."""
        width, num_parts, part, last_part = self._array("<i4", 4).tolist()
        cut = (num_parts - 1) * part
        if width != dim or part < 1 or num_parts != -(-dim // part) or last_part != dim - cut:
            raise ValueError("its centroids do not fit its rows")
        values = self._array("<f4", dim * CENTROIDS)
        whole, last = np.split(values, [cut * CENTROIDS])
        whole = whole.reshape(num_parts - 1, CENTROIDS, part)
        return [*whole, last.reshape(CENTROIDS, last_part)]

    def _number(self, kind: str) -> int:
        return int(self._array(kind, 1)[0])

    def _array(self, kind: str, count: int) -> np.ndarray:
        """The next numbers, where they are in the file."""
        num_bytes = count * np.dtype(kind).itemsize
        if not 0 <= num_bytes <= len(self._data) - self._at:
            raise ValueError("a table is longer than the file")
        found = np.frombuffer(self._data, kind, count, self._at)
        self._at += num_bytes
        return found
