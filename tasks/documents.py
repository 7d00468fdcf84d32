"""What is the corpus? Documents that every judge kept, scrubbed, and divided into train and validation.

Joins the sidecars of ingest by position (and checks the join by id), keeps rows with `quality.kept` and `dedup.kept`,
replaces PII spans by tags and assigns `split` by family (`tasks.split`). Columns out: `id, text, source, source_id,
url, language` (identified), `family_id, split`, one file per ingest part. Two passes: family sizes, then texts.
Cost: reads every text twice, memory of one part plus one number per family.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llm_core.config import ConfigError
from tasks.artifact import Artifact, ArtifactMismatch, check_accounting
from tasks.documentset import (
    ID,
    SIDECAR_FILE,
    check_aligned,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    write_table,
)
from tasks.keys import digest
from tasks.parts import Part, RunParts, serial
from tasks.scrub import apply_spans, scrub
from tasks.split import SplitRule, choose_split
from tasks.stage import StageFailure
from tasks.tally import largest, tally_documents

SCHEMA = pa.schema(
    [
        ("id", ID),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("url", pa.string()),
        ("language", pa.string()),
        ("family_id", ID),
        ("split", pa.string()),
    ]
)
EXAMPLES_FILE = "examples.json"
MAX_EXAMPLES = 3
EXCERPT_CHARS = 300


@dataclass(frozen=True)
class DocumentsConfig:
    """How the kept documents are divided."""

    validation_frac: float = 0.05
    """Share of the text bytes that is held out."""
    seed: int = 0
    """Another seed holds out other families."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_frac <= 0.5:
            raise ConfigError(f"validation_frac ({self.validation_frac}) must be above 0 and at most 0.5; the default is 0.05")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed ({self.seed}) must be from 0 to 2^63 - 1; the default is 0")


def write_documents(
    ingest: Artifact,
    language: Artifact,
    quality: Artifact,
    dedup: Artifact,
    pii: Artifact,
    out_dir: Path,
    config: DocumentsConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Write the text that models learn from.

    Raises StageFailure where nothing is kept, or too little to hold something out; ArtifactMismatch where a sidecar
    belongs to other documents. Deterministic for equal parents, whatever the number of workers.
    """
    measuring = document_parts(ingest, quality=quality, dedup=dedup)
    measured = run_parts(measure_families, [_renamed(part, "measure", {}) for part in measuring], config, out_dir)
    families = _family_bytes([result.path / SIDECAR_FILE for result in measured])
    if not families:
        raise StageFailure(_nothing_kept(ingest, quality, dedup))
    rule = choose_split(families, config.validation_frac, config.seed)

    pairs = _example_pairs(dedup)
    wanted = {"rule": rule.to_payload(), "examples": sorted({member for pair in pairs for member in pair})}
    rules = [[str(r["name"]), int(r["bit"])] for r in quality.metrics.get("rules", ()) if r.get("drops", True)]
    parts = document_parts(ingest, language=language, quality=quality, dedup=dedup, pii=pii)
    results = run_parts(write_part, [_renamed(part, "write", wanted | {"rules": rules}) for part in parts], config, out_dir)
    link_sidecars(results, out_dir)

    counters = sum_counters([result.counters for result in results])
    by_language, by_source, split = (counters.pop(name) for name in ("by_language", "by_source", "split"))
    for name, entry in split.items():
        entry["families"] = sum(1 for family in families if rule.split_of(family) == name)
    check_accounting("documents", counters)
    metrics = {
        "funnel": [
            {"stage": "read", "documents": ingest.counters["read"]},
            {"stage": "ingest", "documents": ingest.counters["kept"]},
            {"stage": "quality", "documents": counters["kept_by_quality"]},
            {"stage": "dedup", "documents": counters["kept"]},
            {"stage": "documents", "documents": counters["kept"]},
        ],
        "dropped": {a.stage: dict(a.counters.get("dropped", {})) for a in (ingest, quality, dedup)},
        "by_language": by_language,
        "by_source": largest(by_source),
        "split": split,
        "duplicate_examples": _examples([result.path / EXAMPLES_FILE for result in results], pairs),
    }
    return Artifact(out_dir, "documents", counters, metrics)


def measure_families(part: Part, directory: Path, config: DocumentsConfig) -> dict[str, Any]:
    """Text bytes of the kept documents of one part, by family."""
    del config
    documents = read_table(part.payload["documents"], ["id", "text"])
    kept, _, dedup = _judged(documents, part)
    table = pa.table({"family_id": dedup["family_id"], "bytes": pc.binary_length(documents["text"].cast(pa.large_binary()))})
    table = table.filter(kept)
    if table["family_id"].null_count:
        raise ArtifactMismatch("dedup keeps a document without a family_id; rebuild it with force=[dedup]")
    grouped = table.group_by("family_id", use_threads=False).aggregate([("bytes", "sum")]).sort_by("family_id")
    write_table(grouped, directory / SIDECAR_FILE)
    return {"families": grouped.num_rows}


def write_part(part: Part, directory: Path, config: DocumentsConfig) -> dict[str, Any]:
    """The kept, scrubbed documents of one part, and excerpts of the wanted duplicates."""
    del config
    documents = read_table(part.payload["documents"])
    kept, quality, dedup = _judged(documents, part)
    language, pii = (read_table(part.payload[name]) for name in ("language", "pii"))
    check_aligned(documents, language, "language")
    check_aligned(documents, pii, "pii")
    _write_examples(directory / EXAMPLES_FILE, documents, dedup, part.payload["examples"])

    rule = SplitRule.from_payload(part.payload["rule"])
    texts = [scrubbed(text, spans) for text, spans in _with_spans(documents.filter(kept), pii.filter(kept))]
    family_ids = dedup["family_id"].filter(kept)
    splits = [rule.split_of(family) for family in family_ids.to_pylist()]
    rows = documents.filter(kept)
    languages = language["language"].filter(kept)
    columns = [rows["id"], texts, rows["source"], rows["source_id"], rows["url"], languages, family_ids, splits]
    table = pa.table([_column(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    write_table(table, directory / SIDECAR_FILE)

    sizes = pc.binary_length(table["text"].cast(pa.large_binary())).to_pylist()
    dropped = _drop_reasons(quality, dedup, part.payload["rules"])
    return {
        "read": documents.num_rows,
        "kept": table.num_rows,
        "dropped": dropped,
        "quarantined": 0,
        "bytes": sum(sizes),
        "kept_by_quality": pc.sum(quality["kept"]).as_py() or 0,
        "by_language": tally_documents(languages.to_pylist(), sizes),
        "by_source": tally_documents(rows["source"].to_pylist(), sizes),
        "split": {"train": {"documents": 0, "bytes": 0}, "validation": {"documents": 0, "bytes": 0}}
        | tally_documents(splits, sizes),
    }


def scrubbed(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """A text with its spans (UTF-8 byte offsets) replaced by tags."""
    if not spans:
        return text
    return apply_spans(text.encode("utf-8"), [(s["start"], s["end"], s["type"]) for s in spans]).decode("utf-8")


def _judged(documents: pa.Table, part: Part) -> tuple[pa.ChunkedArray, pa.Table, pa.Table]:
    """Which rows every judge kept, and the judges' tables."""
    quality = read_table(part.payload["quality"], ["id", "verdict", "kept"])
    dedup = read_table(part.payload["dedup"], ["id", "family_id", "kept", "reason"])
    check_aligned(documents, quality, "quality")
    check_aligned(documents, dedup, "dedup")
    return pc.and_(quality["kept"], dedup["kept"]), quality, dedup


def _drop_reasons(quality: pa.Table, dedup: pa.Table, rules: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Each dropped document once: by the first quality rule it broke, else by the reason of dedup."""
    reasons: dict[str, int] = {}
    verdict = quality["verdict"].to_numpy()
    judged_bad = ~quality["kept"].to_numpy()
    left = judged_bad.copy()
    for name, bit in rules:
        hit = left & (((verdict >> np.uint64(bit)) & np.uint64(1)) == 1)
        reasons[name] = int(hit.sum())
        left &= ~hit
    if left.any():
        reasons["QUALITY"] = int(left.sum())
    lost = ~judged_bad & ~dedup["kept"].to_numpy()
    for reason, count in sorted(Counter(dedup["reason"].filter(pa.array(lost)).to_pylist()).items(), key=str):
        reasons[reason or "DEDUP"] = count
    return reasons


def _with_spans(documents: pa.Table, pii: pa.Table) -> list[tuple[str, list[dict[str, Any]]]]:
    return list(zip(documents["text"].to_pylist(), pii["spans"].to_pylist(), strict=True))


def _column(values: Any, kind: pa.DataType) -> pa.ChunkedArray:
    return values.cast(kind) if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values, kind)])


def _renamed(part: Part, purpose: str, payload: Mapping[str, Any]) -> Part:
    """A part for one of the passes: named by the pass and by all it is told."""
    return Part(part.name, digest({"pass": purpose, "part": part.digest, **payload}), {**part.payload, **payload})


def _family_bytes(files: Sequence[Path]) -> dict[bytes, int]:
    families: dict[bytes, int] = {}
    for file in files:
        table = read_table(file)
        for family, size in zip(table["family_id"].to_pylist(), table["bytes_sum"].to_pylist(), strict=True):
            families[family] = families.get(family, 0) + size
    return families


def _nothing_kept(ingest: Artifact, quality: Artifact, dedup: Artifact) -> str:
    reasons: Counter[str] = Counter({"quarantined": ingest.counters.get("quarantined", 0)})
    for artifact in (ingest, quality, dedup):
        reasons.update({f"{artifact.stage} {k}": v for k, v in artifact.counters.get("dropped", {}).items()})
    took = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3) if count)
    return f"no document is left of {ingest.counters['read']} ({took}); loosen these rules or add documents"


def _example_pairs(dedup: Artifact) -> list[tuple[str, str]]:
    """Up to three removed pairs as hex ids: the least alike, the median and the most alike."""
    pairs = pq.read_table(dedup.file("pairs.parquet"), use_threads=False)
    pairs = pairs.filter(pairs["removed"]).sort_by([("jaccard", "ascending"), ("a", "ascending"), ("b", "ascending")])
    if not pairs.num_rows:
        return []
    places = sorted({0, pairs.num_rows // 2, pairs.num_rows - 1})[:MAX_EXAMPLES]
    return [(pairs["a"][i].as_py().hex(), pairs["b"][i].as_py().hex()) for i in places]


def _write_examples(file: Path, documents: pa.Table, dedup: pa.Table, wanted: Sequence[str]) -> None:
    """{id: {kept, excerpt}} of wanted documents. Whole texts are scrubbed, for all types, so no cut hides a part of a span."""
    mask = pc.is_in(documents["id"], value_set=pa.array([bytes.fromhex(one) for one in wanted], ID))
    rows = documents.filter(mask)
    found = {
        document_id.hex(): {"kept": kept, "excerpt": scrub(text)[:EXCERPT_CHARS]}
        for document_id, kept, text in zip(
            rows["id"].to_pylist(), dedup["kept"].filter(mask).to_pylist(), rows["text"].to_pylist(), strict=True
        )
    }
    file.write_text(json.dumps(found, ensure_ascii=False, sort_keys=True), "utf-8")


def _examples(files: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    found: dict[str, Any] = {}
    for file in files:
        found |= json.loads(file.read_text("utf-8"))
    examples = []
    for pair in pairs:
        survivor, member = sorted((found[one] for one in pair), key=lambda entry: not entry["kept"])
        examples.append({"survivor": survivor["excerpt"], "member": member["excerpt"]})
    return examples
