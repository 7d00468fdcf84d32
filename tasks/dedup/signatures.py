"""Makes keys, signatures and shingle sets of documents per part, and gathers shingle sets.

The I/O half of `tasks.dedup.stage`; `tasks.dedup.signed_documents` holds what was made.

A signature part holds `documents.parquet` (row in the part, id, exact_key or null for a blank text,
url_key, num_bytes, num_shingles, source, added_at, quality; the documents that quality kept),
`signatures.npy` (uint32, a row per document) and `bands.npy` (uint64, a row per band). A shingle
part holds the sorted, distinct 32-bit shingle hashes of the rows it was asked for: the half of the
hash that is signed. Two sets of n such hashes are taken to share n^2 / 2^32 too many: one in ten
million for a page of text. Memory of the gathering functions is address space: files are mapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError, nearest
from tasks.corpus.documentset import ID, check_aligned, read_table, text_buffers, write_table
from tasks.corpus.groups import GROUP_COLUMN, group_ids
from tasks.corpus.urls import url_keys
from tasks.dedup.config import DedupConfig
from tasks.dedup.near_duplicates import Banding
from tasks.dedup.signed_documents import (
    BANDS_FILE,
    DOCUMENTS_FILE,
    SIGNATURES_FILE,
    SignedDocuments,
)
from tasks.runtime.artifact import ArtifactMismatch, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, scratch_dir

SHINGLES_FILE, SIZES_FILE = "shingles.npy", "sizes.npy"


def choose_bands(config: DedupConfig) -> tuple[Banding, Banding]:
    """(bands, rows per band) for near duplicates and for families. Raises ConfigError if datasketch
    is to choose and cannot."""
    return (
        _bands(config.num_bands, config.threshold, config.num_perms),
        _bands(config.num_family_bands, config.family_threshold, config.num_perms),
    )


def _bands(num_bands: int | None, threshold: float, num_perms: int) -> Banding:
    if num_bands is not None:
        return num_bands, num_perms // num_bands
    from datasketch import MinHashLSH

    # A false candidate costs one comparison, a missed pair stays in the corpus: misses weigh more.
    try:
        chosen = MinHashLSH(threshold=threshold, num_perm=num_perms, weights=(0.1, 0.9))
    except ValueError as error:
        raise ConfigError(
            f"datasketch finds no bands of num_perms ({num_perms}) for a similarity of {threshold}"
            f" ({error}); set num_bands and num_family_bands, e.g. 14 and 28 for num_perms=112"
        ) from error
    return chosen.b, chosen.r


def sign_part(part: Part, directory: Path, config: DedupConfig) -> Mapping[str, Any]:
    """Keys, signatures and bands of the documents of a part that quality kept."""
    from tasks.kernels.dedup.banding import band_table
    from tasks.kernels.dedup.exact import exact_keys
    from tasks.kernels.dedup.minhash import EMPTY, make_permutations
    from tasks.kernels.dedup.shingles import make_scratch, sign_documents
    from tasks.kernels.text.chars import char_classes, fold_table
    from tasks.kernels.text.view import view_of

    names = ["id", "text", "source", "added_at", "url"]
    names += [] if config.group_key is None else ["metadata"]
    documents = read_table(part.payload["documents"], names)
    # All measures of quality are read only where one of them decides who survives.
    columns_read = ["id", "kept"] if config.quality_column is None else None
    verdicts = read_table(part.payload["quality"], columns_read)
    check_aligned(documents, verdicts, f"quality sidecar {part.name}")
    rows = np.flatnonzero(verdicts["kept"].to_numpy())
    buf, begins = text_buffers(documents["text"])
    num_shingles = np.zeros(len(rows), np.int64)
    num_perms = config.num_perms if config.method == "minhash" else 0
    signatures = np.full((len(rows), num_perms), EMPTY, np.uint32)
    bands = np.zeros((0, len(rows)), np.uint64)
    if config.method == "minhash":
        tables = (char_classes(), fold_table())
        permutations = make_permutations(num_perms, config.seed)
        view = view_of(buf, begins, signs=True)
        text, scratch = (view.values, view.begins), make_scratch(view.begins)
        num_shingles = sign_documents(
            *text, rows, config.shingle_units, tables, permutations, scratch, signatures
        )
        bands = band_table(signatures, choose_bands(config))
    kept = documents.select(["id", "source", "added_at", "url"]).take(pa.array(rows))
    urls = kept["url"].to_pylist() if config.same_url else [None] * len(rows)
    columns = {
        "row": pa.array(rows, pa.int64()),
        "exact_key": pa.array(exact_keys(buf, begins, rows), ID),
        "url_key": pa.array(url_keys(urls, config.tracking_parameters), ID),
        "num_bytes": pa.array(np.diff(begins)[rows], pa.int64()),
        "num_shingles": pa.array(num_shingles),
        "quality": _quality(verdicts, config).take(pa.array(rows)),
    }
    columns |= {name: kept[name] for name in ("id", "source", "added_at")}
    if config.group_key is not None:
        metadata = documents["metadata"].take(pa.array(rows))
        columns[GROUP_COLUMN] = group_ids(metadata, config.group_key)
    write_table(pa.table(columns), directory / DOCUMENTS_FILE)
    np.save(directory / SIGNATURES_FILE, signatures)
    np.save(directory / BANDS_FILE, bands)
    return {"documents": len(rows), "documents_in_part": documents.num_rows}


def _quality(verdicts: pa.Table, config: DedupConfig) -> pa.ChunkedArray | pa.Array:
    name = config.quality_column
    if name is None:
        return pa.nulls(verdicts.num_rows, pa.float64())
    is_number = (pa.types.is_integer, pa.types.is_floating)
    numbers = [f.name for f in verdicts.schema if any(test(f.type) for test in is_number)]
    if name not in numbers:
        raise ArtifactMismatch(
            f"dedup.quality_column ({name}) is not a number in the quality sidecar;"
            f" {nearest(name, numbers)}"
        )
    return verdicts[name].cast(pa.float64())


def shingle_part(part: Part, directory: Path, config: DedupConfig) -> Mapping[str, Any]:
    """The shingle sets of the rows of a part that were asked for."""
    from tasks.kernels.dedup.shingles import make_scratch, shingle_sets
    from tasks.kernels.text.chars import char_classes, fold_table
    from tasks.kernels.text.view import view_of

    texts = read_table(part.payload["documents"], ["text"])["text"]
    view = view_of(*text_buffers(texts), signs=True)
    rows = np.load(part.payload["rows"])
    tables = (char_classes(), fold_table())
    shingles, sizes = shingle_sets(
        (view.values, view.begins), rows, config.shingle_units, tables, make_scratch(view.begins)
    )
    np.save(directory / SHINGLES_FILE, shingles)
    np.save(directory / SIZES_FILE, sizes)
    return {"documents": len(rows)}


def parts_with_rows(
    documents: SignedDocuments,
    which: np.ndarray,
    parts: Sequence[Part],
    purpose: str,
    out_dir: Path,
) -> tuple[list[Part], list[np.ndarray]]:
    """Parts that hold documents `which`, with their rows in a file `rows`, and the places in
    `which` of these rows."""
    work, places = [], []
    for part, here in zip(parts, documents.places_by_part(which), strict=True):
        if len(here) == 0:
            continue
        rows_file = scratch_dir(out_dir) / f"rows-{purpose}-{part.name}.npy"
        np.save(rows_file, documents.row[which[here]])
        # Which rows are asked for depends on other parts, so they are in the key.
        key = digest([purpose, part.digest, digest_file(rows_file)])
        payload = {"documents": part.payload["documents"], "rows": str(rows_file)}
        work.append(Part(part.name, key, payload))
        places.append(here)
    return work, places


def gather_shingle_sets(
    documents: SignedDocuments,
    which: np.ndarray,
    parts: Sequence[Part],
    config: DedupConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> tuple[np.ndarray, np.ndarray]:
    """Shingle sets of documents `which`, in that order: made per part, then gathered in one file
    that is mapped, not read."""
    from tasks.kernels.dedup.overlap import place_sets

    work, places = parts_with_rows(documents, which, parts, "shingles", out_dir)
    made = run_parts(shingle_part, work, config, out_dir)

    # Sizes first, so that the sets of each part go straight to their places.
    sizes = np.zeros(len(which), np.int64)
    for here, result in zip(places, made, strict=True):
        sizes[here] = np.load(result.path / SIZES_FILE)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    # An empty file cannot be mapped.
    if begins[-1] == 0:
        return np.zeros(0, np.uint32), begins
    file = scratch_dir(out_dir) / "shingle-sets.npy"
    shingles = np.lib.format.open_memmap(file, "w+", np.uint32, (int(begins[-1]),))
    for here, result in zip(places, made, strict=True):
        mapped = np.load(result.path / SHINGLES_FILE, mmap_mode="r")
        place_sets(mapped, sizes[here], begins[here], shingles)
    return np.asarray(shingles), begins
