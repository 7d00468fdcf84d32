"""Reads the file of a trained fastText model: words, hashed n-grams, rows and outputs, as arrays
for kernels.

Reads the binary format of fastText 0.9, version 12 (src/fasttext.cc `loadModel`, dictionary.cc,
densematrix.cc, quantmatrix.cc, productquantizer.cc): settings, words and labels, the places of
hashed n-grams that survived pruning, input rows (quantised ones are written out: some megabytes)
and output rows. Other files are not read: `read_model` answers None, and fastText itself can apply
them.

Cost: some milliseconds per ten thousand words; the file is mapped, so a large matrix is in memory
once.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HIERARCHICAL_SOFTMAX, SOFTMAX = 1, 3
"""Losses: outputs are the inner nodes of a tree over the labels, or one row for each label."""
_MAGIC, _VERSION, _SUPERVISED = 793712314, 12, 3
_CENTROIDS = 256
_SIZES_AT, _WORDS_AT = 64, 92
"""Bytes before the word counts, and before the first word; a shorter file is not a model."""
_LONGEST_NGRAM = 1 << 10
_MOST_PRUNED_BUCKETS = 1 << 27
"""A pruned model holds few of its buckets, and each takes five bytes while it is read; fastText's
default is 2,000,000."""
_LABEL = 1
"""What marks an entry of the dictionary as a label."""


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


def read_labels(path: Path) -> list[str]:
    """The labels of any supervised fastText model, without the prefix. Raises ValueError for a file
    that is none."""
    if path.stat().st_size < _WORDS_AT:
        raise ValueError("not a fastText model")
    labels = []
    # Models of many languages have gigabytes of rows behind their words.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if int.from_bytes(data[:4], "little") != _MAGIC:
            raise ValueError("not a fastText model")
        at = _WORDS_AT
        for _ in range(int.from_bytes(data[_SIZES_AT : _SIZES_AT + 4], "little")):
            start, end = at, data.find(b"\0", at)
            at = end + 10  # a count of eight bytes and the kind of entry
            if end < 0 or at > len(data):
                raise ValueError("its words end early")
            if data[at - 1] == _LABEL:
                labels.append(data[start:end].decode("utf-8", "replace").removeprefix("__label__"))
    if not labels:
        raise ValueError("it has no labels")
    return labels


class _Reader:
    def __init__(self, data: Any) -> None:
        self.data, self.at = data, 0

    def array(self, kind: str, count: int) -> np.ndarray:
        if not 0 <= count <= len(self.data):
            raise ValueError(f"a table of {count} numbers is longer than the file")
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found

    def number(self, kind: str) -> int:
        return int(self.array(kind, 1)[0])

    def word(self) -> bytes:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a word does not end")
        found = bytes(self.data[self.at : end])
        self.at = end + 1
        return found


def read_model(path: Path, loss: int, most_word_ngrams: int = 1 << 30) -> FastTextModel | None:
    """The model in a file, or None where it is not a supervised model of version 12 with this loss
    and n-grams of so many words.

    Raises ValueError or IndexError for a damaged file of such a model.
    """
    if path.stat().st_size < _SIZES_AT:
        return None
    with path.open("rb") as stream:
        # Never closed by hand: the frames of an error still point into it. All arrays of the model
        # are copies.
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return _read(_Reader(data), loss, most_word_ngrams)


def _read(reader: _Reader, wanted_loss: int, most_word_ngrams: int) -> FastTextModel | None:
    from tasks.kernels.models.fasttext_rows import fill_slots

    if (reader.number("<i4"), reader.number("<i4")) != (_MAGIC, _VERSION):
        return None
    dim, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _ = reader.array(
        "<i4", 12
    ).tolist()
    reader.number("<f8")
    if loss != wanted_loss or kind != _SUPERVISED or not 1 <= word_ngrams <= most_word_ngrams:
        return None
    size, num_words, _ = reader.array("<i4", 3).tolist()
    _, num_places = reader.array("<i8", 2).tolist()
    # The kernels go by these without a further look. Rows bound the buckets of a model that is not
    # pruned.
    is_vast = num_places >= 0 and buckets > _MOST_PRUNED_BUCKETS
    if dim < 1 or not 0 <= num_words <= size or buckets < 0 or is_vast or longest > _LONGEST_NGRAM:
        raise ValueError("its sizes are none of a model")
    words, counts = [], []
    for _ in range(size):
        words.append(reader.word())
        counts.append(reader.number("<i8"))
        reader.number("<i1")
    pairs = reader.array("<i4", 2 * max(num_places, 0)).reshape(-1, 2).copy()
    places = np.full(buckets if num_places >= 0 else 0, -1, np.int32)
    places[pairs[:, 0]] = pairs[:, 1]
    quantised = bool(reader.number("<u1"))
    rows = _quantised_rows(reader) if quantised else _dense_rows(reader)
    outputs = _quantised_rows(reader) if reader.number("<u1") and quantised else _dense_rows(reader)
    ends = np.cumsum([len(word) for word in words[:num_words]], dtype=np.int64)
    letters = np.frombuffer(b"".join(words[:num_words]) + bytes(8), np.uint8)
    slots = np.full(1 << max(4, (2 * num_words).bit_length()), -1, np.int32)
    fill_slots(letters, ends, slots)
    end_of_line = words.index(b"</s>", 0, num_words) if b"</s>" in words[:num_words] else -1
    # Without n-grams fastText reads words alone, however short an n-gram could be.
    lengths = np.array([shortest, longest, max(buckets, 1), end_of_line, word_ngrams], np.int64)
    hashed = max(buckets, 1) if longest > 0 or word_ngrams > 1 else 0
    num_rows = num_words + (pairs[:, 1].max(initial=-1) + 1 if num_places >= 0 else hashed)
    num_labels = size - num_words
    if (
        rows.shape[1] != dim
        or outputs.shape[1] != dim
        or len(outputs) < num_labels - (loss == HIERARCHICAL_SOFTMAX)
        or len(rows) < num_rows
        or pairs.min(initial=0) < 0
    ):
        raise ValueError("its tables do not fit each other")
    names = tuple(word.decode() for word in words[num_words:])
    survived = np.flatnonzero(places >= 0)
    order = (
        np.concatenate([np.arange(num_words), num_words + places[survived]])
        if num_places >= 0
        else slice(None)
    )
    return FastTextModel(
        names,
        tuple(counts[num_words:]),
        (slots, letters, ends),
        lengths,
        _survivors(survived, places.size),
        _in_lines(rows[order]),
        outputs,
    )


def _survivors(survived: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    bits = np.zeros(-(-buckets // 64) * 8, np.uint8)
    np.bitwise_or.at(bits, survived >> 3, (1 << (survived & 7)).astype(np.uint8))
    words = bits.view("<u8").astype(np.uint64)
    before = np.searchsorted(survived, 64 * np.arange(len(words))).astype(np.int32)
    return words, before


def _in_lines(rows: np.ndarray) -> np.ndarray:
    from tasks.kernels.models.fasttext_rows import lines

    found = lines(*rows.shape)
    found[:, : rows.shape[1]] = rows
    return found


def _dense_rows(reader: _Reader) -> np.ndarray:
    count, dim = reader.array("<i8", 2).tolist()
    return np.array(
        reader.array("<f4", count * dim).reshape(count, dim), np.float32
    )  # aligned, unlike the file


def _quantised_rows(reader: _Reader) -> np.ndarray:
    """Product quantisation (Jégou et al. 2011) written out: each part of a row is a centroid, times
    the row's norm."""
    has_norms = bool(reader.number("<u1"))
    count, _ = reader.array("<i8", 2).tolist()
    codes = reader.array("<u1", reader.number("<i4")).reshape(count, -1)
    parts = _centroids(reader)
    rows = np.concatenate([part[codes[:, i]] for i, part in enumerate(parts)], axis=1)
    if has_norms:
        norm_codes = reader.array("<u1", count)
        rows *= _centroids(reader)[0][norm_codes]
    return np.ascontiguousarray(rows, np.float32)


def _centroids(reader: _Reader) -> Sequence[np.ndarray]:
    dim, num_parts, width, last_width = reader.array("<i4", 4).tolist()
    values = reader.array("<f4", dim * _CENTROIDS)
    cut = (num_parts - 1) * _CENTROIDS * width
    whole = values[:cut].reshape(num_parts - 1, _CENTROIDS, width)
    return [*whole, values[cut:].reshape(_CENTROIDS, last_width)]
