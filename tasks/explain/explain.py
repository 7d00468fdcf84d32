"""Explains a document: every stage's measures, verdicts and evidence, and where the document is
now.

A document is named by its own id in hex, by the id its source gave it or by its URL: nobody knows
the ids of web archives. Its row is looked up in each artifact of a run by place: sidecars have the
rows of ingest. Of a record that became no document there are reason and place. The beginning of the
raw text, and the texts of evaluation items that stand in it, are part of the answer: it is for the
terminal of whoever has the data anyway, and nothing here is logged or tracked. Cost: the narrow
columns of the parts until the document is found, then one part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contamination.hits import hits_of
from tasks.corpus.documentset import ID, find_rows, read_row, read_table
from tasks.corpus.visible import shows
from tasks.documents.stage import EMPTIED, MIXTURE
from tasks.documents.verdicts import JUDGES
from tasks.ingest.droppedrecords import DROPPED_FILE, find_dropped
from tasks.quality.described_rules import place_of, rule_at, threshold_at
from tasks.runtime.artifact import Artifact

EXCERPT_CHARS = 300
NEEDED = ("ingest", "language", "quality", "dedup", "pii", "documents")
"""Stages whose artifacts say all there is to say; others are told of where they are there."""


@dataclass(frozen=True)
class Place:
    """A document's file and row."""

    name: str
    row: int


def find_documents(ingest: Artifact, identifier: str) -> list[Place]:
    """Where the documents with this id, or this id of their source, or this URL stand."""
    for column, wanted in (*_columns_of(identifier), ("url", pa.scalar(identifier))):
        places = []
        for file in ingest.files("documents/part-*.parquet"):
            places += [Place(file.name, row) for row in find_rows(file, column, wanted)]
        if places:
            return places
    return []


def find_records(ingest: Artifact, identifier: str) -> list[dict[str, Any]]:
    """What ingest says of records with this id, or this id of their source, that became no
    document; as JSON-able values."""
    for column, wanted in _columns_of(identifier):
        if records := find_dropped(ingest, column, wanted):
            return [one | {"id": one["id"].hex() if one["id"] else None} for one in records]
    return []


def find_file(ingest: Artifact, path: str) -> dict[str, Any] | None:
    """What became no document of a file of the source, as JSON-able values; None for another file.

    path: its name in the source, or a path that ends with it.
    """
    left_out = ingest.metrics.get("files_left_out", {}).get("examples", [])
    names = [*ingest.record.get("identity", {}).get("inputs", {}), *left_out]
    fits = [name for name in names if path == name or path.endswith(f"/{name}")]
    if not fits:
        return None
    name = max(fits, key=len)
    rows = []
    for file in ingest.files(DROPPED_FILE):
        table = read_table(file)
        # Members of an archive are named after it.
        member = pc.starts_with(table["file"], f"{name}!")
        rows += table.filter(pc.or_(pc.equal(table["file"], name), member)).to_pylist()
    reasons = Counter((row["outcome"], row["reason"].partition(":")[0]) for row in rows)
    shown = [row for row in rows if row["outcome"] == "quarantined"] or rows
    return {
        "name": name,
        "is_read": name not in left_out,
        "reasons": [[*what, count] for what, count in reasons.most_common()],
        "records": [row | {"id": row["id"].hex() if row["id"] else None} for row in shown[:10]],
    }


def _columns_of(identifier: str) -> Iterator[tuple[str, pa.Scalar]]:
    """The columns that an identifier is looked for in, and its value there, first ours, which
    nobody else has.

    Sources name documents by such digests too.
    """
    if re.fullmatch("[0-9a-fA-F]{32}", identifier):
        yield "id", pa.scalar(bytes.fromhex(identifier), ID)
    yield "source_id", pa.scalar(identifier)


def explain_document(artifacts: Mapping[str, Artifact], place: Place) -> dict[str, Any]:
    """All that a run knows of one document, as JSON-able values."""
    row = read_row(artifacts["ingest"].file(f"documents/{place.name}"), place.row)
    text, document_id = row.pop("text"), row["id"]
    label = read_row(artifacts["language"].file(place.name), place.row)
    about = {"id": document_id.hex(), "bytes": len(text.encode())}
    explained: dict[str, Any] = {
        "document": {**row, **about, "file": place.name, "row": place.row},
        "language": {"language": label["language"], "score": label.get("score")},
        "quality": _quality(artifacts["quality"], place, row, label["language"]),
        "dedup": _dedup(artifacts["dedup"], place, document_id),
    }
    for stage in ("scores", "contamination"):
        if stage in artifacts:
            found = read_row(artifacts[stage].file(place.name), place.row)
            explained[stage] = {name: value for name, value in found.items() if name != "id"}
    if explained.get("contamination", {}).get("num_hits"):
        hits = hits_of(artifacts["contamination"], document_id.hex(), text)
        explained["contamination"]["hits"] = hits
    pii = read_row(artifacts["pii"].file(place.name), place.row)
    explained["pii"] = {
        "kept": pii.get("kept", True),
        "spans": [{k: s[k] for k in ("start", "end", "type")} for s in pii["spans"]],
    }
    explained["now"] = _now(artifacts["documents"], place, document_id, text, explained)
    explained["excerpt"] = text[:EXCERPT_CHARS]
    return explained


def _quality(
    quality: Artifact, place: Place, document: Mapping[str, Any], language: str
) -> dict[str, Any]:
    """Broken rules with value and threshold, those that drop first, whose rules they are, and all
    features."""
    row = read_row(quality.file(place.name), place.row)
    judged_as = place_of(quality.config, document["source"], language, document["metadata"])
    broken = []
    for rule in quality.metrics["rules"]:
        if row["verdict"] >> rule["bit"] & 1:
            broken.append(
                {
                    "rule": rule["name"],
                    "preset": rule_at(rule, quality.config, judged_as)["preset"],
                    "feature": rule["feature"],
                    "value": row[rule["feature"]],
                    "side": rule["side"],
                    "threshold": threshold_at(rule, quality.config, judged_as),
                    "drops": bool(row["drops"] >> rule["bit"] & 1),
                }
            )
    others = ("id", "verdict", "drops", "kept", "masks", "cuts", "bucket")
    labels = {axis: getattr(judged_as, axis) for axis in ("language", "kind", "source")}
    return {
        "kept": row["kept"],
        "kind": judged_as.kind,
        "overlays": [
            f"by_{axis}.{label}"
            for axis, label in labels.items()
            if label in quality.config.get(f"by_{axis}", {})
        ],
        "reason": next((rule["rule"] for rule in broken if rule["drops"]), None),
        "broken": sorted(broken, key=lambda rule: not rule["drops"]),
        "masks": row.get("masks") or [],
        "cuts": row.get("cuts") or [],
        "bucket": row.get("bucket"),
        "features": {name: value for name, value in row.items() if name not in others},
    }


def _dedup(dedup: Artifact, place: Place, document_id: bytes) -> dict[str, Any]:
    """Cluster, family and survivor, and every pair that speaks for them, with documents of this run
    and of earlier ones."""
    row = read_row(dedup.file(place.name), place.row)
    evidence = _pairs(dedup.file("pairs.parquet"), document_id, earlier=False)
    for file in dedup.files("earlier_pairs.parquet"):  # only where the run compared with an index
        evidence += _pairs(file, document_id, earlier=True)
    return {
        "kept": row["kept"],
        "reason": row["reason"],
        "survivor": row["cluster_id"].hex() if row["cluster_id"] else None,
        "cluster_size": row["cluster_size"],
        "family": row["family_id"].hex() if row["family_id"] else None,
        "evidence": sorted(evidence, key=lambda pair: -pair["jaccard"]),
        "cuts": row.get("cuts") or [],
    }


def _pairs(file: Path, document_id: bytes, earlier: bool) -> list[dict[str, Any]]:
    """The pairs of a document. earlier: the preferred one is of an earlier run."""
    wanted = pa.scalar(document_id, ID)
    pairs = read_table(file).filter((pc.field("a") == wanted) | (pc.field("b") == wanted))
    return [
        {
            "preferred": pair["a"].hex(),
            "other": pair["b"].hex(),
            "jaccard": pair["jaccard"],
            "removed": pair["removed"],
            "earlier": earlier,
        }
        for pair in pairs.to_pylist()
    ]


def _now(
    documents: Artifact, place: Place, document_id: bytes, text: str, explained: Mapping[str, Any]
) -> dict[str, Any]:
    """Where the document is: in the corpus with its split and repeats, or who sent it away."""
    ids = read_table(documents.file(place.name), ["id"])["id"]
    row = pc.index(ids, pa.scalar(document_id, ID)).as_py()
    if row >= 0:
        kept = read_row(documents.file(place.name), row)
        return {
            "kept": True,
            "split": kept["split"],
            "repeats": kept["repeats"],
            "bytes": len(kept["text"].encode()),
            "family": kept["family_id"].hex(),
        }
    for stage in JUDGES:
        found = explained.get(stage, {})
        if found.get("kept") is False:
            reason = found.get("reason") or stage.upper()
            return {"kept": False, "dropped_by": stage, "reason": reason}
    # Every judge kept it: its cuts left no text, or the mixture did not take it.
    raw, rest, position = text.encode(), b"", 0
    cuts = [*explained["dedup"]["cuts"], *explained["quality"]["cuts"]]
    for cut in sorted(cuts, key=lambda cut: cut["start"]):
        rest, position = rest + raw[position : cut["start"]], max(position, cut["end"])
    emptied = position > 0 and not shows((rest + raw[position:]).decode())
    return {"kept": False, "dropped_by": "documents", "reason": EMPTIED if emptied else MIXTURE}
