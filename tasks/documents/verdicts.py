"""Gives each dropped document one reason, that of the first judge that did not keep it.

Judges in order: quality (the first of its dropping rules that is broken), dedup, contamination,
pii. Each left a sidecar with `kept`; those of dedup and contamination hold their `reason`. What
happens to a document later (EMPTIED, MIXTURE) is decided by `tasks.documents.stage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.corpus.documentset import check_aligned, one_chunk, read_table
from tasks.runtime.parts import Part

JUDGES = ("quality", "dedup", "contamination", "pii")
FALLBACK = dict(zip(JUDGES, ("QUALITY", "DUPLICATE", "CONTAMINATED", "PII"), strict=True))
"""The reason where a sidecar gives none."""
JUDGE_COLUMNS = {
    "quality": ("id", "num_bytes", "drops", "kept", "masks", "cuts", "bucket"),
    "dedup": ("id", "family_id", "cluster_size", "kept", "reason", "cuts"),
    "contamination": ("id", "kept", "reason"),
    "pii": ("id", "kept", "spans"),
}
_TEXTS = [(name, pa.string()) for name in ("type", "replacement", "reason")]
EDIT = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), *_TEXTS]))


@dataclass(frozen=True)
class Judged:
    """The documents of a part with what every judge said of them."""

    documents: pa.Table
    sidecars: Mapping[str, pa.Table]
    verdict: np.ndarray
    """int64: 0 for kept by all, else 1 + place in `reasons`."""
    reasons: Sequence[tuple[str, str]]
    """(stage, reason)."""

    @property
    def kept(self) -> pa.Array:
        return pa.array(self.verdict == 0)

    def dropped(self) -> dict[str, dict[str, int]]:
        """{stage: {reason: documents}}."""
        counts = np.bincount(self.verdict, minlength=len(self.reasons) + 1)[1:]
        table: dict[str, dict[str, int]] = {}
        for (stage, reason), count in zip(self.reasons, counts.tolist(), strict=True):
            if count:
                table.setdefault(stage, {})[reason] = count
        return table

    def kept_until(self, stage: str) -> int:
        """Documents that `stage` and every judge before it kept."""
        dropped = self.dropped()
        passed = JUDGES[: JUDGES.index(stage) + 1]
        return len(self.verdict) - sum(sum(dropped.get(name, {}).values()) for name in passed)


def read_judged(part: Part, document_columns: Sequence[str] | None = None) -> Judged:
    """A part with its judges' sidecars. Raises ArtifactMismatch for those of other documents."""
    documents = read_table(part.payload["documents"], document_columns)
    sidecars: dict[str, pa.Table] = {}
    for name in JUDGES:
        if name in part.payload:
            there = pq.read_schema(part.payload[name]).names
            columns = [column for column in JUDGE_COLUMNS[name] if column in there]
            sidecars[name] = read_table(part.payload[name], columns)
            check_aligned(documents, sidecars[name], name)
    verdict = np.zeros(documents.num_rows, np.int64)
    reasons: list[tuple[str, str]] = []

    def drop(rows: np.ndarray, stage: str, reason: str) -> None:
        reasons.append((stage, reason))
        verdict[rows & (verdict == 0)] = len(reasons)

    for name, table in sidecars.items():
        lost = ~table["kept"].to_numpy()
        if name == "quality":
            drops = table["drops"].to_numpy()
            # A number and its two's complement share the lowest set bit alone: the first rule.
            first = drops & (~drops + np.uint64(1))
            for bit, rule in enumerate(part.payload["rules"]):
                drop(lost & (first == np.uint64(1) << np.uint64(bit)), name, rule)
        elif "reason" in table.column_names:
            for reason in sorted(pc.unique(table["reason"]).drop_null().to_pylist()):
                given = pc.fill_null(pc.equal(table["reason"], reason), False).to_numpy()
                drop(lost & given, name, reason)
        drop(lost, name, FALLBACK[name])
    return Judged(documents, sidecars, verdict, reasons)


def edits_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of edits with all fields an edit may have; empty lists where the table has none."""
    if name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, EDIT)])
    known = [field.name for field in table[name].type.value_type]
    lists = one_chunk(table[name])
    flat = lists.flatten()
    fields = [
        flat.field(f.name).cast(f.type) if f.name in known else pa.nulls(len(flat), f.type)
        for f in EDIT.value_type
    ]
    # Null means no edits, like an empty list.
    lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    edits = pa.StructArray.from_arrays(fields, fields=list(EDIT.value_type))
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, edits)], EDIT)
