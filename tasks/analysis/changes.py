"""Compares the data of two runs over one source: inputs, documents, reasons, amounts and drift.

Reads ingest, language, quality, pii, documents and shards of both. Files that both runs have with
the same content are not opened. Drift is tested on the documents that are new to ingest, before any
rule has taken some away, against all documents of the run before. Cost: the ids of all documents
that may differ, and the measures of two samples. Leaves out who is right: a change is a fact, and
drift is a question to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llm_core.data.order import hash_ids
from tasks.analysis.drift import DriftConfig, compare_distributions
from tasks.corpus.documentset import ID, id_matrix, read_table
from tasks.ingest.withdrawn import REMOVE_FILE, WITHDRAWN
from tasks.runtime.artifact import Artifact

COMPARED = ("ingest", "language", "quality", "pii", "documents", "shards")
"""Stages whose artifacts are compared."""
MOST_NAMES = 20
NOT_MEASURES = ("id", "verdict", "drops", "kept", "masks", "cuts", "bucket")

Artifacts = Mapping[str, Artifact]


def compare_nights(now: Artifacts, before: Artifacts, config: DriftConfig) -> dict[str, Any]:
    """What is different now, as JSON-able values. Deterministic for equal artifacts."""
    added, gone, _ = _changed(now["documents"], before["documents"], "part-*.parquet")
    amounts = {name: _now_and_before(name, now, before) for name in _AMOUNTS}
    amounts["kept"] |= {"added": len(added), "gone": len(gone)}
    found = {
        "inputs": compare_inputs(now["ingest"], before["ingest"]),
        "documents": amounts,
        "dropped": _dropped(now["documents"], before["documents"]),
        "tokens": _tokens(now["shards"], before["shards"]),
    }
    return found | {"drift": _drift(now, before, config)}


def compare_inputs(now: Artifact, before: Artifact) -> dict[str, Any]:
    """Files that are new, changed, gone and the same, counted, and the first names of each."""
    ours, theirs = (
        {k: v for k, v in one.record["identity"]["inputs"].items() if k != REMOVE_FILE}
        for one in (now, before)
    )
    names = {
        "new": sorted(ours.keys() - theirs.keys()),
        "changed": sorted(k for k in ours.keys() & theirs.keys() if ours[k] != theirs[k]),
        "gone": sorted(theirs.keys() - ours.keys()),
    }
    counts = {kind: len(of_kind) for kind, of_kind in names.items()}
    same = len(ours) - counts["new"] - counts["changed"]
    shown = {kind: of_kind[:MOST_NAMES] for kind, of_kind in names.items() if of_kind}
    return {**counts, "same": same, "names": shown}


_AMOUNTS = ("read", "quarantined", "lost_estimate", "withdrawn", "ingested", "kept")


def _now_and_before(name: str, now: Artifacts, before: Artifacts) -> dict[str, int]:
    return {"now": _amount(name, now), "before": _amount(name, before)}


def _amount(name: str, run: Artifacts) -> int:
    counters = run["ingest"].counters
    if name == "kept":
        return int(run["documents"].counters["kept"])
    if name == "withdrawn":
        return int(counters["dropped"].get(WITHDRAWN, 0))
    return int(counters.get("kept" if name == "ingested" else name, 0))


def _dropped(now: Artifact, before: Artifact) -> list[dict[str, Any]]:
    """Documents by stage and first reason, in both runs, most first."""
    ours, theirs = now.metrics["dropped"], before.metrics["dropped"]
    places = {(s, reason) for one in (ours, theirs) for s, of in one.items() for reason in of}
    rows = [
        {
            "stage": stage,
            "reason": reason,
            "now": ours.get(stage, {}).get(reason, 0),
            "before": theirs.get(stage, {}).get(reason, 0),
        }
        for stage, reason in sorted(places)
    ]
    rows = [row for row in rows if row["now"] or row["before"]]
    return sorted(rows, key=lambda row: -max(row["now"], row["before"]))


def _tokens(now: Artifact, before: Artifact) -> dict[str, dict[str, float]]:
    ours, theirs = (one.metrics["splits"].values() for one in (now, before))
    sides = {"now": list(ours), "before": list(theirs)}
    tokens = {side: sum(s["tokens"] for s in splits) for side, splits in sides.items()}
    num_bytes = {side: sum(s["bytes"] for s in splits) for side, splits in sides.items()}
    # Of a tokenizer that is kept, fewer bytes a token say that it suits the text less.
    density = {side: num_bytes[side] / max(1, count) for side, count in tokens.items()}
    return {"tokens": tokens, "bytes": num_bytes, "bytes_per_token": density}


def _drift(now: Artifacts, before: Artifacts, config: DriftConfig) -> dict[str, Any]:
    """Tests of the new documents against those before, and the names of measures that drift."""
    new_ids, _, new_files = _changed(now["ingest"], before["ingest"], "documents/part-*.parquet")
    if len(new_ids) < config.least_documents:
        return {"new_documents": len(new_ids), "tests": [], "drifts": []}
    old_files = [Path(f).name for f in before["ingest"].files("documents/part-*.parquet")]
    new = sample_measures(now, new_files, config.sample_documents, new_ids)
    old = sample_measures(before, old_files, config.sample_documents, None)
    tests = compare_distributions(new, old, config)
    drifts = [row["measure"] for row in tests if row["drifts"]]
    return {"new_documents": len(new_ids), "tests": tests, "drifts": drifts}


def _changed(now: Artifact, before: Artifact, pattern: str) -> tuple[pa.Array, pa.Array, list[str]]:
    """(ids that only `now` has, ids that only `before` has, names of the files of the first)."""
    ours, theirs = (dict(_digests(one, pattern)) for one in (now, before))
    new_files = {f: d for f, d in ours.items() if d not in set(theirs.values())}
    old_files = {f: d for f, d in theirs.items() if d not in set(ours.values())}
    new_ids, old_ids = _ids(now, new_files), _ids(before, old_files)
    added = new_ids.filter(pc.invert(pc.is_in(new_ids, value_set=old_ids)))
    gone = old_ids.filter(pc.invert(pc.is_in(old_ids, value_set=new_ids)))
    return added, gone, [Path(name).name for name in new_files]


def _digests(artifact: Artifact, pattern: str) -> Iterator[tuple[str, str]]:
    for file in artifact.files(pattern):
        name = file.relative_to(artifact.path).as_posix()
        yield name, artifact.file_digest(name)


def _ids(artifact: Artifact, files: Mapping[str, str]) -> pa.Array:
    columns = [pq.read_table(artifact.file(f), columns=["id"])["id"] for f in files]
    return pa.chunked_array([c for one in columns for c in one.chunks], ID).combine_chunks()


def sample_measures(
    run: Artifacts, files: list[str], most: int, wanted: pa.Array | None
) -> dict[str, Any]:
    """{measure: values} of a sample of a run's documents: numbers float64 (documents,), or labels.

    wanted: only documents with these ids. Those are taken whose ids have the smallest hashes.
    """
    hashes, places = [], []
    for number, file in enumerate(files):
        ids = read_table(run["quality"].file(file), ["id"])["id"]
        rows = np.arange(len(ids))
        if wanted is not None:
            rows = np.flatnonzero(pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False))
        hashes.append(hash_ids(id_matrix(ids)[rows], 0))
        places.append(np.stack([np.full(len(rows), number), rows], axis=1))
    order = np.argsort(np.concatenate(hashes), kind="stable")[:most]
    chosen = np.concatenate(places)[order]
    tables: dict[str, list[pa.Table]] = {"quality": [], "language": [], "pii": []}
    for number in np.unique(chosen[:, 0]).tolist():
        rows = pa.array(np.sort(chosen[chosen[:, 0] == number, 1]))
        for stage, columns in (("quality", None), ("language", ["language"]), ("pii", ["spans"])):
            tables[stage].append(read_table(run[stage].file(files[number]), columns).take(rows))
    quality, language, pii = (pa.concat_tables(one) for one in tables.values())
    numbers = {
        name: quality[name].to_numpy().astype(np.float64)
        for name in quality.column_names
        if name not in NOT_MEASURES and _is_number(quality.schema.field(name).type)
    }
    spans = pii["spans"].to_pylist()
    kinds = ["+".join(sorted({span["type"] for span in of or ()})) or "none" for of in spans]
    labels = [label or "und" for label in language["language"].to_pylist()]
    return {"language": labels, "personal data": kinds, **numbers}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
