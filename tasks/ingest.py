"""What is in the source? Every record becomes a document, a counted drop, or a quarantined fault.

Columns in: those of the input, mapped by config. Columns out: `id, text, source, source_id, url, language, added_at,
metadata` in `documents/part-*.parquet`; faults in `quarantine.jsonl` with file, line, byte offset and error.
`id` is 128-bit BLAKE2b of (source name, path relative to the source root, byte offset in the uncompressed stream or
row number): it never depends on rank, order or batch.

Repaired and counted, per document: NUL (removed), BOM (removed at the beginning), CRLF (becomes LF), LONE_SURROGATE
(becomes U+FFFD). Dropped: EMPTY (nothing but white space and zero-width characters), EXCLUDED (by `exclude` or
`include`). A huge record is kept. Cost: one pass, memory of one output file plus the longest record. Left out: any
normalisation of Unicode forms; documents are what the source says.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from llm_core.config import NOT_IN_KEY, ConfigError
from tasks.artifact import Artifact, check_accounting, digest_file, link_file
from tasks.documentset import DOCUMENT_SCHEMA, sum_counters, write_table
from tasks.keys import digest
from tasks.parts import Part, PartResult, RunParts, serial
from tasks.readers import Fault, Record, json_type, read_records
from tasks.sourcefiles import list_files
from tasks.stage import StageFailure
from tasks.tally import Tally, count_document, largest
from tasks.visible import shows

QUARANTINE_FILE = "quarantine.jsonl"
ROW_BYTES = 256
MAX_EXAMPLES = 10


@dataclass(frozen=True)
class SourceConfig:
    """Where documents come from and which columns mean what."""

    name: str
    """What the source is called; part of every document's identity."""
    paths: tuple[str, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files, folders and globs, relative to the current directory. Contents and relative names enter the key."""
    root: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Folder that files are named from; null: what all paths have in common."""
    text_column: str = "text"
    id_column: str | None = "id"
    url_column: str | None = "url"
    language_column: str | None = "language"
    added_column: str | None = "added"
    source_column: str | None = None
    """Column whose value names a record's source, in place of `name`."""
    exclude: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """{column: values}: records with one of these values are dropped."""
    include: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """{column: values}: records without one of these values are dropped."""
    max_text_bytes_per_file: int = 32_000_000
    """A file of documents is closed when it holds this much; bounds the memory of every later stage."""

    def __post_init__(self) -> None:
        if not self.name or "\0" in self.name:
            raise ConfigError(f"name ({self.name!r}) must be a text that names the source, e.g. name=crawl")
        if self.max_text_bytes_per_file < 1:
            raise ConfigError(f"max_text_bytes_per_file ({self.max_text_bytes_per_file}) must be positive; try 32000000")
        if self.text_column in self.mapped_columns()[1:]:
            raise ConfigError(f"text_column ({self.text_column}) is mapped twice; give each column one meaning, or null")

    def input_files(self) -> dict[str, Path]:
        """{path relative to the source root: file}."""
        return list_files(self.paths, self.root)

    def mapped_columns(self) -> tuple[str | None, ...]:
        """Columns with a meaning of their own; all others become metadata."""
        return (self.text_column, self.id_column, self.url_column, self.language_column, self.added_column, self.source_column)


def ingest(out_dir: Path, config: SourceConfig, run_parts: RunParts = serial) -> Artifact:
    """Read the source into documents with identities that never change.

    Raises ConfigError for missing paths, StageFailure where there is nothing to read or nothing is left.
    Deterministic for equal contents and relative names, whatever the order of files or the number of workers.
    """
    files = config.input_files()
    if not files:
        raise StageFailure(
            f"source {config.name} has no readable file in {', '.join(config.paths)}; put .jsonl, .parquet or .txt there"
        )
    parts = [
        Part(name, digest({"file": name, "content": digest_file(path), "source": config.name}), {"path": str(path)})
        for name, path in sorted(files.items())
    ]
    results = run_parts(ingest_file, parts, config, out_dir)
    _merge(results, out_dir)
    counters = sum_counters([result.counters for result in results])
    metrics = {
        "by_source": largest(counters.pop("by_source")),
        "licenses": {k: v["documents"] for k, v in largest(counters.pop("licenses")).items()},
        "length_histogram": _histogram(counters.pop("length_bits")),
        "quarantine_examples": _examples(out_dir / QUARANTINE_FILE),
    }
    check_accounting("ingest", counters)
    if not counters["kept"]:
        raise StageFailure(nothing_left(config.name, len(files), counters))
    return Artifact(out_dir, "ingest", counters | {"files": len(files)}, metrics)


def ingest_file(part: Part, directory: Path, config: SourceConfig) -> dict[str, Any]:
    """Read one file into tables of bounded size and a list of faults."""
    writer = DocumentWriter(directory, config.max_text_bytes_per_file)
    tally: Counter[str] = Counter()
    dropped, repaired = {"EMPTY": 0, "EXCLUDED": 0}, {"NUL": 0, "BOM": 0, "CRLF": 0, "LONE_SURROGATE": 0}
    by_source: Tally = {}
    licenses: Tally = {}
    length_bits: Counter[str] = Counter()
    # One hash of what all ids of the file share, copied for each; NUL occurs in neither name.
    identity = hashlib.blake2b(f"{config.name}\0{part.name}\0".encode(), digest_size=16)
    with (directory / QUARANTINE_FILE).open("w", encoding="utf-8") as quarantine:
        for record in read_records(Path(part.payload["path"]), part.name, config.text_column, config.id_column):
            tally["read"] += 1
            outcome = record if isinstance(record, Fault) else read_document(record, config)
            if isinstance(outcome, Fault):
                tally["quarantined"] += 1
                entry = {"file": part.name, "line": outcome.line, "byte_offset": outcome.byte_offset, "error": outcome.error}
                quarantine.write(json.dumps(entry, ensure_ascii=False) + "\n")
                continue
            if isinstance(outcome, str):
                dropped[outcome] += 1
                continue
            assert isinstance(record, Record)
            row, repairs = outcome
            for repair in repairs:
                repaired[repair] += 1
            document_id = identity.copy()
            document_id.update(str(record.position).encode())
            num_bytes = writer.add({"id": document_id.digest(), **row})
            tally["kept"] += 1
            tally["bytes"] += num_bytes
            length_bits[str(num_bytes.bit_length() - 1)] += 1
            count_document(by_source, row["source"], num_bytes)
            if isinstance(record.values.get("license"), str):
                count_document(licenses, record.values["license"], num_bytes)
    writer.close()
    totals = {name: tally[name] for name in ("read", "kept", "quarantined", "bytes")}
    return totals | {
        "dropped": dropped,
        "repaired": repaired,
        "by_source": by_source,
        "licenses": licenses,
        "length_bits": dict(length_bits),
    }


def read_document(record: Record, config: SourceConfig) -> tuple[dict[str, Any], tuple[str, ...]] | str | Fault:
    """A document row without its id and the repairs made, or a drop reason, or a fault."""
    text = record.values.get(config.text_column)
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return Fault(record.line, record.byte_offset, f"invalid UTF-8: byte 0x{text[error.start]:02x}")
    if not isinstance(text, str):
        if config.text_column not in record.values:
            error_text = f"column {config.text_column} is missing"
        elif text is None:
            error_text = f"column {config.text_column} is null"
        else:
            error_text = f"wrong type: column {config.text_column} is {json_type(text)}, not text"
        return Fault(record.line, record.byte_offset, error_text)
    if _excluded(record.values, config):
        return "EXCLUDED"
    text, repairs = repair_text(text)
    if not shows(text):
        return "EMPTY"
    mapped = config.mapped_columns()
    rest = {k: v for k, v in record.values.items() if k not in mapped}
    try:
        metadata = metadata_json(rest)
    except RecursionError:
        return Fault(record.line, record.byte_offset, "metadata is nested too deeply")
    row = {
        "text": text,
        "source": _as_text(record.values, config.source_column) or config.name,
        "source_id": _as_text(record.values, config.id_column),
        "url": _as_text(record.values, config.url_column),
        "language": _as_text(record.values, config.language_column),
        "added_at": _as_text(record.values, config.added_column),
        "metadata": metadata,
    }
    return row, tuple(sorted({*record.repaired, *repairs}))


def repair_text(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without NUL, leading BOM and CRLF, and which of them it had. Repairing twice changes nothing."""
    repairs = []
    if "\0" in text:
        text = text.replace("\0", "")
        repairs.append("NUL")
    if text.startswith("\ufeff"):
        text = text.lstrip("\ufeff")
        repairs.append("BOM")
    if "\r\n" in text:
        *lines, last = text.split("\n")
        text = "\n".join([*(line.rstrip("\r") for line in lines), last])
        repairs.append("CRLF")
    return text, tuple(repairs)


def metadata_json(values: Mapping[str, Any]) -> str:
    """One JSON text for one mapping, whatever the order of its keys."""
    try:
        return _dump(values)
    except ValueError:
        return _dump(json.loads(json.dumps(values, default=_plain), parse_constant=lambda name: None))


def nothing_left(name: str, num_files: int, counters: Mapping[str, Any]) -> str:
    """Why a source gives no document, in one line."""
    reasons = Counter({k: v for k, v in counters["dropped"].items() if v})
    if counters["quarantined"]:
        reasons["quarantined"] = counters["quarantined"]
    if not reasons:
        return f"source {name}: {num_files} file(s) hold no record; nothing to do"
    took = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3))
    return f"source {name}: none of {counters['read']} records is left ({took}); check text_column, exclude and include"


class DocumentWriter:
    """Writes rows into `00000.parquet` … and starts a new file when one holds enough."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._rows: list[dict[str, Any]] = []
        self._held_bytes = self._num_files = 0

    def add(self, row: dict[str, Any]) -> int:
        """Take a row; gives the UTF-8 bytes of its text."""
        text = row["text"]
        num_bytes = len(text) if text.isascii() else len(text.encode("utf-8"))
        # A row costs memory beside its text: without that, a file of one-word documents would have no bound.
        held = num_bytes + len(row["metadata"]) + ROW_BYTES
        if self._rows and self._held_bytes + held > self._max_bytes:
            self.close()
        self._rows.append(row)
        self._held_bytes += held
        return num_bytes

    def close(self) -> None:
        """Write what is held."""
        if self._rows:
            table = pa.Table.from_pylist(self._rows, schema=DOCUMENT_SCHEMA)
            write_table(table, self._directory / f"{self._num_files:05d}.parquet")
            self._rows, self._held_bytes, self._num_files = [], 0, self._num_files + 1


def _merge(results: Sequence[PartResult], out_dir: Path) -> None:
    """Number the tables in order of (relative path, place in the file) and put the faults into one list."""
    number = 0
    with (out_dir / QUARANTINE_FILE).open("wb") as quarantine:
        for result in results:
            quarantine.write((result.path / QUARANTINE_FILE).read_bytes())
            for table in sorted(result.path.glob("*.parquet")):
                link_file(table, out_dir / "documents" / f"part-{number:05d}.parquet")
                number += 1


def _excluded(values: Mapping[str, Any], config: SourceConfig) -> bool:
    return any(_as_text(values, column) in unwanted for column, unwanted in config.exclude.items()) or any(
        _as_text(values, column) not in wanted for column, wanted in config.include.items()
    )


def _as_text(values: Mapping[str, Any], column: str | None) -> str | None:
    value = values.get(column) if column else None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain).strip('"')


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> str:
    """Text for column types that JSON does not have: dates, decimals, bytes."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)


def _histogram(length_bits: Mapping[str, int]) -> dict[str, list[int]]:
    """Documents by text bytes, in bins from one power of two to the next."""
    bits = sorted(int(b) for b in length_bits)
    steps = range(bits[0], bits[-1] + 1) if bits else range(0)
    return {
        "edges_bytes": [2**b for b in (*steps, (bits[-1] if bits else 0) + 1)],
        "counts": [length_bits.get(str(b), 0) for b in steps],
    }


def _examples(quarantine: Path) -> list[dict[str, Any]]:
    with quarantine.open(encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(MAX_EXAMPLES), lines, strict=False)]
