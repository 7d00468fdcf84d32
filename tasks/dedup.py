"""Which documents say what another one says already? Exact and near duplicates, one survivor each, and families.

Exact: a 128-bit key of the case-folded text with white space collapsed (`tasks.kernels.exact`). Near: MinHash with
LSH banding over n-grams of units (Broder 1997; Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, ch. 3),
every candidate verified by the exact Jaccard similarity of its shingle sets. A document goes only if it equals
its survivor or is verified against it, so chains of likeness do not melt a corpus into one document. A looser
banding of the same signatures finds *families*, connected by verified similarity of at least
`family_threshold`: what must stay on one side of a train/validation split.

Reads id, text, source, added_at and the verdict of quality; only documents that quality kept take part. Writes per
part id, cluster_id (the id of the survivor), family_id (the id of the family's most preferred document),
cluster_size, kept, reason. Writes `pairs.parquet`: pairs of similar documents a, b with their exact similarity,
sorted, a preferred to b, `removed` where b went because of a. Copies are one document to everything near, so
only the most preferred copy is in the pairs: the cluster_id of the others says all.

Who survives is a total order of documents, so the result is the same for any number of workers, parts or order of
files. Cost: a walk over the text and its min-hashes per part; in the main process sorting and about 0.6 kB of memory
per document. Left out: duplicate paragraphs within documents, containment, likeness of meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError
from tasks.artifact import Artifact, check_accounting
from tasks.documentset import ID, document_parts, read_table, write_table
from tasks.keys import digest
from tasks.near_duplicates import Banding, NearDuplicates, find_near_duplicates
from tasks.parts import Part, RunParts, serial
from tasks.signatures import SignedDocuments, gather_shingle_sets, id_words, sign_part
from tasks.stage import StageFailure

EXACT_DUPLICATE = "EXACT_DUPLICATE"
NEAR_DUPLICATE = "NEAR_DUPLICATE"

SIDECAR_SCHEMA = pa.schema(
    [
        ("id", ID),
        ("cluster_id", ID),
        ("family_id", ID),
        ("cluster_size", pa.int32()),
        ("kept", pa.bool_()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class DedupConfig:
    method: Literal["exact", "minhash"] = "minhash"
    """`exact` removes equal texts only; `minhash` removes near duplicates too and finds families."""

    shingle_units: int = 5
    """Units in a shingle: words, or characters in scripts written without spaces."""

    num_perms: int = 112
    """Min-hashes of a document."""

    threshold: float = 0.8
    """Least Jaccard similarity to the survivor of a document that is removed."""

    num_bands: int | None = 14
    """Bands of num_perms / num_bands min-hashes. Null lets datasketch choose bands and rows for `threshold`."""

    family_threshold: float = 0.5
    """Least Jaccard similarity of neighbours in a family."""

    num_family_bands: int | None = 28
    """As `num_bands`, for `family_threshold`."""

    full_bucket_documents: int = 16
    """A bucket of up to so many documents gives all its pairs, a larger one only those with its most preferred document."""

    survivor: tuple[Literal["source", "length", "added_at", "id"], ...] = ("length", "id")
    """What is preferred, first rule first: the earlier place in `source_order`, more bytes of text, the earlier `added_at`
    (compared as text, missing last), the smaller id."""

    source_order: tuple[str, ...] = ()
    """Sources from most to least preferred for the rule `source`; a source that is not listed comes last."""

    seed: int = 1
    """Of the min-hash permutations."""

    def __post_init__(self) -> None:
        if self.shingle_units < 1:
            raise ConfigError(f"shingle_units ({self.shingle_units}) must be at least 1; try 5")
        if self.num_perms < 2:
            raise ConfigError(f"num_perms ({self.num_perms}) must be at least 2; try 112")
        for name, bands in (("num_bands", self.num_bands), ("num_family_bands", self.num_family_bands)):
            if bands is not None and (bands < 1 or self.num_perms % bands):
                good = max(d for d in range(1, max(bands, 1) + 1) if self.num_perms % d == 0)
                raise ConfigError(f"num_perms ({self.num_perms}) must be a multiple of {name} ({bands}); try {name}={good}")
        if not 0 < self.family_threshold <= self.threshold <= 1:
            raise ConfigError(
                f"family_threshold ({self.family_threshold}) and threshold ({self.threshold}) must satisfy "
                "0 < family_threshold <= threshold <= 1; try 0.5 and 0.8"
            )
        if self.full_bucket_documents < 2:
            raise ConfigError(f"full_bucket_documents ({self.full_bucket_documents}) must be at least 2; try 16")
        if not self.survivor or self.survivor[-1] != "id" or len(set(self.survivor)) < len(self.survivor):
            raise ConfigError(
                f"survivor ({list(self.survivor)}) must name each rule once and end with id, so that no two documents tie; "
                "try survivor='[length,id]'"
            )
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"seed ({self.seed}) must be in 0 .. 2^32 - 1; try 1")


def deduplicate(
    ingest: Artifact, quality: Artifact, out_dir: Path, config: DedupConfig, run_parts: RunParts = serial
) -> Artifact:
    """Keep one document of every set of equal or nearly equal ones; see the module for columns and reasons.

    Raises ArtifactMismatch if `quality` judged other documents, StageFailure if it kept none.
    """
    parts = document_parts(ingest, quality=quality)
    signing = [Part(part.name, digest(["signatures", part.digest]), part.payload) for part in parts]
    signed = run_parts(sign_part, signing, config, out_dir)
    documents = SignedDocuments.load(signed, config)
    if len(documents) == 0:
        raise StageFailure("dedup has no documents: quality kept none; see its funnel, and loosen its rules")

    representative = documents.exact_representatives()
    survivor, near = representative, None
    metrics: dict[str, Any] = {}
    if config.method == "minhash":
        near, metrics = _near_duplicates(documents, representative, parts, config, run_parts, out_dir)
        survivor = near.survivor[representative]
    family = _families(representative, near)

    _write_sidecars(documents, parts, representative, survivor, family, out_dir)
    _write_pairs(documents, near, out_dir / "pairs.parquet")
    counters = _count(representative, survivor)
    check_accounting("dedup", counters)
    return Artifact(out_dir, "dedup", counters, _cluster_metrics(documents, survivor, family) | metrics)


def choose_bands(config: DedupConfig) -> tuple[Banding, Banding]:
    """(bands, rows per band) for near duplicates and for families."""
    return (
        _bands(config.num_bands, config.threshold, config.num_perms),
        _bands(config.num_family_bands, config.family_threshold, config.num_perms),
    )


def _bands(num_bands: int | None, threshold: float, num_perms: int) -> Banding:
    if num_bands is not None:
        return num_bands, num_perms // num_bands
    from datasketch import MinHashLSH

    # A false candidate costs one comparison, a missed pair stays in the corpus: misses weigh more.
    chosen = MinHashLSH(threshold=threshold, num_perm=num_perms, weights=(0.1, 0.9))
    return chosen.b, chosen.r


def _near_duplicates(
    documents: SignedDocuments,
    representative: np.ndarray,
    parts: Sequence[Part],
    config: DedupConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> tuple[NearDuplicates, dict[str, Any]]:
    """Near duplicates among representatives that have shingles, numbered as documents; and what the report tells of them."""
    from tasks.kernels.banding import collision_probability

    members = np.flatnonzero((representative == np.arange(len(documents))) & (documents.num_shingles > 0))

    def get_sets(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return gather_shingle_sets(documents, members[rows], parts, config, run_parts, out_dir)

    (bands, rows), (family_bands, family_rows) = bandings = choose_bands(config)
    found = find_near_duplicates(
        documents.signatures(members, config.num_perms),
        bandings,
        config.threshold,
        config.family_threshold,
        config.full_bucket_documents,
        get_sets,
    )
    survivor = np.arange(len(documents))
    survivor[members] = members[found.survivor]
    near = NearDuplicates(survivor, members[found.a], members[found.b], found.jaccard, found.num_candidates, found.num_compared)
    lsh = {
        "num_perms": config.num_perms,
        "num_bands": bands,
        "rows_per_band": rows,
        "threshold": config.threshold,
        "recall_at_threshold": round(collision_probability(config.threshold, bands, rows), 4),
        "num_family_bands": family_bands,
        "rows_per_family_band": family_rows,
        "family_threshold": config.family_threshold,
        "recall_at_family_threshold": round(collision_probability(config.family_threshold, family_bands, family_rows), 4),
    }
    return near, {
        "lsh": lsh,
        "candidate_pairs": near.num_candidates[0],
        "family_candidate_pairs": near.num_candidates[1],
        "compared_pairs": near.num_compared,
        "verified_pairs": int((near.jaccard >= config.threshold).sum()),
        "family_pairs": len(near.jaccard),
    }


def _families(representative: np.ndarray, near: NearDuplicates | None) -> np.ndarray:
    from tasks.kernels.overlap import smallest_connected

    members = np.arange(len(representative))
    a = np.concatenate([representative, near.a]) if near else representative
    b = np.concatenate([members, near.b]) if near else members
    return smallest_connected(len(representative), a, b)


def _write_sidecars(
    documents: SignedDocuments,
    parts: Sequence[Part],
    representative: np.ndarray,
    survivor: np.ndarray,
    family: np.ndarray,
    out_dir: Path,
) -> None:
    sizes = np.bincount(survivor, minlength=len(documents))
    everyone = np.arange(len(documents))
    reasons = np.where(representative != everyone, 1, np.where(survivor != everyone, 2, 0))
    names = pa.array([None, EXACT_DUPLICATE, NEAR_DUPLICATE], pa.string())
    for part, here in zip(parts, documents.places_by_part(everyone), strict=True):
        ids = read_table(part.payload["documents"], ["id"])["id"]
        document = np.full(len(ids), -1, np.int64)
        document[documents.row[here]] = here
        absent = document < 0

        def column(values: np.ndarray, type: pa.DataType = pa.int64()) -> pa.Array:  # noqa: B008
            return pa.array(values[document], type, mask=absent)  # noqa: B023 (called in this turn of the loop)

        columns = [
            ids,
            documents.ids.take(column(survivor)),
            documents.ids.take(column(family)),
            column(sizes[survivor], pa.int32()),
            pa.array(~absent & (survivor[document] == document)),
            names.take(column(reasons)),
        ]
        write_table(pa.Table.from_arrays(columns, schema=SIDECAR_SCHEMA), out_dir / part.name)


def _write_pairs(documents: SignedDocuments, near: NearDuplicates | None, file: Path) -> None:
    a, b = (near.a, near.b) if near else (np.zeros(0, np.int64),) * 2
    jaccard = near.jaccard if near else np.zeros(0)
    removed = near.survivor[b] == a if near else np.zeros(0, bool)
    words = id_words(documents.ids)
    order = np.lexsort((*words[b].T[::-1], *words[a].T[::-1]))
    columns = {
        "a": documents.ids.take(pa.array(a[order])),
        "b": documents.ids.take(pa.array(b[order])),
        "jaccard": pa.array(jaccard[order]),
        "removed": pa.array(removed[order]),
    }
    write_table(pa.table(columns), file)


def _count(representative: np.ndarray, survivor: np.ndarray) -> dict[str, Any]:
    everyone = np.arange(len(survivor))
    exact = int((representative != everyone).sum())
    kept = int((survivor == everyone).sum())
    near = int(((survivor != everyone) & (representative == everyone)).sum())
    dropped = {reason: n for reason, n in ((EXACT_DUPLICATE, exact), (NEAR_DUPLICATE, near)) if n}
    return {"read": len(survivor), "kept": kept, "dropped": dropped, "quarantined": 0}


def _cluster_metrics(documents: SignedDocuments, survivor: np.ndarray, family: np.ndarray) -> dict[str, Any]:
    sizes = np.bincount(survivor, minlength=len(survivor))
    values, counts = np.unique(sizes[sizes > 0], return_counts=True)
    clusters = []
    for head in np.argsort(-sizes, kind="stable")[:10]:
        if sizes[head] > 1:
            members = np.flatnonzero(survivor == head)
            others = members[members != head][:5]
            clusters.append(
                {
                    "size": int(sizes[head]),
                    "survivor_id": _hex(documents, head),
                    "member_ids": [_hex(documents, m) for m in others],
                }
            )
    families = np.bincount(family)
    return {
        "clusters": clusters,
        "cluster_size_histogram": {str(v): int(n) for v, n in zip(values, counts, strict=True)},
        "families": int((families > 0).sum()),
        "largest_family": int(families.max()),
        "candidate_pairs": 0,
        "verified_pairs": 0,
    }


def _hex(documents: SignedDocuments, index: int) -> str:
    return documents.ids[int(index)].as_py().hex()
