"""The texts of a part as models of words read them: rows of 64-bit unit hashes, each with a key
that decides its fate.

The key is a hash of the row, so texts that differ in case, punctuation and white space alone have
one key, and one fold, and one place in the order of sampling. Cost: one walk over the bytes, eight
bytes per unit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.corpus.documentset import text_buffers


@dataclass(frozen=True)
class UnitRows:
    """Row i is `units[begins[i]:begins[i + 1]]` (uint64), of `num_bytes[i]` bytes of text."""

    units: np.ndarray
    begins: np.ndarray
    num_bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.begins) - 1

    def keys(self, seed: int) -> np.ndarray:
        """uint64 per row: equal rows have equal keys."""
        key = seed.to_bytes(8, "little")
        rows = (
            self.units[a:b].tobytes()
            for a, b in zip(self.begins[:-1], self.begins[1:], strict=True)
        )
        hashed = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in rows)
        return np.frombuffer(hashed, "<u8").astype(np.uint64)

    def take(self, rows: np.ndarray) -> UnitRows:
        """These rows, in that order."""
        sizes = np.diff(self.begins)[rows]
        begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        source = np.repeat(self.begins[:-1][rows] - begins[:-1], sizes) + np.arange(begins[-1])
        return UnitRows(self.units[source], begins, self.num_bytes[rows])

    def to_lists(self) -> pa.LargeListArray:
        return pa.LargeListArray.from_arrays(
            pa.array(self.begins, pa.int64()), pa.array(self.units, pa.uint64())
        )

    @classmethod
    def from_lists(cls, lists: pa.ChunkedArray) -> UnitRows:
        """Rows of a column of `to_lists`; their sizes in bytes are not known any more."""
        chunks = [chunk for chunk in lists.chunks if len(chunk)]
        units = [chunk.flatten().to_numpy() for chunk in chunks]
        sizes = np.concatenate(
            [np.zeros(0, np.int64), *(chunk.value_lengths().to_numpy() for chunk in chunks)]
        )
        begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(
            np.concatenate([np.zeros(0, np.uint64), *units]), begins, np.zeros(len(sizes), np.int64)
        )

    @classmethod
    def of_texts(cls, texts: pa.ChunkedArray | pa.Array, most_bytes: int) -> UnitRows:
        """The units of the first `most_bytes` UTF-8 bytes of each text."""
        from tasks.kernels.models.unit_rows import units_of_texts
        from tasks.kernels.text.chars import char_classes, fold_table

        buf, begins = text_buffers(texts)
        num_bytes = np.minimum(np.diff(begins), most_bytes)
        units = np.empty(int(num_bytes.sum()) + 1, np.uint64)
        places = units_of_texts(buf, begins, most_bytes, char_classes(), fold_table(), units)
        return cls(units[: places[-1]], places, num_bytes)


def spaced_units(text: str) -> str:
    """The lower-cased units of a text with single spaces between them."""
    from tasks.kernels.models.unit_rows import join_units
    from tasks.kernels.text.chars import char_classes, fold_table

    data = np.frombuffer(text.lower().encode("utf-8", "replace"), np.uint8)
    out = np.empty(2 * len(data) + 1, np.uint8)
    return out[: join_units(data, char_classes(), fold_table(), out)].tobytes().decode("utf-8")
