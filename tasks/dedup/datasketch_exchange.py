"""Exchanges signatures with datasketch: one row is one `datasketch.MinHash`, bit for bit.

Both take a 32-bit hash of each item, mix it by the MurmurHash3 finalizer and keep the least of odd
`a_k * h + b_k` modulo 2^32 (the scheme `affine32` of datasketch 2, its default), with a_k and b_k
of the same seed. The item hash is ours: the high half of a shingle's
(`tasks.kernels.dedup.shingles`), so a MinHash made here is updated further with `shingle_hashes`,
by `hashfunc=int`. Signatures of another scheme, seed or length are refused, for they would compare
as if they meant something.

A file of signatures is Parquet: `id` binary, and `hashvalues`, a list of `num_perm` uint32; its
metadata name the scheme and the seed. `to_datasketch(row, seed)` is the MinHash of a row, and
`write_minhashes` writes a file of MinHashes that were made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llm_core.config import ConfigError
from tasks.corpus.documentset import write_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.index import Index, open_index
from tasks.dedup.signatures import choose_bands
from tasks.runtime.artifact import Artifact

if TYPE_CHECKING:
    from datasketch import MinHash

SCHEME = "affine32"


def to_datasketch(signature: np.ndarray, seed: int) -> MinHash:
    """The MinHash of a signature row (uint32); a copy."""
    from datasketch import MinHash

    values = np.array(signature, np.uint32)
    return MinHash(len(values), seed=seed, hashfunc=int, hashvalues=values, scheme=SCHEME)


def from_datasketch(minhash: MinHash, num_perms: int, seed: int) -> np.ndarray:
    """The signature row (uint32) of a MinHash. Raises ValueError where it was made in another
    way."""
    fault = _difference(minhash.scheme, minhash.seed, len(minhash.hashvalues), num_perms, seed)
    if fault:
        raise ValueError(f"this MinHash has {fault}")
    return np.array(minhash.hashvalues, np.uint32)


def _difference(scheme: str, seed: int, num_perm: int, num_perms: int, our_seed: int) -> str | None:
    for name, value, wanted in (
        ("scheme", scheme, SCHEME),
        ("seed", seed, our_seed),
        ("num_perm", num_perm, num_perms),
    ):
        if value != wanted:
            return (
                f"{name}={value}, and signatures here have {wanted}; make it with"
                f" MinHash({num_perms}, seed={our_seed}, hashfunc=int, scheme={SCHEME!r}) from"
                " shingle_hashes"
            )
    return None


def shingle_hashes(text: str, shingle_units: int) -> np.ndarray:
    """The sorted, distinct 32-bit item hashes of a text: what `update_batch` of a MinHash with
    `hashfunc=int` takes."""
    from tasks.kernels.dedup.shingles import make_scratch, shingle_sets
    from tasks.kernels.text.chars import char_classes, fold_table
    from tasks.kernels.text.view import view_of

    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    view = view_of(data, np.array([0, len(data)]), signs=True)
    tables = (char_classes(), fold_table())
    seen, rows = (view.values, view.begins), np.zeros(1, np.int64)
    hashes, _ = shingle_sets(seen, rows, shingle_units, tables, make_scratch(view.begins))
    return hashes


def write_minhashes(
    minhashes: Iterable[tuple[bytes, MinHash]], config: DedupConfig, file: Path
) -> int:
    """Write a file of (id, MinHash) that `match_signatures` reads; how many. Raises ValueError
    where one does not compare with signatures made by `config`."""
    ids, rows = [], []
    for name, minhash in minhashes:
        ids.append(name)
        rows.append(from_datasketch(minhash, config.num_perms, config.seed))
    _write_rows(ids, np.array(rows, np.uint32).reshape(len(ids), config.num_perms), config, file)
    return len(ids)


def export_signatures(dedup: Artifact, config: DedupConfig, file: Path) -> int:
    """Write the signature of every distinct text that has shingles in the index of a dedup
    artifact; how many.

    config: the one of that artifact. Raises ConfigError where it is not, or where the artifact kept
    no index.
    """
    index = _open(dedup, config)
    ids = index.ids.take(pa.array(index.members)).to_pylist()
    _write_rows(ids, index.signatures, config, file)
    return len(ids)


def match_signatures(
    dedup: Artifact, config: DedupConfig, file: Path
) -> Iterator[tuple[bytes, bytes, float]]:
    """(id in the file, id in the index, share of equal values) of signatures that share a band and
    reach `config.threshold`; in full buckets those with the first ones, as deduplication does.

    Raises ConfigError as `export_signatures`, and on a file of other signatures.
    """
    from tasks.kernels.dedup.banding import band_table, candidate_pairs

    ids, rows = _read_rows(config, file)
    index = _open(dedup, config)
    known = index.ids.take(pa.array(index.members))
    all_rows = np.concatenate([index.signatures, rows])
    bands = band_table(all_rows, [choose_bands(config)[0]])
    pairs = candidate_pairs(bands, config.full_bucket_documents, num_earlier=len(known))
    for pair in pairs.tolist():
        ours, theirs = pair >> 32, pair & 0xFFFFFFFF
        equal = float(np.mean(all_rows[ours] == all_rows[theirs]))
        if ours < len(known) and equal >= config.threshold:
            yield ids[theirs - len(known)].as_py(), known[ours].as_py(), equal


def _open(dedup: Artifact, config: DedupConfig) -> Index:
    config = replace(config, index=dedup.path)
    config.input_files()
    return open_index(config)


def _write_rows(ids: list[bytes], rows: np.ndarray, config: DedupConfig, file: Path) -> None:
    values = pa.array(np.ascontiguousarray(rows, np.uint32).reshape(-1))
    hashvalues = pa.FixedSizeListArray.from_arrays(values, config.num_perms)
    table = pa.table({"id": pa.array(ids, pa.binary()), "hashvalues": hashvalues})
    about = {"scheme": SCHEME, "seed": str(config.seed)}
    write_table(table.replace_schema_metadata(about), file)


def _read_rows(config: DedupConfig, file: Path) -> tuple[pa.ChunkedArray, np.ndarray]:
    wanted = "give a file that `textmill exchange-signatures export` has written"
    if not file.is_file():
        raise ConfigError(f"{file} is not a file; {wanted}")
    try:
        table = pq.read_table(file)
        rows, about = table["hashvalues"].combine_chunks(), table.schema.metadata or {}
        scheme, seed = about[b"scheme"].decode(), int(about[b"seed"])
        fault = _difference(scheme, seed, rows.type.list_size, config.num_perms, config.seed)
        values = rows.flatten().to_numpy().astype(np.uint32, casting="safe")
        ids = table["id"]
    except (pa.ArrowException, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} holds no signatures ({type(error).__name__}); {wanted}"
        ) from error
    if fault:
        raise ConfigError(f"{file} has {fault}")
    return ids, values.reshape(len(ids), config.num_perms)
