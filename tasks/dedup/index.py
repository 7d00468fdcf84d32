"""Keeps of documents what later ones are compared with, so that earlier runs are not read again.

An index, the folder `index/` of a dedup artifact: one row for every distinct text seen so far, this
run's after those of earlier runs, in order of preference.

* `scheme.json`: what two runs must agree on, so that their keys and hashes mean the same.
* `documents.parquet`: id, exact_key, num_shingles, survivor and family (row numbers), cluster_size.
* `urls.parquet`: url_key, row. `pieces.arrow`: 128-bit keys of lines or paragraphs that were
  kept, sorted.
* For rows with shingles: `signatures.arrow`, `bands.arrow` (one column per band),
  `shingles.arrow` (sorted 32-bit hashes: the exact sets that verification compares, not a sketch
  of them).

Arrow files are one record batch each, not compressed, and mapped: only what is looked at is read.
Cost a document: 448 bytes of signature, 336 of bands and 4 for each distinct shingle, somewhat more
than half the size of the text. Comparing a new corpus reads all bands once, and the sets of those
earlier documents only that share a bucket with a new one. An index says nothing of the pairs among
earlier documents, which were judged when they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError
from llm_core.json_files import UnreadableJson, read_json
from tasks.corpus.documentset import ID, one_chunk, read_table, write_table
from tasks.dedup.config import INDEX_FILES, DedupConfig
from tasks.dedup.signatures import choose_bands
from tasks.dedup.signed_documents import id_words
from tasks.runtime.artifact import ArtifactMismatch, write_json

VERSION = 4
"""Of what hashes mean: 1 had no lone signs in shingles, 2 had BLAKE2b for exact keys, 3 had all
lone signs, and texts as they are written."""

SCHEME_FILE, DOCUMENTS_FILE, URLS_FILE, SIGNATURES_FILE, BANDS_FILE, SHINGLES_FILE, PIECES_FILE = (
    INDEX_FILES
)


@dataclass(frozen=True)
class Index:
    """One entry per row; `members` are the rows with shingles, and sketches have one entry per
    member."""

    ids: pa.Array
    exact_key: np.ndarray
    blank: np.ndarray
    num_shingles: np.ndarray
    survivor: np.ndarray
    family: np.ndarray
    cluster_size: np.ndarray
    """Of survivors: documents in the cluster; of others 0."""
    url_key: np.ndarray
    url_row: np.ndarray
    signatures: np.ndarray
    bands: list[np.ndarray]
    shingles: np.ndarray
    shingle_begins: np.ndarray
    piece_keys: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def members(self) -> np.ndarray:
        return np.flatnonzero(self.num_shingles > 0)


def empty_index(config: DedupConfig) -> Index:
    none, no_keys = np.zeros(0, np.int64), np.zeros((0, 2), np.uint64)
    num_bands = sum(bands for bands, _ in choose_bands(config)) if config.method == "minhash" else 0
    rows = (pa.array([], ID), no_keys, none > 0, none, none, none, none)
    sketches = np.zeros((0, config.num_perms), np.uint32), [np.zeros(0, np.uint64)] * num_bands
    sets = np.zeros(0, np.uint32), np.zeros(1, np.int64)
    return Index(*rows, no_keys, none, *sketches, *sets, no_keys)


def open_index(config: DedupConfig) -> Index:
    """The index that the config names, or an empty one.

    Raises ConfigError where it was made in another way, ArtifactMismatch where its files are
    damaged or do not belong together.
    """
    if config.index is None:
        return empty_index(config)
    folder = config.index / "index"
    _check_scheme(folder / SCHEME_FILE, config)
    try:
        index = _read_index(folder)
    except ArtifactMismatch:
        raise
    # Files that Arrow can read may still hold other tables than these.
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ArtifactMismatch(
            f"{folder} is damaged ({type(error).__name__}); rebuild the index"
        ) from error
    _check_rows(index, empty_index(config), folder)
    return index


def _read_index(folder: Path) -> Index:
    documents, urls = (read_table(_present(folder / f)) for f in (DOCUMENTS_FILE, URLS_FILE))
    signatures = _map(folder / SIGNATURES_FILE).column(0)
    sets = _map(folder / SHINGLES_FILE).column(0)
    pieces = _map(folder / PIECES_FILE)
    return Index(
        one_chunk(documents["id"]),
        id_words(documents["exact_key"]),
        documents["exact_key"].is_null().to_numpy(),
        documents["num_shingles"].to_numpy(),
        documents["survivor"].to_numpy(),
        documents["family"].to_numpy(),
        documents["cluster_size"].to_numpy(),
        id_words(urls["url_key"]),
        urls["row"].to_numpy(),
        signatures.values.to_numpy().reshape(-1, signatures.type.list_size),
        [column.to_numpy() for column in _map(folder / BANDS_FILE).columns],
        sets.values.to_numpy(),
        sets.offsets.to_numpy(),
        np.stack([pieces.column(0).to_numpy(), pieces.column(1).to_numpy()], axis=1),
    )


def _check_rows(index: Index, empty: Index, folder: Path) -> None:
    """Raise ArtifactMismatch unless rows name rows and sketches are those of members: compiled
    loops look up without asking."""
    pairs = [(getattr(index, name), value) for name, value in vars(empty).items() if name != "ids"]
    pairs += zip(index.bands, empty.bands, strict=False)
    # Everything but ids and the list of bands, whose arrays were added one by one.
    alike = [pair for pair in pairs if isinstance(pair[1], np.ndarray)]
    sketches = {len(index.signatures), len(index.shingle_begins) - 1, *map(len, index.bands)}
    named = (index.survivor, index.family, index.url_row)
    # Types first: dates and texts cannot be compared with row numbers.
    if not (
        all((one.dtype, one.shape[1:]) == (two.dtype, two.shape[1:]) for one, two in alike)
        and len(index.bands) == len(empty.bands)
        and sketches == {len(index.members)}
        and len(index.url_key) == len(index.url_row)
        and all(((rows >= 0) & (rows < len(index))).all() for rows in named)
    ):
        raise ArtifactMismatch(
            f"{folder} is damaged (its files are not of the same documents); rebuild the index"
        )


def write_index(folder: Path, index: Index, config: DedupConfig) -> None:
    """Write `index/`. Deterministic for equal content."""
    folder.mkdir()
    write_json(folder / SCHEME_FILE, _scheme(config))
    documents = {
        "id": index.ids,
        "exact_key": binary_ids(index.exact_key, ~index.blank),
        "num_shingles": pa.array(index.num_shingles, pa.int64()),
        "survivor": pa.array(index.survivor, pa.int64()),
        "family": pa.array(index.family, pa.int64()),
        "cluster_size": pa.array(index.cluster_size, pa.int64()),
    }
    write_table(pa.table(documents), folder / DOCUMENTS_FILE)
    urls = {"url_key": binary_ids(index.url_key), "row": pa.array(index.url_row, pa.int64())}
    write_table(pa.table(urls), folder / URLS_FILE)
    flat = pa.array(index.signatures.reshape(-1), pa.uint32())
    signatures = pa.FixedSizeListArray.from_arrays(flat, config.num_perms)
    _write(folder / SIGNATURES_FILE, {"signature": signatures})
    bands = {f"band-{i:03}": pa.array(keys, pa.uint64()) for i, keys in enumerate(index.bands)}
    _write(folder / BANDS_FILE, bands)
    sets = pa.LargeListArray.from_arrays(
        pa.array(index.shingle_begins, pa.int64()), pa.array(index.shingles, pa.uint32())
    )
    _write(folder / SHINGLES_FILE, {"shingles": sets})
    high, low = np.ascontiguousarray(index.piece_keys.T)
    _write(folder / PIECES_FILE, {"high": pa.array(high), "low": pa.array(low)})


def binary_ids(words: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Two uint64 words per row as binary(16), the inverse of `id_words`."""
    data = pa.py_buffer(words.astype(">u8").tobytes())
    # Arrow keeps validity as bits, the lowest one first.
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(ID, len(words), [mask, data])


def _scheme(config: DedupConfig) -> dict[str, Any]:
    minhash, by_url, pieces = config.method == "minhash", config.same_url, config.cuts.pieces
    return {
        "version": VERSION,
        "method": config.method,
        "shingle_units": config.shingle_units if minhash else None,
        "num_perms": config.num_perms if minhash else None,
        "seed": config.seed if minhash else None,
        "bands": [list(banding) for banding in choose_bands(config)] if minhash else None,
        "same_url": by_url,
        "tracking_parameters": list(config.tracking_parameters) if by_url else None,
        "cuts.pieces": pieces,
        "cuts.min_piece_units": config.cuts.min_piece_units if pieces != "none" else None,
    }


def _check_scheme(file: Path, config: DedupConfig) -> None:
    try:
        theirs = read_json(_present(file))
    except UnreadableJson as error:
        raise ArtifactMismatch(f"{file} is not readable ({error}); rebuild the index") from error
    if not isinstance(theirs, dict):
        raise ArtifactMismatch(f"{file} is not a JSON object; rebuild the index")
    if theirs.get("version") != VERSION:
        raise ArtifactMismatch(
            f"{file} has version {theirs.get('version')}, and this release reads {VERSION}; rebuild"
            " the index with dedup.keep_index=true"
        )
    for name, ours in _scheme(config).items():
        if theirs.get(name) != ours:
            raise ConfigError(
                f"dedup.index ({config.index}) was made with {name}={theirs.get(name)}, and this"
                f" run has {ours}; set dedup.{name} as it was, or rebuild the index"
            )


def _present(file: Path) -> Path:
    if not file.is_file():
        raise ArtifactMismatch(f"{file} is missing; rebuild the index with dedup.keep_index=true")
    return file


def _map(file: Path) -> pa.RecordBatch:
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(_present(file)))).get_batch(0)
        batch.validate(full=True)
        return batch
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the file
        raise ArtifactMismatch(f"{file} is damaged ({error}); rebuild the index") from error


def _write(file: Path, columns: dict[str, pa.Array]) -> None:
    batch = pa.record_batch(columns)
    # One batch and no compression: what is mapped is read where it is looked at.
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
