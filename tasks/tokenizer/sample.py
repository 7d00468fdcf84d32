"""Draws a sample of documents that represents a corpus: by bytes, spread over sources and
languages.

A stratum is the documents of one source and one identified language. The bytes wanted are shared
out in proportion to the strata's own bytes raised to `exponent`: 1 keeps the mixture of the corpus,
0 gives every stratum the same, 0.3 to 0.7 lifts rare languages (Conneau et al. 2020, section 3.1,
sample so). A stratum with less than its share gives all it has, and the others share the rest.
Within a stratum documents are taken in the order of a keyed hash of their ids, so a sample depends
on nothing but ids, sizes and the seed. What one stratum takes too much, by its last document, the
next one takes less.

Columns in: `id`, `text` (its length only), `source`, `language`, `split`. Cost: about 100 bytes of
memory per document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llm_core.data.order import hash_ids
from tasks.corpus.documentset import id_matrix
from tasks.corpus.language_labels import UNDETERMINED
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure


@dataclass(frozen=True)
class Rows:
    """Facts of every document, in file order: ids uint8 (documents, 16), the rest one value per
    document."""

    ids: np.ndarray
    num_bytes: np.ndarray
    split: np.ndarray
    stratum: np.ndarray
    """Place in `strata`."""
    strata: tuple[tuple[str, str], ...]
    """(source, language), sorted."""


def list_rows(documents: Artifact) -> Rows:
    """Read the facts of all documents. Raises StageFailure where there are none."""
    ids, splits, sizes, names = [], [], [], []
    for file in documents.files("part-*.parquet"):
        columns = ["id", "text", "source", "language", "split"]
        for batch in pq.ParquetFile(file).iter_batches(columns=columns, use_threads=False):
            ids.append(id_matrix(batch["id"]))
            sizes.append(pc.binary_length(batch["text"]).to_numpy().astype(np.int64))
            splits.append(np.array(batch["split"].to_pylist(), object))
            pairs = zip(batch["source"].to_pylist(), batch["language"].to_pylist(), strict=True)
            names += [(source or "", language or UNDETERMINED) for source, language in pairs]
    if not ids:
        raise StageFailure("tokenizer got no documents; loosen the filters or give more documents")
    strata = tuple(sorted(set(names)))
    place = {name: k for k, name in enumerate(strata)}
    stratum = np.array([place[name] for name in names], np.int64)
    return Rows(np.concatenate(ids), np.concatenate(sizes), np.concatenate(splits), stratum, strata)


def sample(rows: Rows, split: str, max_bytes: int, seed: int, exponent: float = 1.0) -> np.ndarray:
    """Mask (documents,) of a sample of a split: at least `max_bytes`, by less than one document,
    where there are as many."""
    mask = rows.split == split
    counted = np.bincount(rows.stratum[mask], rows.num_bytes[mask], len(rows.strata))
    available = counted.astype(np.int64)
    if available.sum() <= max_bytes:
        return mask
    order = np.flatnonzero(mask)
    order = order[np.lexsort((hash_ids(rows.ids[order], seed), rows.stratum[order]))]
    ends = np.searchsorted(rows.stratum[order], np.arange(len(rows.strata)), "right")
    mask = np.zeros(len(mask), bool)
    begin, owed = 0, 0.0
    quotas = share_out(available, max_bytes, exponent)
    for end, quota in zip(ends.tolist(), quotas.tolist(), strict=True):
        members = order[begin:end]
        before = np.cumsum(rows.num_bytes[members]) - rows.num_bytes[members]
        # A millionth of a byte covers what rounding leaves of quotas that add up.
        taken = members[before < quota + owed - 1e-6]
        mask[taken] = True
        owed += quota - float(rows.num_bytes[taken].sum())
        begin = end
    return mask


def share_out(available: np.ndarray, wanted: int, exponent: float) -> np.ndarray:
    """Bytes that each stratum gives (float64), their sum `wanted` unless all have less."""
    weights = np.where(available > 0, available.astype(np.float64) ** exponent, 0.0)
    quotas = np.zeros(len(available))
    is_open = available > 0
    left = float(min(wanted, available.sum()))
    # What a small stratum cannot give is shared out again, among fewer strata each time.
    while is_open.any():
        shares = np.where(is_open, left * weights / weights[is_open].sum(), 0.0)
        exhausted = is_open & (shares >= available)
        if not exhausted.any():
            return np.where(is_open, shares, quotas)
        quotas[exhausted] = available[exhausted]
        left -= float(available[exhausted].sum())
        is_open &= ~exhausted
    return quotas


def describe_strata(rows: Rows, split: str, mask: np.ndarray) -> dict[str, Any]:
    """{source/language: {bytes, sampled_bytes}} of a split."""
    of_split = rows.split == split
    totals, taken = (
        np.bincount(rows.stratum[m], rows.num_bytes[m], len(rows.strata)) for m in (of_split, mask)
    )
    return {
        f"{source}/{language}": {"bytes": int(totals[k]), "sampled_bytes": int(taken[k])}
        for k, (source, language) in enumerate(rows.strata)
        if totals[k]
    }


def read_texts(documents: Artifact, mask: np.ndarray) -> Iterator[str]:
    """Texts of the masked documents, in file order."""
    row = 0
    for file in documents.files("part-*.parquet"):
        for batch in pq.ParquetFile(file).iter_batches(columns=["text"], use_threads=False):
            chosen = mask[row : row + batch.num_rows]
            row += batch.num_rows
            if chosen.any():
                yield from batch.filter(chosen)["text"].to_pylist()
