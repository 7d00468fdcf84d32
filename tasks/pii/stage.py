"""Finds the bytes of each document that are personal data, and says what replaces them.

Columns in: `id, text`. Columns out: `id`, `spans` (list of start, end, type, replacement), UTF-8
byte offsets in the original text, ordered and disjoint, and `kept`: false where the action of a
found type is to drop the document. `spans.parquet` lists every span, under a key with a digest of
its value, and never the value.

Types: private keys, keys of services, e-mail addresses, bank accounts, cards, national ids, IP and
MAC addresses, telephone numbers; names in templates by choice; names, postal addresses and dates of
birth in prose by a model that is given (`tasks.pii.ner_model`, `ner_spans`). Candidates come from
`tasks.kernels.pii.spans` in linear time, checks from `tasks.pii.checks`, who wins from
`tasks.pii.spans`, actions from `tasks.pii.replacements`. Left out: health and other data that has
no form; tax and social numbers of other countries.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.documentset import (
    ID,
    SIDECAR_FILE,
    document_parts,
    link_sidecars,
    one_chunk,
    read_table,
    sum_counters,
    text_buffers,
    write_table,
)
from tasks.definitions.pii_kinds import NATIONAL_IDS, TYPE_NAMES
from tasks.pii.config import PiiConfig
from tasks.pii.replacements import replacements, value_hashes
from tasks.pii.spans import FindEntities, Spans, find_all_spans
from tasks.runtime.artifact import Artifact, check_accounting
from tasks.runtime.inputs import digest_input
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, PartResult, RunParts, parts_of_pass, serial
from tasks.runtime.stage import StageFailure

PLACE = [("start", pa.int64()), ("end", pa.int64()), ("type", pa.string())]
SPAN = pa.struct([*PLACE, ("replacement", pa.string())])
SCHEMA = pa.schema([("id", ID), ("spans", pa.list_(SPAN)), ("kept", pa.bool_())])
SPANS_FILE = "spans.parquet"
SPANS_SCHEMA = pa.schema([("id", ID), *PLACE, ("value_hash", pa.string())])
REASON = "PII"


def find_pii(
    ingest: Artifact, out_dir: Path, config: PiiConfig, run_parts: RunParts = serial
) -> Artifact:
    """Find personal data in every document, and drop documents where an action says so.

    Raises StageFailure where no document is kept. Deterministic for equal documents, whatever the
    number of workers.
    """
    parts = document_parts(ingest)
    if config.ner is not None:
        model = digest({name: digest_input(file) for name, file in config.input_files().items()})
        parts = parts_of_pass(parts, "ner", {"ner": model})
    results = run_parts(find_part, parts, config, out_dir)
    link_sidecars(results, out_dir)
    _write_spans(results, out_dir / SPANS_FILE)
    counters = sum_counters(result.counters for result in results)
    national_ids = counters.pop("national_ids")
    metrics = {
        "types": counters.pop("types"),
        "national_ids": {name: count for name, count in national_ids.items() if count},
        "actions": {name: config.action_of(name) for name in config.found_types},
    }
    metrics |= {"ner_types": list(config.ner_types)} if config.ner is not None else {}
    check_accounting("pii", counters)
    if counters["read"] and not counters["kept"]:
        raise StageFailure(
            f"no document is left of {counters['read']}, because all hold personal data whose"
            " action is drop_document; set another action, e.g. pii.action=tag"
        )
    return Artifact(out_dir, "pii", counters, metrics)


def find_part(part: Part, directory: Path, config: PiiConfig) -> dict[str, Any]:
    """Spans of one file of documents."""
    documents = read_table(part.payload["documents"], ["id", "text"])
    values, begins = text_buffers(documents["text"])
    find_entities = _entities_of(config, part.payload["ner"]) if config.ner is not None else None
    spans, key = find_all_spans(values, begins, config, find_entities), config.read_key()
    starts, ends = spans.starts - begins[spans.documents], spans.ends - begins[spans.documents]
    types = pa.array(np.array(TYPE_NAMES, object)[spans.types], pa.string())
    dropping = np.array([config.action_of(name) == "drop_document" for name in TYPE_NAMES])
    kept = np.ones(len(documents), bool)
    kept[spans.documents[dropping[spans.types]]] = False
    offsets = np.searchsorted(spans.documents, np.arange(len(documents) + 1)).astype(np.int32)
    places = [pa.array(starts), pa.array(ends), types]
    columns = [*places, replacements(values, spans, config.action_of, key)]
    structs = pa.StructArray.from_arrays(columns, fields=list(SPAN))
    lists = pa.ListArray.from_arrays(pa.array(offsets), structs)
    table = pa.table([documents["id"], lists, pa.array(kept)], schema=SCHEMA)
    write_table(table, directory / SIDECAR_FILE)

    ids = one_chunk(documents["id"]).take(pa.array(spans.documents))
    listed = pa.table([ids, *places, value_hashes(values, spans, key)], schema=SPANS_SCHEMA)
    write_table(listed, directory / SPANS_FILE)
    num_dropped = int((~kept).sum())
    by_id = {name: int((spans.kinds == kind).sum()) for name, kind in NATIONAL_IDS.items()}
    return {
        "read": len(documents),
        "kept": len(documents) - num_dropped,
        "dropped": {REASON: num_dropped} if num_dropped else {},
        "quarantined": 0,
        "types": _tally(spans, config),
        "national_ids": by_id,
    }


def _entities_of(config: PiiConfig, model: str) -> FindEntities:
    from tasks.pii.ner_model import model_of
    from tasks.pii.ner_spans import entity_rows

    return partial(entity_rows, model=model_of(config, model))


def _tally(spans: Spans, config: PiiConfig) -> dict[str, dict[str, int]]:
    return {
        name: {
            "spans": int((spans.types == number).sum()),
            "documents": len(np.unique(spans.documents[spans.types == number])),
        }
        for number, name in enumerate(TYPE_NAMES)
        if name in config.found_types
    }


def _write_spans(results: list[PartResult], path: Path) -> None:
    """The spans of all parts in one table, part by part."""
    with pq.ParquetWriter(path, SPANS_SCHEMA, compression="zstd", compression_level=3) as writer:
        for result in results:
            writer.write_table(read_table(result.path / SPANS_FILE))
