"""Writes signatures for datasketch and reads them back: one row is one `datasketch.MinHash`, bit
for bit.

Both take a 32-bit hash of each item, mix it by the MurmurHash3 finalizer and keep the least of odd
`a_k * h + b_k` modulo 2^32 (the scheme `affine32` of datasketch 2, its default), with a_k and b_k
of the same seed. The item hash is ours: the high half of a shingle's
(`tasks.kernels.dedup.shingles`), so a MinHash made here is updated further with `shingle_hashes`,
by `hashfunc=int`. Signatures of another scheme, seed or length are refused, for they would compare
as if they meant something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.dedup.config import DedupConfig
from tasks.dedup.index import open_index
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
    for name, value, wanted in (
        ("scheme", minhash.scheme, SCHEME),
        ("seed", minhash.seed, seed),
        ("num_perm", len(minhash.hashvalues), num_perms),
    ):
        if value != wanted:
            raise ValueError(
                f"this MinHash has {name}={value}, signatures here {wanted}; make it with"
                f" MinHash({num_perms}, seed={seed}, hashfunc=int, scheme={SCHEME!r}) from"
                " shingle_hashes"
            )
    return np.array(minhash.hashvalues, np.uint32)


def shingle_hashes(text: str, shingle_units: int) -> np.ndarray:
    """The sorted, distinct 32-bit item hashes of a text: what `update_batch` of a MinHash with
    `hashfunc=int` takes."""
    from tasks.kernels.dedup.shingles import make_scratch, shingle_sets
    from tasks.kernels.text.chars import char_classes, fold_table

    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    begins = np.array([0, len(data)])
    tables = (char_classes(), fold_table())
    hashes, _ = shingle_sets(
        (data, begins), np.zeros(1, np.int64), shingle_units, tables, make_scratch(begins)
    )
    return hashes


def exported_signatures(dedup: Artifact, config: DedupConfig) -> Iterator[tuple[bytes, MinHash]]:
    """(document id, MinHash) of every distinct text in the index of a dedup artifact that has
    shingles, in its order.

    config: the one of that artifact. Raises ConfigError where it is not, or where the artifact kept
    no index.
    """
    config = replace(config, index=dedup.path)
    config.input_files()
    index = open_index(config)
    for document, signature in zip(
        index.ids.take(pa.array(index.members)).to_pylist(), index.signatures, strict=True
    ):
        yield document, to_datasketch(signature, config.seed)
