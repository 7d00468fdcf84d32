"""The texts of a part as models of words read them: rows of 64-bit unit hashes, each with a key
that decides its fate.

The key is a hash of the row, so texts that differ in case, punctuation and white space alone have
one key, and one fold, and one place in the order of sampling. Cost: one walk over the bytes, eight
bytes per unit.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
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
        rows = (self.units[a:b].tobytes() for a, b in itertools.pairwise(self.begins))
        hashed = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in rows)
        return np.frombuffer(hashed, "<u8").astype(np.uint64)

    def take(self, rows: np.ndarray) -> UnitRows:
        """These rows, in that order."""
        sizes = np.diff(self.begins)[rows]
        begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        # From each unit's place in the result to its place here, a shift for each row.
        source = np.repeat(self.begins[:-1][rows] - begins[:-1], sizes) + np.arange(begins[-1])
        return UnitRows(self.units[source], begins, self.num_bytes[rows])

    def to_lists(self) -> pa.LargeListArray:
        return pa.LargeListArray.from_arrays(pa.array(self.begins), pa.array(self.units))

    @classmethod
    def from_lists(cls, lists: pa.ChunkedArray) -> UnitRows:
        """Rows of a column of `to_lists`; their sizes in bytes are not known any more."""
        sizes = pc.list_value_length(lists).to_numpy()
        begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(pc.list_flatten(lists).to_numpy(), begins, np.zeros(len(sizes), np.int64))

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


def text_prefix(text: str, num_bytes: int) -> str:
    """The first bytes of a text, without a character that would be halved."""
    return text.encode("utf-8", "replace")[:num_bytes].decode("utf-8", "ignore")


def spaced_units(text: str) -> str:
    """The lower-cased units of a text with single spaces between them."""
    from tasks.kernels.models.unit_rows import join_units
    from tasks.kernels.text.chars import char_classes, fold_table

    data = np.frombuffer(text.lower().encode("utf-8", "replace"), np.uint8)
    out = np.empty(2 * len(data) + 1, np.uint8)
    return out[: join_units(data, char_classes(), fold_table(), out)].tobytes().decode("utf-8")


def check_positive(config: Any, *names: str) -> None:
    """Raise ConfigError unless these settings are at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(
                f"{name} ({getattr(config, name)}) must be at least 1; leave it out for the default"
            )


def check_folds(folds: int, seed: int) -> None:
    """Raise ConfigError where the models' folds or their seed are out of range."""
    if not 2 <= folds <= 16:
        raise ConfigError(
            f"folds ({folds}) must be from 2 to 16: no model scores what it was trained on; try 2"
        )
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed ({seed}) must be from 0 to 2^63 - 1; try 0")
