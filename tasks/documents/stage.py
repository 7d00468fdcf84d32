"""Writes the corpus: documents that every judge kept, edited, split into train and validation, and
mixed.

Joins the sidecars of ingest by position (and checks the join by id), keeps what quality, dedup,
contamination and pii kept (`tasks.documents.verdicts`), makes everybody's edits of the text
(`tasks.documents.edits`), assigns `split` by family (`tasks.documents.split`) and says how often a
document is read in an epoch (`tasks.documents.mixture`). Columns out: `id, text, source, source_id,
url, language` (identified), `family_id, split, repeats`, and `turns` of chats at their places in
the edited text and `group_id` where `group_key` is set, one file per ingest part. Two passes: sizes
of families and groups, then texts. Drops, beside what the judges dropped: EMPTIED (cuts left
nothing that shows, of the text or of a turn), MIXTURE (the mixture has no room for it). Cost: reads
and edits every text once, and once more where something is cut; memory of one part plus one row per
family and group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
from tasks.corpus.documentset import (
    CORPUS_SCHEMA,
    ID,
    SIDECAR_FILE,
    check_aligned,
    document_parts,
    id_matrix,
    link_sidecars,
    read_table,
    sum_counters,
    write_table,
)
from tasks.corpus.groups import GROUP_COLUMN, group_ids, warn_without_groups
from tasks.corpus.tally import largest, tally_columns
from tasks.corpus.turns import TURNS, TURNS_COLUMN, has_turns, spans_of, with_spans
from tasks.corpus.visible import shows
from tasks.documents.config import DocumentsConfig
from tasks.documents.duplicate_examples import (
    EXAMPLES_FILE,
    example_pairs,
    read_examples,
    write_excerpts,
)
from tasks.documents.edits import (
    CUTS,
    Edits,
    collect_edits,
    edit_texts,
    edited_sizes,
    move_spans,
)
from tasks.documents.mixture import Cell, MixtureConfig, mixture_metrics, plan_mixture, repeats_of
from tasks.documents.split import SplitRule, choose_split, join_families, units_of
from tasks.documents.verdicts import JUDGES, Judged, edits_column, read_judged
from tasks.runtime.artifact import Artifact, ArtifactMismatch, check_accounting, digest_file
from tasks.runtime.parts import Part, RunParts, parts_of_pass, scratch_dir, serial
from tasks.runtime.stage import StageFailure

EMPTIED, MIXTURE = "EMPTIED", "MIXTURE"
TEXT_COLUMNS = ("id", "text", "source", "source_id", "url")
GROUP = ("family_id", "source", "language", "copies")


def write_documents(
    ingest: Artifact,
    language: Artifact,
    quality: Artifact,
    dedup: Artifact,
    pii: Artifact,
    contamination: Artifact,
    out_dir: Path,
    config: DocumentsConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Write the text that models learn from.

    Raises StageFailure where nothing is kept, or too little to hold something out; ArtifactMismatch
    where a sidecar belongs to other documents. Deterministic for equal parents, whatever the number
    of workers.
    """
    if config.mixture.bucket_repeats and "buckets" not in quality.metrics:
        raise ConfigError(
            "documents.mixture.bucket_repeats needs buckets; set quality.buckets.score to a score,"
            " e.g. perplexity"
        )
    rules = [str(rule["name"]) for rule in quality.metrics["rules"]]
    sidecars = (language, quality, dedup, pii, contamination)
    parts = document_parts(ingest, **{sidecar.stage: sidecar for sidecar in sidecars})
    measuring = parts_of_pass(parts, "measure", {"rules": rules})
    measured = run_parts(measure_part, measuring, config, out_dir)
    tables = [read_table(result.path / SIDECAR_FILE) for result in measured]
    groups = pa.concat_tables(tables).combine_chunks()
    joined = None
    if config.group_key is not None:
        warn_without_groups(groups[GROUP_COLUMN], "documents.group_key", config.group_key)
        joined = join_families(groups["family_id"], groups[GROUP_COLUMN])
        groups = groups.set_column(0, "family_id", units_of(groups["family_id"], joined))
    families = groups.group_by("family_id", use_threads=False).aggregate([("bytes", "sum")])
    if not families.num_rows:
        raise StageFailure(_nothing_kept(ingest, quality, dedup, contamination))
    names = families["family_id"].combine_chunks()
    sizes = dict(zip(names.to_pylist(), families["bytes_sum"].to_pylist(), strict=True))
    rule = choose_split(sizes, config.validation_frac, config.seed)
    held_out = rule.holds_out(names)
    training = pc.is_in(groups["family_id"], value_set=names.filter(pa.array(~held_out)))
    amounts = _bytes_by(GROUP[1:], groups.filter(training)).to_pylist()
    cells = [Cell(a["source"], a["language"], a["copies"], a["bytes_sum"]) for a in amounts]
    mixture = plan_mixture(cells, config.mixture)

    pairs = example_pairs(dedup)
    told = {
        "rules": rules,
        "rule": rule.to_payload(),
        "rates": mixture.to_payload(),
        "examples": sorted({member for pair in pairs for member in pair}),
    }
    reads: dict[str, Any] = {}
    if joined is not None:
        units = scratch_dir(out_dir) / "units.parquet"
        write_table(joined, units)
        reads = {"reads": {**told, "units": digest_file(units)}}
        told["units"] = str(units)
    results = run_parts(write_part, parts_of_pass(parts, "write", told, **reads), config, out_dir)
    link_sidecars(results, out_dir)

    counters = sum_counters(result.counters for result in results)
    split, dropped = counters.pop("split"), counters.pop("dropped_by_stage")
    kept_until, epoch = counters.pop("kept_until"), counters.pop("epoch")
    split["train"]["families"] = int((~held_out).sum())
    split["validation"]["families"] = int(held_out.sum())
    counters["kept_by_quality"] = kept_until["quality"]
    by_language, by_source = counters.pop("by_language"), counters.pop("by_source")
    check_accounting("documents", counters)
    if not split["train"]["documents"]:
        raise StageFailure(
            "documents.mixture leaves no training document; raise target_bytes or the shares"
        )
    metrics = {
        "funnel": [
            {"stage": "read", "documents": ingest.counters["read"]},
            {"stage": "ingest", "documents": ingest.counters["kept"]},
            *(
                {"stage": stage, "documents": kept_until[stage]}
                for stage in JUDGES
                if stage in ("quality", "dedup") or dropped.get(stage)
            ),
            {"stage": "documents", "documents": counters["kept"]},
        ],
        "dropped": {"ingest": dict(ingest.counters.get("dropped", {})), **dropped},
        "by_language": by_language,
        "by_source": largest(by_source),
        "split": split,
        "mixture": mixture_metrics(cells, mixture, epoch, config.mixture),
        "duplicate_examples": read_examples(
            [result.path / EXAMPLES_FILE for result in results], pairs
        ),
    }
    return Artifact(out_dir, "documents", counters, metrics)


def measure_part(part: Part, directory: Path, config: DocumentsConfig) -> dict[str, Any]:
    """Bytes of the edited texts of one part, by family, source, language and copies."""
    judged = read_judged(part, ("id", "source", *_group_columns(config)))
    # Sizes follow from the edits alone, but whether cuts left anything that shows is seen in the
    # text only.
    cuts = [judged.sidecars["dedup"]["cuts"], edits_column(judged.sidecars["quality"], "cuts")]
    if any(pc.any(pc.greater(pc.list_value_length(column), 0)).as_py() for column in cuts):
        judged = read_judged(part, _text_columns(part, config))
    documents = _edited(judged, part, config)
    if documents["family_id"].null_count:
        raise ArtifactMismatch(
            "dedup keeps a document without a family_id; rebuild it with force=[dedup]"
        )
    names = (*GROUP, *[GROUP_COLUMN][: config.group_key is not None])
    table = _bytes_by(names, documents).rename_columns([*names, "bytes"])
    write_table(table, directory / SIDECAR_FILE)
    return {"groups": table.num_rows}


def write_part(part: Part, directory: Path, config: DocumentsConfig) -> dict[str, Any]:
    """The kept, edited documents of one part, and excerpts of the wanted duplicates."""
    judged = read_judged(part, _text_columns(part, config))
    survives, wanted = judged.sidecars["dedup"]["kept"], part.payload["examples"]
    write_excerpts(directory / EXAMPLES_FILE, judged.documents, survives, wanted)
    documents = _edited(judged, part, config)
    rule = SplitRule.from_payload(part.payload["rule"])
    families = documents["family_id"]
    if "units" in part.payload:
        families = units_of(families, read_table(part.payload["units"]))
    held_out = rule.holds_out(families)
    mixed = _repeats(documents, part.payload["rates"], config.mixture)
    repeats = np.where(held_out, 1, mixed).astype(np.int32)
    split = pa.array(["train", "validation"]).take(pa.array(held_out.astype(np.int8)))
    documents = documents.append_column("split", split).append_column("repeats", pa.array(repeats))
    num_edited = documents.num_rows
    documents = documents.filter(pa.array(repeats > 0))
    schema = CORPUS_SCHEMA
    if TURNS_COLUMN in documents.column_names:
        schema = schema.append(pa.field(TURNS_COLUMN, TURNS))
    if GROUP_COLUMN in documents.column_names:
        schema = schema.append(pa.field(GROUP_COLUMN, ID))
    corpus = documents.select(schema.names).cast(schema)
    # Level 1 writes twice as fast as level 3 and needs a fifth more room.
    write_table(corpus, directory / SIDECAR_FILE, level=1)

    dropped = judged.dropped()
    own = {
        EMPTIED: int((judged.verdict == 0).sum()) - num_edited,
        MIXTURE: num_edited - documents.num_rows,
    }
    dropped["documents"] = {reason: count for reason, count in own.items() if count}
    read_bytes = pc.multiply(documents["bytes"], documents["repeats"].cast(pa.int64()))
    train = pc.equal(documents["split"], "train")
    label = pc.binary_join_element_wise(documents["source"], documents["language"], "\t")
    return {
        "read": judged.documents.num_rows,
        "kept": documents.num_rows,
        "dropped": sum_counters(
            [{reason: count} for stage in dropped.values() for reason, count in stage.items()]
        ),
        "quarantined": 0,
        "bytes": pc.sum(documents["bytes"]).as_py() or 0,
        "repeats": pc.sum(documents["repeats"]).as_py() or 0,
        "kept_until": {stage: judged.kept_until(stage) for stage in judged.sidecars},
        "dropped_by_stage": dropped,
        "by_language": tally_columns(documents["language"], documents["bytes"]),
        "by_source": tally_columns(documents["source"], documents["bytes"]),
        "split": (
            {"train": {"documents": 0, "bytes": 0}, "validation": {"documents": 0, "bytes": 0}}
            | tally_columns(documents["split"], documents["bytes"])
        ),
        "epoch": tally_columns(label.filter(train), read_bytes.filter(train)),
    }


def _edited(judged: Judged, part: Part, config: DocumentsConfig) -> pa.Table:
    """The documents that judges kept and edits did not empty, with bytes and what mixes them."""
    language = read_table(part.payload["language"], ["id", "language"])
    check_aligned(judged.documents, language, "language")
    kept = judged.kept
    rows = judged.documents.filter(kept)
    dedup, quality, pii = (judged.sidecars[j].filter(kept) for j in ("dedup", "quality", "pii"))
    edits = collect_edits(
        edits_column(dedup, "cuts"),
        edits_column(pii, "spans"),
        edits_column(quality, "masks"),
        edits_column(quality, "cuts"),
    )
    if "text" in rows.column_names:
        texts, emptied = edit_texts(rows["text"], edits, part.name)
        if TURNS_COLUMN in rows.column_names:
            lengths = pc.binary_length(rows["text"]).to_numpy().astype(np.int64)
            turns, silent = _edited_turns(rows[TURNS_COLUMN], texts, lengths, edits, part.name)
            rows = rows.set_column(rows.column_names.index(TURNS_COLUMN), TURNS_COLUMN, turns)
            emptied |= silent
        rows = rows.set_column(rows.column_names.index("text"), "text", texts)
        sizes = pc.binary_length(texts).cast(pa.int64())
    else:
        sizes, emptied = edited_sizes(quality["num_bytes"].to_numpy(), edits, part.name), None
    buckets = quality["bucket"].to_pylist() if "bucket" in quality.column_names else None
    table = pa.table(
        {
            **{name: rows[name] for name in rows.column_names},
            "language": pc.fill_null(language["language"].filter(kept), "und"),
            "family_id": dedup["family_id"],
            "copies": config.mixture.copies_of(dedup["cluster_size"].to_numpy(), buckets),
            "bytes": sizes,
        }
    )
    if config.group_key is not None:
        groups = group_ids(table["metadata"], config.group_key)
        table = table.drop_columns("metadata").append_column(GROUP_COLUMN, groups)
    return table if emptied is None or not emptied.any() else table.filter(pa.array(~emptied))


def _text_columns(part: Part, config: DocumentsConfig) -> tuple[str, ...]:
    turns = [TURNS_COLUMN][: has_turns(part.payload["documents"])]
    return (*TEXT_COLUMNS, *_group_columns(config), *turns)


def _group_columns(config: DocumentsConfig) -> tuple[str, ...]:
    return () if config.group_key is None else ("metadata",)


def _edited_turns(
    turns: pa.ChunkedArray, texts: pa.Array, lengths: np.ndarray, edits: Edits, what: str
) -> tuple[pa.Array, np.ndarray]:
    """(turns at their places in the edited texts, the documents of which cuts left a turn nothing
    that shows)."""
    documents, spans = spans_of(turns)
    moved = move_spans(lengths, edits, documents, spans, what)
    silent = np.zeros(len(texts), bool)
    cut = np.repeat(np.arange(len(texts)), np.diff(edits.begins))[edits.rows[:, 2] == CUTS]
    for row in np.flatnonzero(np.isin(documents, cut)):
        encoded, (start, end) = texts[int(documents[row])].as_py().encode(), moved[row]
        silent[documents[row]] |= not shows(encoded[start:end].decode())
    return with_spans(turns, moved), silent


def _bytes_by(names: Sequence[str], table: pa.Table) -> pa.Table:
    """`bytes_sum` of the rows with equal values in these columns, in their order."""
    grouped = table.group_by(list(names), use_threads=False).aggregate([("bytes", "sum")])
    return grouped.sort_by([(name, "ascending") for name in names])


def _repeats(
    documents: pa.Table, rates: Sequence[Sequence[Any]], config: MixtureConfig
) -> np.ndarray:
    known = pa.array([f"{source}\t{language}" for source, language, _ in rates], pa.string())
    label = pc.binary_join_element_wise(documents["source"], documents["language"], "\t")
    place = pc.fill_null(pc.index_in(label, value_set=known), len(known)).to_numpy()
    of_group = np.array([*(rate for _, _, rate in rates), 1.0])
    return repeats_of(
        id_matrix(documents["id"]), documents["copies"].to_numpy(), of_group[place], config
    )


def _nothing_kept(ingest: Artifact, *judges: Artifact) -> str:
    reasons: Counter[str] = Counter({"quarantined": ingest.counters.get("quarantined", 0)})
    for artifact in (ingest, *judges):
        dropped = artifact.counters.get("dropped", {})
        reasons.update({f"{artifact.stage} {reason}": n for reason, n in dropped.items()})
    took = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3) if count)
    return (
        f"no document is left of {ingest.counters['read']} ({took}); loosen these rules or add"
        " documents"
    )
