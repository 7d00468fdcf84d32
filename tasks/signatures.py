"""Signatures and shingle sets of documents: made per part, gathered in order of preference. The I/O half of `tasks.dedup`.

A signature part holds `documents.parquet` (row in the part, id, exact_key or null for a blank text, num_bytes,
num_shingles, source, added_at; the documents that quality kept) and `signatures.npy` (uint32, a row per document).
A shingle part holds the sorted, distinct 64-bit shingle hashes of the rows it was asked for. Memory of
`gather_shingle_sets` is address space: sets are gathered in one file that is mapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifact import digest_file
from tasks.documentset import ID, check_aligned, read_table, text_buffers, write_table
from tasks.keys import digest
from tasks.parts import Part, PartResult, RunParts, scratch_dir

if TYPE_CHECKING:
    from tasks.dedup import DedupConfig

DOCUMENTS_FILE, SIGNATURES_FILE, SHINGLES_FILE, SIZES_FILE = "documents.parquet", "signatures.npy", "shingles.npy", "sizes.npy"


def sign_part(part: Part, directory: Path, config: DedupConfig) -> Mapping[str, Any]:
    """Exact keys and signatures of the documents of a part that quality kept."""
    from tasks.kernels.chars import char_classes, fold_table
    from tasks.kernels.exact import exact_keys
    from tasks.kernels.minhash import EMPTY, make_permutations
    from tasks.kernels.shingles import make_scratch, sign_documents

    documents = read_table(part.payload["documents"], ["id", "text", "source", "added_at"])
    verdicts = read_table(part.payload["quality"], ["id", "kept"])
    check_aligned(documents, verdicts, f"quality sidecar {part.name}")
    rows = np.flatnonzero(verdicts["kept"].to_numpy())
    buf, begins = text_buffers(documents["text"])
    num_shingles = np.zeros(len(rows), np.int64)
    signatures = np.full((len(rows), config.num_perms if config.method == "minhash" else 0), EMPTY, np.uint32)
    if config.method == "minhash":
        tables, permutations = (char_classes(), fold_table()), make_permutations(config.num_perms, config.seed)
        num_shingles = sign_documents(
            buf, begins, rows, config.shingle_units, tables, permutations, make_scratch(begins), signatures
        )
    columns = {
        "row": pa.array(rows, pa.int64()),
        "exact_key": pa.array(exact_keys(buf, begins, rows), ID),
        "num_bytes": pa.array(np.diff(begins)[rows], pa.int64()),
        "num_shingles": pa.array(num_shingles),
    }
    kept = documents.select(["id", "source", "added_at"]).take(pa.array(rows))
    write_table(pa.table(columns | {name: kept[name] for name in kept.column_names}), directory / DOCUMENTS_FILE)
    np.save(directory / SIGNATURES_FILE, signatures)
    return {"documents": len(rows), "documents_in_part": documents.num_rows}


def shingle_part(part: Part, directory: Path, config: DedupConfig) -> Mapping[str, Any]:
    """The shingle sets of the rows of a part that are in candidate pairs."""
    from tasks.kernels.chars import char_classes, fold_table
    from tasks.kernels.shingles import make_scratch, shingle_set

    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    rows = np.load(part.payload["rows"])
    tables, scratch = (char_classes(), fold_table()), make_scratch(begins)
    sets = [shingle_set((buf, begins), row, config.shingle_units, tables, scratch) for row in rows]
    np.save(directory / SHINGLES_FILE, np.concatenate([np.zeros(0, np.uint64), *sets]))
    np.save(directory / SIZES_FILE, np.array([len(s) for s in sets], np.int64))
    return {"documents": len(rows)}


@dataclass(frozen=True)
class SignedDocuments:
    """The documents that take part, in order of preference: every array has one entry per document."""

    part: np.ndarray
    row: np.ndarray
    ids: pa.Array
    exact_key: np.ndarray
    """Two uint64 words."""
    blank: np.ndarray
    num_shingles: np.ndarray
    signed: Sequence[PartResult]
    position: np.ndarray
    """Place in the signatures of its part."""

    @classmethod
    def load(cls, signed: Sequence[PartResult], config: DedupConfig) -> SignedDocuments:
        tables = [read_table(result.path / DOCUMENTS_FILE) for result in signed]
        table = pa.concat_tables(tables).combine_chunks() if tables else pa.table({"id": pa.array([], ID)})
        if table.num_rows == 0:
            none = np.zeros(0, np.int64)
            return cls(none, none, pa.array([], ID), np.zeros((0, 2), np.uint64), none > 0, none, signed, none)
        order = _order_of_preference(table, config)
        part = np.repeat(np.arange(len(tables)), [t.num_rows for t in tables])
        position = np.concatenate([np.arange(t.num_rows) for t in tables])
        ids = table["id"].combine_chunks().take(pa.array(order))
        return cls(
            part[order],
            table["row"].to_numpy()[order],
            ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids,
            id_words(table["exact_key"])[order],
            table["exact_key"].is_null().to_numpy(zero_copy_only=False)[order],
            table["num_shingles"].to_numpy()[order],
            signed,
            position[order],
        )

    def __len__(self) -> int:
        return len(self.part)

    def exact_representatives(self) -> np.ndarray:
        """The most preferred document with the same text; a blank document is only like itself."""
        order = np.lexsort((self.exact_key[:, 1], self.exact_key[:, 0]))  # stable: preferred first among equals
        order = order[~self.blank[order]]
        keys = self.exact_key[order]
        new = np.ones(len(order), bool)
        new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        representative = np.arange(len(self))
        representative[order] = order[new][np.cumsum(new) - 1]
        return representative

    def places_by_part(self, which: np.ndarray) -> list[np.ndarray]:
        """For each part, the places in `which` of its documents, ascending."""
        parts = self.part[which]
        order = np.argsort(parts, kind="stable")
        return np.split(order, np.searchsorted(parts[order], np.arange(1, len(self.signed))))

    def signatures(self, which: np.ndarray, num_perms: int) -> np.ndarray:
        """The signatures of documents `which`, in that order."""
        result = np.empty((len(which), num_perms), np.uint32)
        for signed, places in zip(self.signed, self.places_by_part(which), strict=True):
            result[places] = np.load(signed.path / SIGNATURES_FILE, mmap_mode="r")[self.position[which[places]]]
        return result


def _order_of_preference(table: pa.Table, config: DedupConfig) -> np.ndarray:
    keys: list[np.ndarray] = []
    for rule in config.survivor:
        if rule == "source":
            place = pc.index_in(table["source"], value_set=pa.array(config.source_order, pa.string()))
            keys.append(pc.fill_null(place, len(config.source_order)).to_numpy())
        elif rule == "length":
            keys.append(-table["num_bytes"].to_numpy())
        elif rule == "added_at":
            keys.append(pc.rank(table["added_at"], sort_keys="ascending", null_placement="at_end", tiebreaker="dense").to_numpy())
        else:
            keys.extend(id_words(table["id"]).T)
    return np.lexsort(keys[::-1])


def id_words(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """A binary(16) column as two uint64 words per row that order like the bytes."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    if len(array) == 0:
        return np.zeros((0, 2), np.uint64)
    values = np.frombuffer(array.buffers()[1], ">u8").reshape(-1, 2)[array.offset : array.offset + len(array)]
    return values.astype(np.uint64)


def gather_shingle_sets(
    documents: SignedDocuments, which: np.ndarray, parts: Sequence[Part], config: DedupConfig, run_parts: RunParts, out_dir: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Shingle sets of documents `which`, in that order: made per part, then gathered in one file that is mapped, not read."""
    scratch = scratch_dir(out_dir)
    work, places = [], []
    for part, here in zip(parts, documents.places_by_part(which), strict=True):
        if len(here) == 0:
            continue
        rows_file = scratch / f"rows-{part.name}.npy"
        np.save(rows_file, documents.row[which[here]])
        key = digest(["shingles", part.digest, digest_file(rows_file)])
        work.append(Part(part.name, key, {"documents": part.payload["documents"], "rows": str(rows_file)}))
        places.append(here)
    made = run_parts(shingle_part, work, config, out_dir)

    sizes = np.zeros(len(which), np.int64)
    for here, result in zip(places, made, strict=True):
        sizes[here] = np.load(result.path / SIZES_FILE)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    if begins[-1] == 0:
        return np.zeros(0, np.uint64), begins
    shingles = np.lib.format.open_memmap(scratch / "shingle-sets.npy", "w+", np.uint64, (int(begins[-1]),))
    for here, result in zip(places, made, strict=True):
        source = np.load(result.path / SHINGLES_FILE, mmap_mode="r")
        at = 0
        for document in here:
            shingles[begins[document] : begins[document + 1]] = source[at : at + sizes[document]]
            at += sizes[document]
    return np.asarray(shingles), begins
