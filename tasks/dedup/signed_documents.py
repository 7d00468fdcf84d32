"""Gathers the documents that take part in deduplication, in order of preference.

Memory is an entry per document; signatures and bands stay in files that are mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.documentset import one_chunk, read_table
from tasks.corpus.groups import GROUP_COLUMN, warn_without_groups
from tasks.dedup.config import DedupConfig
from tasks.runtime.parts import PartResult
from tasks.runtime.stage import StageFailure

DOCUMENTS_FILE, SIGNATURES_FILE, BANDS_FILE = "documents.parquet", "signatures.npy", "bands.npy"


@dataclass(frozen=True)
class SignedDocuments:
    """The documents that take part, in order of preference: every array has one entry per
    document."""

    part: np.ndarray
    row: np.ndarray
    ids: pa.Array
    exact_key: np.ndarray
    """Two uint64 words."""
    blank: np.ndarray
    url_key: np.ndarray
    """Two uint64 words."""
    has_url: np.ndarray
    num_shingles: np.ndarray
    signed: Sequence[PartResult]
    position: np.ndarray
    """Place in the signatures of its part, which hold only the rows that quality kept."""

    @classmethod
    def load(cls, signed: Sequence[PartResult], config: DedupConfig) -> SignedDocuments:
        """Raises StageFailure where there are none."""
        tables = [read_table(result.path / DOCUMENTS_FILE) for result in signed]
        if not any(table.num_rows for table in tables):
            raise StageFailure(
                "dedup has no documents, because quality kept none; loosen the rules of quality"
            )
        table = pa.concat_tables(tables).combine_chunks()
        order = _order_of_preference(table, config)
        part = np.repeat(np.arange(len(tables)), [t.num_rows for t in tables])
        position = np.concatenate([np.arange(t.num_rows) for t in tables])
        return cls(
            part[order],
            table["row"].to_numpy()[order],
            one_chunk(table["id"]).take(pa.array(order)),
            id_words(table["exact_key"])[order],
            table["exact_key"].is_null().to_numpy(zero_copy_only=False)[order],
            id_words(table["url_key"])[order],
            table["url_key"].is_valid().to_numpy(zero_copy_only=False)[order],
            table["num_shingles"].to_numpy()[order],
            signed,
            position[order],
        )

    def __len__(self) -> int:
        return len(self.part)

    def places_by_part(self, which: np.ndarray) -> list[np.ndarray]:
        """For each part, the places in `which` of its documents, ascending."""
        parts = self.part[which]
        # Stable, so that places stay ascending within a part.
        order = np.argsort(parts, kind="stable")
        return np.split(order, np.searchsorted(parts[order], np.arange(1, len(self.signed))))

    def signatures(self, which: np.ndarray, num_perms: int) -> np.ndarray:
        """The signatures of documents `which`, in that order."""
        result = np.empty((len(which), num_perms), np.uint32)
        for signed, places in zip(self.signed, self.places_by_part(which), strict=True):
            mapped = np.load(signed.path / SIGNATURES_FILE, mmap_mode="r")
            result[places] = mapped[self.position[which[places]]]
        return result

    def band_keys(self, which: np.ndarray, places: Sequence[np.ndarray], band: int) -> np.ndarray:
        """The keys of one band of documents `which`, in that order; `places` are its
        `places_by_part`."""
        result = np.empty(len(which), np.uint64)
        for signed, here in zip(self.signed, places, strict=True):
            mapped = np.load(signed.path / BANDS_FILE, mmap_mode="r")
            result[here] = mapped[band][self.position[which[here]]]
        return result


def _order_of_preference(table: pa.Table, config: DedupConfig) -> np.ndarray:
    keys: list[np.ndarray] = []
    for rule in config.survivor:
        if rule == "source_priority":
            place = pc.index_in(
                table["source"], value_set=pa.array(config.source_priority, pa.string())
            )
            keys.append(pc.fill_null(place, len(config.source_priority)).to_numpy())
        elif rule == "quality":
            # NaN sorts last, and so does what is missing.
            keys.append(-table["quality"].to_numpy(zero_copy_only=False))
        elif rule == "group":
            warn_without_groups(table[GROUP_COLUMN], "dedup.group_key", config.group_key)
            keys.extend(_larger_groups_first(table[GROUP_COLUMN]))
        elif rule == "length":
            # The longest comes first.
            keys.append(-table["num_bytes"].to_numpy())
        elif rule == "date":
            keys.append(
                # Equal dates share a rank, so that the next rule decides; missing ones come last.
                pc.rank(table["added_at"], sort_keys="ascending", tiebreaker="dense").to_numpy()
            )
        else:
            keys.extend(id_words(table["id"]).T)
    # np.lexsort sorts by its last key first.
    return np.lexsort(keys[::-1])


def _larger_groups_first(groups: pa.ChunkedArray) -> list[np.ndarray]:
    """Keys that sort documents by the size of their group and by the group; those without one come
    last."""
    encoded = one_chunk(groups).dictionary_encode()
    place = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    sizes = np.bincount(place, minlength=len(encoded.dictionary) + 1)
    sizes[-1] = 0
    words = np.concatenate([id_words(encoded.dictionary), np.zeros((1, 2), np.uint64)])
    return [-sizes[place], *words[place].T]


def id_words(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """A binary(16) column as two uint64 words per row that order like the bytes."""
    if len(column) == 0:
        return np.zeros((0, 2), np.uint64)
    array = one_chunk(column)
    words = np.frombuffer(array.buffers()[1], ">u8").reshape(-1, 2)
    return words[array.offset : array.offset + len(array)].astype(np.uint64)


def id_words_of(keys: Sequence[bytes | None]) -> np.ndarray:
    """The same of keys that are not in a column yet; zeros where there is none."""
    joined = b"".join(key or bytes(16) for key in keys)
    return np.frombuffer(joined, ">u8").reshape(-1, 2).astype(np.uint64)


def first_of_equal(words: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """For each row of two words, the first row with the same; rows that are not valid are like
    themselves only."""
    from tasks.kernels.dedup.banding import rows_that_may_share

    first = np.arange(len(words))
    # Sorting is for the rows whose first word occurs twice, which are few.
    rows = rows_that_may_share(np.ascontiguousarray(words[:, 0]))
    rows = rows[valid[rows]]
    # Stable, so that the first of equals is the earliest row.
    order = rows[np.lexsort((words[rows, 1], words[rows, 0]))]
    new = np.ones(len(order), bool)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    first[order] = order[new][np.cumsum(new) - 1]
    return first
