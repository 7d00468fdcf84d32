"""Which bytes of each document are personal data, and what stands in their place?

Columns in: `id, text`. Columns out: `id`, `spans` (list of start, end, type, replacement), UTF-8
byte offsets in the original text, ordered and disjoint, and `kept`: false where the action of a
found type is to drop the document. `spans.parquet` lists every span, under a key with a digest of
its value, and never the value.

Types: private keys, keys of services, e-mail addresses, bank accounts, cards, crypto addresses,
national ids, IP and MAC addresses, telephone numbers; names in templates by choice. Candidates come
from `tasks.kernels.pii.spans` in linear time, checks from `tasks.pii.checks`, who wins from
`tasks.pii.spans`, actions from `tasks.pii.replacements`. Left out: names in prose, postal
addresses, health and other data that has no form; tax and social numbers of other countries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llm_core.config import NOT_IN_KEY, ConfigError, nearest
from tasks.corpus.documentset import (
    ID,
    SIDECAR_FILE,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    text_buffers,
    write_table,
)
from tasks.definitions.pii_kinds import NATIONAL_IDS, TYPE_NAMES, TYPES
from tasks.pii.replacements import ACTIONS, key_id, read_key, replacements, value_hashes
from tasks.pii.spans import Spans, find_all_spans
from tasks.runtime.artifact import Artifact, check_accounting
from tasks.runtime.parts import Part, PartResult, RunParts, serial
from tasks.runtime.stage import StageFailure

SPAN = pa.struct(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("type", pa.string()),
        ("replacement", pa.string()),
    ]
)
SCHEMA = pa.schema([("id", ID), ("spans", pa.list_(SPAN)), ("kept", pa.bool_())])
SPANS_FILE = "spans.parquet"
SPANS_SCHEMA = pa.schema(
    [
        ("id", ID),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("type", pa.string()),
        ("value_hash", pa.string()),
    ]
)
DEFAULT_TYPES = tuple(name for name in TYPE_NAMES if name != "NAME")
DEFAULT_REGIONS = ("US", "CN")
REASON = "PII"


@dataclass(frozen=True)
class PiiConfig:
    """What counts as personal data, and what is done with it."""

    types: tuple[str, ...] = DEFAULT_TYPES
    """Types of personal data to find. NAME is found by its form alone, and is off by default."""
    regions: tuple[str, ...] = DEFAULT_REGIONS
    """ISO 3166 regions whose national phone numbers are found; international numbers always are."""
    national_ids: tuple[str, ...] = tuple(NATIONAL_IDS)
    """National ids that are found with type NATIONAL_ID."""
    addresses_in_words: bool = False
    """Also find addresses like "john at example dot com"."""
    action: str = "tag"
    """What happens to a span that is found: tag, mask, drop_document or pseudonym."""
    actions: dict[str, str] = field(default_factory=dict)
    """{type: action} for types that differ from `action`."""
    key_env: str | None = field(default=None, metadata=NOT_IN_KEY)
    """Environment variable with the secret key of pseudonyms and value digests."""
    key_file: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """File with that key, instead of the variable."""
    key_id: str = ""
    """Digest of the key, filled in. Where it is given, no other key is accepted."""

    def __post_init__(self) -> None:
        for kind in (*self.types, *self.actions):
            if kind not in TYPES:
                raise ConfigError(
                    f"types ({kind}) is not a type of personal data; {nearest(kind, list(TYPES))}"
                )
        for name in self.national_ids:
            if name not in NATIONAL_IDS:
                raise ConfigError(
                    f"national_ids ({name}) is not known; {nearest(name, list(NATIONAL_IDS))}"
                )
        for region in self.regions:
            if not re.fullmatch("[A-Z]{2}", region):
                raise ConfigError(
                    f"regions ({region}) must be ISO 3166 codes of two capital letters, e.g."
                    " regions='[US,DE]'"
                )
        _check_regions(self.regions)
        for action in (self.action, *self.actions.values()):
            if action not in ACTIONS:
                raise ConfigError(
                    f"action ({action}) is not known; {nearest(action, list(ACTIONS))}"
                )
        key = self.read_key()
        if key is None and any(self.action_of(name) == "pseudonym" for name in self.types):
            raise ConfigError(
                "action (pseudonym) needs a secret key; name its place with key_env=VARIABLE or"
                " key_file=PATH"
            )
        made = key_id(key) if key else ""
        if self.key_id not in ("", made):
            raise ConfigError(
                f"key_id ({self.key_id}) is not that of the key given ({made or 'none'}); give the"
                " key it was made of"
            )
        object.__setattr__(self, "key_id", made)

    def action_of(self, kind: str) -> str:
        return self.actions.get(kind, self.action)

    @property
    def part_variables(self) -> tuple[str, ...]:
        """What worker processes need of the environment."""
        return (self.key_env,) if self.key_env else ()

    def read_key(self) -> bytes | None:
        return read_key(self.key_env, self.key_file)

    @cached_property
    def wanted_kinds(self) -> int:
        """Bits of the kernel's kinds to look for."""
        ids = {NATIONAL_IDS[name] for name in self.national_ids}
        unwanted = set(NATIONAL_IDS.values()) - ids
        return sum(1 << kind for name in self.types for kind in TYPES[name] if kind not in unwanted)


def _check_regions(regions: tuple[str, ...]) -> None:
    """A region without a number plan is an error: its numbers would stay in the text unseen."""
    unknown = set(regions) - set(DEFAULT_REGIONS)
    if not unknown:
        return  # the package of number plans takes time to load
    from phonenumbers import SUPPORTED_REGIONS

    for region in sorted(unknown - set(SUPPORTED_REGIONS)):
        raise ConfigError(
            f"regions ({region}) has no number plan; {nearest(region, sorted(SUPPORTED_REGIONS))}"
        )


def find_pii(
    ingest: Artifact, out_dir: Path, config: PiiConfig, run_parts: RunParts = serial
) -> Artifact:
    """Find personal data in every document, and drop documents where an action says so.

    Raises StageFailure where no document is kept. Deterministic for equal documents, whatever the
    number of workers.
    """
    results = run_parts(find_part, document_parts(ingest), config, out_dir)
    link_sidecars(results, out_dir)
    _write_spans(results, out_dir / SPANS_FILE)
    counters = sum_counters([result.counters for result in results])
    metrics = {
        "types": counters.pop("types"),
        "national_ids": {
            name: count for name, count in counters.pop("national_ids").items() if count
        },
        "actions": {name: config.action_of(name) for name in config.types},
    }
    check_accounting("pii", counters)
    if counters["read"] and not counters["kept"]:
        raise StageFailure(
            f"no document is left of {counters['read']}: every one holds personal data of a type"
            " whose action is drop_document; give these types another one, e.g. pii.action=tag"
        )
    return Artifact(out_dir, "pii", counters, metrics)


def find_part(part: Part, directory: Path, config: PiiConfig) -> dict[str, Any]:
    """Spans of one file of documents."""
    documents = read_table(part.payload["documents"], ["id", "text"])
    values, begins = text_buffers(documents["text"])
    spans, key = find_all_spans(values, begins, config), config.read_key()
    starts, ends = spans.starts - begins[spans.documents], spans.ends - begins[spans.documents]
    types = pa.array(np.array(TYPE_NAMES, object)[spans.types], pa.string())
    dropping = np.array([config.action_of(name) == "drop_document" for name in TYPE_NAMES])
    kept = np.ones(len(documents), bool)
    kept[spans.documents[dropping[spans.types]]] = False
    offsets = np.searchsorted(spans.documents, np.arange(len(documents) + 1)).astype(np.int32)
    columns = [
        pa.array(starts),
        pa.array(ends),
        types,
        replacements(values, spans, config.action_of, key),
    ]
    lists = pa.ListArray.from_arrays(
        pa.array(offsets), pa.StructArray.from_arrays(columns, fields=list(SPAN))
    )
    table = pa.table(
        [documents["id"], pa.chunked_array([lists]), pa.chunked_array([pa.array(kept)])],
        schema=SCHEMA,
    )
    write_table(table, directory / SIDECAR_FILE)

    ids = (
        documents["id"].combine_chunks().take(pa.array(spans.documents))
        if len(documents)
        else pa.array([], ID)
    )
    listed = [ids, *columns[:3], value_hashes(values, spans, key)]
    write_table(
        pa.table(
            [
                pa.chunked_array([column], f.type)
                for column, f in zip(listed, SPANS_SCHEMA, strict=True)
            ],
            schema=SPANS_SCHEMA,
        ),
        directory / SPANS_FILE,
    )
    num_dropped = int((~kept).sum())
    return {
        "read": len(documents),
        "kept": len(documents) - num_dropped,
        "dropped": {REASON: num_dropped} if num_dropped else {},
        "quarantined": 0,
        "types": _tally(spans, config),
        "national_ids": {
            name: int((spans.kinds == kind).sum()) for name, kind in NATIONAL_IDS.items()
        },
    }


def find_spans(text: bytes, config: PiiConfig) -> list[tuple[int, int, str]]:
    """Spans of one text: start, end (UTF-8 byte offsets), type; ordered and disjoint."""
    values = np.frombuffer(text, np.uint8)
    spans = find_all_spans(values, np.array([0, len(text)], np.int64), config)
    names = [TYPE_NAMES[number] for number in spans.types.tolist()]
    return list(zip(spans.starts.tolist(), spans.ends.tolist(), names, strict=True))


def _tally(spans: Spans, config: PiiConfig) -> dict[str, dict[str, int]]:
    return {
        name: {
            "spans": int((spans.types == number).sum()),
            "documents": len(np.unique(spans.documents[spans.types == number])),
        }
        for number, name in enumerate(TYPE_NAMES)
        if name in config.types
    }


def _write_spans(results: list[PartResult], path: Path) -> None:
    """The spans of all parts in one table, part by part."""
    with pq.ParquetWriter(path, SPANS_SCHEMA, compression="zstd", compression_level=3) as writer:
        for result in results:
            writer.write_table(read_table(result.path / SPANS_FILE))
