"""What does a fastText model with a softmax tree hold, and which label does it give each text?

Reads the binary format of fastText 0.9, version 12 (src/fasttext.cc `loadModel`, dictionary.cc, densematrix.cc, quantmatrix.cc,
productquantizer.cc): settings, words and labels, the places of hashed n-grams that survived pruning, input rows (quantised ones
are written out: some megabytes) and the inner nodes of the Huffman tree (`loss.cc`), which is built from the counts of labels.
Models of another kind are not read: `read_tree` answers None, and fastText itself can apply them.

Cost: some milliseconds per ten thousand words to load; see `tasks.kernels.softmax_tree` for the labels.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_MAGIC, _VERSION = 793712314, 12
_HIERARCHICAL_SOFTMAX, _SUPERVISED = 1, 3
_CENTROIDS = 256
_SIZES_AT, _WORDS_AT = 64, 92
"""Bytes before the numbers of words, and before the first of them."""
_LABEL = 1
"""What marks an entry of the dictionary as a label."""


@dataclass(frozen=True)
class SoftmaxTree:
    """A model as arrays. Words, hashed n-grams and the tree as `tasks.kernels.softmax_tree` reads them."""

    labels: tuple[str, ...]
    words: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Slots of a hash table (int32, -1 where free), the bytes of all words, where each ends."""
    lengths: np.ndarray
    """int64: shortest and longest n-gram, buckets, number of the word `</s>` (-1 where there is none)."""
    grams: tuple[np.ndarray, np.ndarray]
    """By bucket: a bit where it survived pruning (uint8 by eight buckets), its row after the words (int32); empty if all did."""
    rows: np.ndarray
    """float32 [words and n-grams, dim]."""
    tree: tuple[np.ndarray, np.ndarray]
    """float32 [inner nodes, dim]; int64 [inner nodes, 2], left and right; leaves come first, in the order of labels."""


def label_prefixes(
    model: SoftmaxTree,
    texts: tuple[np.ndarray, np.ndarray],
    scripts: np.ndarray,
    written: np.ndarray,
    arabic: int,
    marks: Sequence[int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (int64, -1 none), float32 probabilities and facts (`tasks.kernels.softmax_tree`) of the texts, as bytes and offsets.

    `scripts`: a row of `written` (bool [scripts, labels]) by text; row 0 allows every label. In texts of script `arabic` the
    code points `marks` are passed over.
    """
    from tasks.kernels.softmax_tree import best_labels, kind_table, lower_table

    buf, offsets = texts
    count = len(offsets) - 1
    found = np.zeros(count, np.int64), np.zeros(count, np.float32), np.zeros(count, np.int64)
    tables = kind_table(tuple(marks)), lower_table()
    best_labels(
        buf, offsets, scripts, tables, model.words, model.lengths, model.grams, model.rows, model.tree, written, arabic, found
    )
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def array(self, kind: str, count: int) -> np.ndarray:
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found

    def number(self, kind: str) -> int:
        return int(self.array(kind, 1)[0])

    def word(self) -> bytes:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end]
        self.at = end + 1
        return found


def read_labels(path: Path) -> list[str]:
    """The labels of any supervised fastText model, without the prefix. Raises ValueError for a file that is none."""
    if path.stat().st_size < _WORDS_AT:
        raise ValueError("it is no fastText model")
    labels = []
    # Models of many languages have gigabytes of rows behind their words.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if int.from_bytes(data[:4], "little") != _MAGIC:
            raise ValueError("it is no fastText model")
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


def read_tree(path: Path) -> SoftmaxTree | None:
    """The model in a file, or None where it is no version 12 model with a softmax tree over words and character n-grams.

    Raises ValueError or IndexError for a damaged file of such a model.
    """
    reader = _Reader(path.read_bytes())
    if len(reader.data) < 64 or (reader.number("<i4"), reader.number("<i4")) != (_MAGIC, _VERSION):
        return None
    dim, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _ = reader.array("<i4", 12).tolist()
    reader.number("<f8")
    if loss != _HIERARCHICAL_SOFTMAX or kind != _SUPERVISED or word_ngrams != 1:
        return None
    size, num_words, _ = reader.array("<i4", 3).tolist()
    _, num_places = reader.array("<i8", 2).tolist()
    words, counts = [], []
    for _ in range(size):
        words.append(reader.word())
        counts.append(reader.number("<i8"))
        reader.number("<i1")
    pairs = reader.array("<i4", 2 * max(num_places, 0)).reshape(-1, 2)
    places = np.zeros(buckets if num_places >= 0 else 0, np.int32)
    survived = np.zeros(places.size, bool)
    places[pairs[:, 0]], survived[pairs[:, 0]] = pairs[:, 1], True
    quantised = bool(reader.number("<u1"))
    rows = _quantised_rows(reader) if quantised else _dense_rows(reader)
    nodes = _quantised_rows(reader) if reader.number("<u1") and quantised else _dense_rows(reader)
    names = tuple(word.decode() for word in words[num_words:])
    ends = np.cumsum([len(word) for word in words[:num_words]], dtype=np.int64)
    letters = np.frombuffer(b"".join(words[:num_words]) or b"\0", np.uint8)
    end_of_line = words.index(b"</s>", 0, num_words) if b"</s>" in words[:num_words] else -1
    # Without n-grams fastText reads words alone, however short an n-gram could be.
    lengths = np.array([shortest, longest, max(buckets, 1), end_of_line], np.int64)
    grams = np.packbits(survived, bitorder="little"), places
    children = _huffman_tree(counts[num_words:])
    num_rows = num_words + (pairs[:, 1].max(initial=-1) + 1 if num_places >= 0 else buckets * (longest > 0))
    if (
        rows.shape[1] != dim
        or nodes.shape[1] != dim
        or len(nodes) < len(children)
        or len(rows) < num_rows
        or pairs.min(initial=0) < 0
    ):
        raise ValueError("its tables do not fit each other")
    return SoftmaxTree(names, (_slots(words[:num_words]), letters, ends), lengths, grams, rows, (nodes, children))


def _dense_rows(reader: _Reader) -> np.ndarray:
    count, dim = reader.array("<i8", 2).tolist()
    return np.array(reader.array("<f4", count * dim).reshape(count, dim), np.float32)  # aligned, unlike the file


def _quantised_rows(reader: _Reader) -> np.ndarray:
    """Product quantisation (Jégou et al. 2011) written out: each part of a row is a centroid, times the row's norm."""
    has_norms = bool(reader.number("<u1"))
    count, _ = reader.array("<i8", 2).tolist()
    codes = reader.array("<u1", reader.number("<i4")).reshape(count, -1)
    parts = _centroids(reader)
    rows = np.concatenate([part[codes[:, i]] for i, part in enumerate(parts)], axis=1)
    if has_norms:
        norm_codes = reader.array("<u1", count)
        rows *= _centroids(reader)[0][norm_codes]
    return np.ascontiguousarray(rows, np.float32)


def _centroids(reader: _Reader) -> list[np.ndarray]:
    dim, num_parts, width, last_width = reader.array("<i4", 4).tolist()
    values = reader.array("<f4", dim * _CENTROIDS)
    cut = (num_parts - 1) * _CENTROIDS * width
    whole = values[:cut].reshape(num_parts - 1, _CENTROIDS, width)
    return [*whole, values[cut:].reshape(_CENTROIDS, last_width)]


def _slots(words: Sequence[bytes]) -> np.ndarray:
    """Numbers of words by FNV-1a hash with linear probing."""
    size = 1 << max(4, (2 * len(words)).bit_length())
    slots = np.full(size, -1, np.int32)
    for number, word in enumerate(words):
        value = 2166136261
        for byte in word:
            value = (value ^ (byte | 0xFFFFFF00 if byte >= 0x80 else byte)) * 16777619 & 0xFFFFFFFF
        slot = value & (size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = number
    return slots


def _huffman_tree(counts: Sequence[int]) -> np.ndarray:
    """int64 [inner nodes, 2]: left and right of each, by counts that fall; ties as in fastText."""
    leaves = len(counts)
    weights = [*counts, *[10**15] * (leaves - 1)]
    children = np.zeros((leaves - 1, 2), np.int64)
    leaf, node = leaves - 1, leaves
    for parent in range(leaves, 2 * leaves - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                children[parent - leaves, side], leaf = leaf, leaf - 1
            else:
                children[parent - leaves, side], node = node, node + 1
        weights[parent] = sum(weights[child] for child in children[parent - leaves].tolist())
    return children
