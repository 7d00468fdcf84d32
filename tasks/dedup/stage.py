"""Finds copies and near duplicates, keeps one survivor of each, groups families, and cuts repeated
text.

Same URL (opt-in): equal normal forms (`tasks.corpus.urls`). Exact: a 128-bit key of the case-folded
text with white space collapsed (`tasks.kernels.dedup.exact`). Near: MinHash with LSH banding over
n-grams of units (Broder 1997; Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, ch. 3),
every candidate verified by the exact Jaccard similarity of its shingle sets. A document goes only
if it equals its survivor or is verified against it, so chains of likeness do not melt a corpus into
one document. A looser banding of the same signatures finds *families*, connected by verified
similarity of at least `family_threshold`: what must stay on one side of a train/validation split.
Cuts (opt-in): text of documents that stay which occurred before, as lines, paragraphs or runs of
units (`tasks.dedup.cuts`).

With an index (`tasks.dedup.index`) documents are compared with those of earlier runs too, which are
preferred: the outcome is the one of a run over all, and no earlier text is read. A source that
holds earlier input again gives its new documents only: `earlier_duplicates` and `read_again` count
the others.

Reads id, text, source, added_at, url and the sidecar of quality; only documents that quality kept
take part. Writes per part id, cluster_id (the id of the survivor), family_id (the id of the
family's most preferred document), cluster_size (copies of all runs, so that survivors can be
weighted), kept, reason, cuts. Writes `pairs.parquet`: pairs of similar documents a, b with their
exact similarity, sorted, a preferred to b, `removed` where b went because of a. Copies are one
document to everything near, so only the most preferred copy is in the pairs: the cluster_id of the
others says all.

Who survives is a total order of documents, so the result is the same for any number of workers,
parts or order of files. Cost: a walk over the text and its min-hashes per part; in the main process
sorting and about 0.3 kB of memory per document. Left out: containment, likeness of meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.documentset import ID, document_parts, read_table, write_table
from tasks.dedup.clustering import REASONS, Clusters, cluster_documents
from tasks.dedup.config import DedupConfig
from tasks.dedup.cuts import CUTS, Cuts, find_cuts
from tasks.dedup.index import Index, open_index, write_index
from tasks.dedup.near_duplicates import GetSets
from tasks.dedup.signatures import sign_part
from tasks.dedup.signed_documents import SignedDocuments, id_words
from tasks.runtime.artifact import Artifact, check_accounting
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, serial
from tasks.runtime.stage import StageFailure

SIDECAR_SCHEMA = pa.schema(
    [
        ("id", ID),
        ("cluster_id", ID),
        ("family_id", ID),
        ("cluster_size", pa.int32()),
        ("kept", pa.bool_()),
        ("reason", pa.string()),
        ("cuts", CUTS),
    ]
)


def deduplicate(
    ingest: Artifact,
    quality: Artifact,
    out_dir: Path,
    config: DedupConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Keep one document of every set of equal or nearly equal ones; see the module for columns and
    reasons.

    Raises ArtifactMismatch if `quality` judged other documents, StageFailure if it kept none or the
    index has them all, ConfigError if the index was made in another way.
    """
    index = open_index(config)
    parts = document_parts(ingest, quality=quality)
    signing = [Part(part.name, digest(["signatures", part.digest]), part.payload) for part in parts]
    signed = run_parts(sign_part, signing, config, out_dir)
    documents = SignedDocuments.load(signed, config)

    clusters, get_sets = cluster_documents(documents, index, parts, config, run_parts, out_dir)
    reason = clusters.reason
    staying, pieces = np.flatnonzero(reason == 0), index.piece_keys
    cuts = find_cuts(documents, staying, parts, pieces, config, run_parts, out_dir)
    reason[cuts.nothing_left] = REASONS.index("NOTHING_LEFT")

    _write_sidecars(documents, parts, clusters, reason, cuts, out_dir)
    _write_pairs(clusters, out_dir, earlier=config.index is not None)
    if config.keep_index:
        grown = _grown(index, documents, clusters, get_sets, cuts, config)
        write_index(out_dir / "index", grown, config)
    counters = _count(reason, cuts)
    if config.index is not None:
        counters |= _count_earlier(clusters, reason)
    check_accounting("dedup", counters)
    if not counters["kept"]:
        worst = sorted(counters["dropped"].items(), key=lambda item: (-item[1], item[0]))[:3]
        raise StageFailure(
            f"dedup keeps none of {len(reason)} documents"
            f" ({', '.join(f'{name} {n}' for name, n in worst)}), because the index has their"
            " contents; add new documents"
        )
    metrics = _cluster_metrics(clusters) | clusters.metrics
    metrics |= {"cuts": cuts.counts(), "earlier_documents": len(index)}
    metrics["expected_false_cuts"] = cuts.expected_false_cuts
    return Artifact(out_dir, "dedup", counters, metrics)


def _write_sidecars(
    documents: SignedDocuments,
    parts: Sequence[Part],
    clusters: Clusters,
    reason: np.ndarray,
    cuts: Cuts,
    out_dir: Path,
) -> None:
    first = clusters.num_earlier
    survivor, family = clusters.survivor[first:], clusters.family[first:]
    everyone = np.arange(len(documents))
    names = pa.array(REASONS, pa.string())
    for part, here in zip(parts, documents.places_by_part(everyone), strict=True):
        ids = read_table(part.payload["documents"], ["id"])["id"]
        document = np.full(len(ids), -1, np.int64)
        document[documents.row[here]] = here
        # Documents that quality did not keep.
        absent = document < 0

        def column(values: np.ndarray, type: pa.DataType = pa.int64()) -> pa.Array:  # noqa: B008
            # Called in this turn of the loop only.
            return pa.array(values[document], type, mask=absent)  # noqa: B023

        columns = [
            ids,
            clusters.ids.take(column(survivor)),
            clusters.ids.take(column(family)),
            column(clusters.size[survivor], pa.int32()),
            pa.array(~absent & (reason[document] == 0)),
            names.take(column(reason)),
            cuts.column(document),
        ]
        write_table(pa.Table.from_arrays(columns, schema=SIDECAR_SCHEMA), out_dir / part.name)


def _write_pairs(clusters: Clusters, out_dir: Path, earlier: bool) -> None:
    words = id_words(clusters.ids)
    order = np.lexsort((*words[clusters.b].T[::-1], *words[clusters.a].T[::-1]))
    # Pairs with a document of an earlier run, whose text this run does not have.
    across = clusters.a[order] < clusters.num_earlier
    files = {"pairs.parquet": order[~across]}
    if earlier:
        files["earlier_pairs.parquet"] = order[across]
    for name, some in files.items():
        columns = {
            "a": clusters.ids.take(pa.array(clusters.a[some])),
            "b": clusters.ids.take(pa.array(clusters.b[some])),
            "jaccard": pa.array(clusters.jaccard[some]),
            "removed": pa.array(clusters.removed[some]),
        }
        write_table(pa.table(columns), out_dir / name)


def _grown(
    index: Index,
    documents: SignedDocuments,
    clusters: Clusters,
    get_sets: GetSets,
    cuts: Cuts,
    config: DedupConfig,
) -> Index:
    """The index with this run's distinct texts added. Copies and losers by URL are left out: their
    survivors stand for them."""
    first = len(index)
    rows = np.arange(len(clusters.survivor))
    stays = (clusters.by_url == rows) & (clusters.by_text == rows)
    number = np.cumsum(stays) - 1  # of stored rows
    stored = np.flatnonzero(stays)
    # Steps lead to smaller rows, so the smallest of a cluster or family is always stored.
    mine = stored[first:] - first
    with_url = np.flatnonzero(documents.has_url & (clusters.by_url[first:] == rows[first:]))
    exact = Index(
        clusters.ids.take(pa.array(stored)),
        np.concatenate([index.exact_key, documents.exact_key[mine]]),
        np.concatenate([index.blank, documents.blank[mine]]),
        np.concatenate([index.num_shingles, documents.num_shingles[mine]]),
        number[clusters.survivor[stored]],
        number[clusters.family[stored]],
        clusters.size[stored],
        np.concatenate([index.url_key, documents.url_key[with_url]]),
        np.concatenate([index.url_row, number[clusters.by_text[first + with_url]]]),
        index.signatures,
        index.bands,
        index.shingles,
        index.shingle_begins,
        cuts.piece_keys,
    )
    if config.method == "exact":
        return exact
    own_members = clusters.members[len(index.members) :] - first
    places = documents.places_by_part(own_members)
    signatures = documents.signatures(own_members, config.num_perms)
    bands = [documents.band_keys(own_members, places, i) for i in range(len(index.bands))]
    shingles, begins = get_sets(np.arange(len(clusters.members)))
    return replace(
        exact,
        signatures=np.concatenate([index.signatures, signatures]),
        bands=[np.concatenate(pair) for pair in zip(index.bands, bands, strict=True)],
        shingles=shingles,
        shingle_begins=begins,
    )


def _count(reason: np.ndarray, cuts: Cuts) -> dict[str, Any]:
    numbers = np.bincount(reason, minlength=len(REASONS)).tolist()
    dropped = {name: n for name, n in zip(REASONS, numbers, strict=True) if name and n}
    read = {"read": len(reason), "kept": numbers[0], "dropped": dropped, "quarantined": 0}
    return read | {"cut_bytes": cuts.num_bytes, "cut_documents": cuts.num_documents}


def _count_earlier(clusters: Clusters, reason: np.ndarray) -> dict[str, int]:
    """Documents that went because earlier runs have the like, and those of them which are the very
    documents that were read then: an id says where a document is from."""
    first, ids = clusters.num_earlier, clusters.ids
    lost = np.flatnonzero((reason > 0) & (clusters.survivor[first:] < first))
    read_again = pc.is_in(ids.slice(0, first), value_set=ids.take(pa.array(first + lost)))
    return {"earlier_duplicates": len(lost), "read_again": pc.sum(read_again).as_py() or 0}


def _cluster_metrics(clusters: Clusters) -> dict[str, Any]:
    """Of the clusters and families that have documents of this run."""
    first = clusters.num_earlier
    survivor, family = clusters.survivor[first:], clusters.family[first:]
    heads = np.unique(survivor)
    sizes = clusters.size[heads]
    values, counts = np.unique(sizes, return_counts=True)
    largest = []
    for place in np.argsort(-sizes, kind="stable")[:10]:
        if sizes[place] > 1:
            head = heads[place]
            members = first + np.flatnonzero(survivor == head)
            shown = [head, *members[members != head][:5]]
            head_id, *member_ids = (clusters.ids[int(row)].as_py().hex() for row in shown)
            cluster = {"size": int(sizes[place]), "survivor_id": head_id, "member_ids": member_ids}
            largest.append(cluster)
    _, families = np.unique(family, return_counts=True)
    return {
        "clusters": largest,
        "cluster_size_histogram": {str(v): int(n) for v, n in zip(values, counts, strict=True)},
        "families": len(families),
        "largest_family": int(families.max()),
    }
