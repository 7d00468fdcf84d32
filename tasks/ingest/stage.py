"""Reads the source: every record becomes a document, a counted drop, or a quarantined fault.

Columns in: those of the input, mapped by config. Columns out: `id, text, source, source_id, url,
language, added_at, metadata` in `documents/part-*.parquet`; faults in `quarantine.jsonl` with file,
line, byte offset and error; whatever became no document by its id in `dropped.parquet`
(tasks.ingest.droppedrecords). `id` is 128-bit BLAKE2b of (source name, path relative to the source
root, with the member of an archive, byte offset in the uncompressed stream or row number): it never
depends on rank, order, compression or batch.

What is repaired and dropped: tasks.ingest.documentrows; what readers drop and skip: tasks.readers.
A huge record is kept, up to `max_record_bytes`. Cost: one pass, memory of one output file plus the
longest record. A file is one part, and so is an archive: several files are read at once, one is
not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from llm_core.printing import get_logger, percent, printable
from tasks.corpus.documentset import sum_counters
from tasks.corpus.tally import largest
from tasks.ingest.chats import OWN_LISTS
from tasks.ingest.damagedfiles import FileExtent, TooManyFaults, estimate_lost
from tasks.ingest.documentrows import Row, RowReader
from tasks.ingest.documentwriter import DocumentWriter
from tasks.ingest.droppedrecords import DROPPED_FILE, DroppedRecords, merge_dropped
from tasks.ingest.filecounts import FileCounts
from tasks.ingest.sourcefiles import Listing, partition_columns
from tasks.ingest.sources import InputConfig, SourceConfig, input_name
from tasks.ingest.withdrawn import WITHDRAWN, Withdrawn, digest_withdrawn, read_withdrawn
from tasks.readers import Columns, Dropped, Fault, Record, Skipped, read_streams
from tasks.readers.formats import ARCHIVES, SEEKING, format_of
from tasks.readers.pages import READ_PAGE
from tasks.runtime.artifact import Artifact, check_accounting, link_file
from tasks.runtime.inputs import digest_input, file_stamp
from tasks.runtime.keys import digest, key_config
from tasks.runtime.parts import Part, PartResult, RunParts, serial
from tasks.runtime.sandbox import Sandbox
from tasks.runtime.stage import StageFailure

logger = get_logger("tasks.ingest.stage")

QUARANTINE_FILE = "quarantine.jsonl"
MAX_EXAMPLES = 10
MAX_NAMED_FAULTS = 3
MAX_NAMED_FILES = 3


def ingest(out_dir: Path, config: SourceConfig, run_parts: RunParts = serial) -> Artifact:
    """Read the source into documents with identities that never change.

    Raises ConfigError for missing paths, StageFailure where there is nothing to read or nothing is
    left. Deterministic for equal contents and relative names, whatever the order of files or the
    number of workers.
    """
    listings = config.listings()
    left_out = _left_out(config, listings)
    parts = list_parts(config, listings)
    results = run_parts(ingest_file, parts, config, out_dir)
    _merge(results, out_dir)
    extents = [FileExtent(**result.counters["extent"]) for result in results]
    apart = ("extent", "withdrawn")
    counters = sum_counters(
        {k: v for k, v in result.counters.items() if k not in apart} for result in results
    )
    withdrawn = read_withdrawn(config.remove)
    for result in results:
        withdrawn.found |= set(result.counters.get("withdrawn", ()))
    metrics = {
        "by_source": largest(counters.pop("by_source")),
        "licenses": {k: v["documents"] for k, v in largest(counters.pop("licenses")).items()},
        "length_histogram": _histogram(counters.pop("length_bits")),
        "quarantine_examples": _examples(out_dir / QUARANTINE_FILE, MAX_EXAMPLES),
        "files_left_out": left_out,
    }
    if config.remove is not None:
        metrics["withdrawn"] = _withdrawn(withdrawn, config.remove)
    check_accounting("ingest", counters)
    if not counters["kept"]:
        first_fault = _first_faults(out_dir / QUARANTINE_FILE, 1)
        raise StageFailure(
            nothing_left(", ".join(config.inputs), len(parts), counters, first_fault)
        )
    counters |= {
        "files": len(parts),
        "files_left_out": sum(left_out["by_ending"].values()),
        "files_damaged": sum(one.breaks > 0 for one in extents),
        "lost_estimate": estimate_lost(extents),
    }
    return Artifact(out_dir, "ingest", counters, metrics)


def require_budget(artifact: Artifact, config: SourceConfig) -> None:
    """Raise TooManyFaults where more was quarantined than `max_bad_frac` allows. Says how much, of
    what kind, and where."""
    read, quarantined = artifact.counters["read"], artifact.counters["quarantined"]
    damaged, lost = artifact.counters["files_damaged"], artifact.counters["lost_estimate"]
    if quarantined + lost <= config.max_bad_frac * (read + lost):
        return
    share = (quarantined + lost) / (read + lost)
    files = f"{damaged:,} damaged file{'s' * (damaged != 1)}"
    more = f" and about {lost:,} more in {files}" if lost else ""
    kinds = Counter(artifact.counters["quarantined_by"])
    shown = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(3))
    first = _first_faults(artifact.file(QUARANTINE_FILE), MAX_NAMED_FAULTS)
    raise TooManyFaults(
        f"{quarantined:,} of {read:,} records{more} ({percent(share, '.1')})"
        f" could not be read, more than source.max_bad_frac ({config.max_bad_frac:g}) allows"
        f" ({shown}); first {first}; all are in {artifact.path / QUARANTINE_FILE}; fix the input or"
        " its settings, or raise source.max_bad_frac"
    )


def list_parts(config: SourceConfig, listings: Mapping[str, Listing] | None = None) -> list[Part]:
    """One part per file. Raises StageFailure where a source has none."""
    parts = []
    # In the digest of each part, and not in the key of all: without a list parts are what they
    # were.
    withdrawn = digest_withdrawn(config.remove)
    more = {"withdrawn": withdrawn} if withdrawn else {}
    for source, (files, _) in (listings or config.listings()).items():
        # One of several sources brings its own settings, so that another one beside it changes
        # nothing here.
        settings = key_config(config.inputs[source]) if config.sources else {}
        if not files:
            paths = ", ".join(config.inputs[source].paths)
            raise StageFailure(
                f"source {source} has no readable file in {paths}; put files there that end in"
                " .jsonl, .parquet, .warc.gz or .txt, or name other paths"
            )
        for relative, path in files.items():
            stamp = file_stamp(path)
            name = input_name(source, relative, bool(config.sources))
            content = {"file": relative, "content": digest_input(path)}
            key = digest({**content, "source": source, "settings": settings, **more})
            payload = {"path": str(path), "source": source, "relative": relative, "stamp": stamp}
            payload |= more
            parts.append(Part(name, key, payload))
    return sorted(parts, key=lambda part: part.name)


def ingest_file(part: Part, directory: Path, config: SourceConfig) -> dict[str, Any]:
    """Read one file into tables of bounded size and a list of faults. Raises StageFailure where it
    changes meanwhile."""
    source, one = part.payload["source"], config.inputs[part.payload["source"]]
    lists = OWN_LISTS if one.text_kind == "chat" else ()
    columns = Columns(one.text_column, one.id_column, one.url_column, one.added_column, lists)
    counts, path = FileCounts(), Path(part.payload["path"])
    expected = part.payload.get("withdrawn")
    withdrawn = read_withdrawn(config.remove if expected else None, expected)
    writer = DocumentWriter(directory, config.max_text_bytes_per_file, counts.keep)
    with (
        path.open("rb") as file,
        (directory / QUARANTINE_FILE).open("w", encoding="utf-8") as quarantine,
        DroppedRecords(directory / DROPPED_FILE) as dropped,
        Sandbox(READ_PAGE, config.html.timeout_s, config.html.max_memory_bytes) as sandbox,
    ):
        rows = RowReader(source, one, config.html, sandbox, config.limits)
        for name, items in read_streams(
            file, part.payload["relative"], columns, one.layout, config.limits
        ):
            # One hash of what all ids of the stream share, copied for each; NUL occurs in neither
            # name.
            identity = hashlib.blake2b(f"{source}\0{name}\0".encode(), digest_size=16)
            shown = input_name(source, name, bool(config.sources))
            partitions = partition_columns(name)
            for item in items:
                if isinstance(item, Skipped):
                    counts.skipped[item.kind] += 1
                    continue
                outcome: Row | str | Fault
                record = None
                if not isinstance(item, Fault):
                    record = item if isinstance(item, Record) else item.record
                if record is not None:
                    rows.prepare(record, partitions)
                # Asked for first, because `read` takes the values apart.
                own_id = rows.source_id(record) if record is not None else None
                document_id = _document_id(identity, record) if record is not None else None
                is_withdrawn = document_id is not None and withdrawn.has(document_id, own_id)
                if isinstance(item, Record):
                    outcome = WITHDRAWN if is_withdrawn else rows.read(item)
                    if isinstance(outcome, Row):
                        assert document_id is not None
                        writer.add(document_id, outcome)
                        continue
                else:
                    outcome = item.reason if isinstance(item, Dropped) else item
                place = outcome if isinstance(outcome, Fault) else record
                where = (place.line, place.byte_offset) if place is not None else (None, None)
                if isinstance(outcome, Fault):
                    became, reason = "quarantined", outcome.error
                    entry = {
                        "file": shown,
                        "line": outcome.line,
                        "byte_offset": outcome.byte_offset,
                        "error": reason,
                    }
                    quarantine.write(printable(json.dumps(entry, ensure_ascii=False)) + "\n")
                    counts.quarantined[reason.partition(":")[0]] += 1
                    if outcome.ends or outcome.resumed_at is not None:
                        counts.breaks.append(outcome)
                else:
                    became, reason = "dropped", outcome
                    counts.dropped[reason] += 1
                dropped.add(document_id, source, own_id, became, reason, shown, *where)
    writer.close()
    if file_stamp(path) != part.payload["stamp"]:
        raise StageFailure(
            f"{part.name} changed while it was read; run again, results for other files are kept"
        )
    counters = counts.counters()
    counters |= {"withdrawn": sorted(withdrawn.found)} if withdrawn.found else {}
    return counters | {"extent": asdict(_extent(part, one, counters["read"], counts.breaks))}


def _extent(part: Part, one: InputConfig, records: int, breaks: Sequence[Fault]) -> FileExtent:
    form = format_of(part.payload["relative"], one.layout.format)
    size_bytes = part.payload["stamp"][0]
    assert form is not None
    lost_bytes: int | None = 0
    for fault in breaks:
        # Of a file that is read here and there, and of a member, the place says nothing of how much
        # came before.
        if lost_bytes is None or fault.stopped_at is None or form.kind in (*SEEKING, *ARCHIVES):
            lost_bytes = None
            continue
        end = size_bytes if fault.resumed_at is None else fault.resumed_at
        lost_bytes += end - fault.stopped_at
    return FileExtent(form.kind + form.compression, size_bytes, records, len(breaks), lost_bytes)


def _left_out(config: SourceConfig, listings: Mapping[str, Listing]) -> dict[str, Any]:
    """Files that have no reader, by ending, and the first of them; said aloud too. They are in no
    key: nothing reads them."""
    names = [
        input_name(source, name, bool(config.sources))
        for source, (_, some) in listings.items()
        for name in some
    ]
    endings = Counter(PurePosixPath(name).suffix.lower() or "(none)" for name in names)
    if names:
        kinds = ", ".join(f"{ending} {count:,}" for ending, count in endings.most_common(5))
        shown = ", ".join(names[:MAX_NAMED_FILES]) + (" …" if len(names) > MAX_NAMED_FILES else "")
        logger.warning(
            "skipped, unsupported format: %s (%s): %s; name their format with source.format",
            f"{len(names):,}",
            kinds,
            shown,
        )
    return {"by_ending": dict(sorted(endings.items())), "examples": names[:MAX_EXAMPLES]}


def _withdrawn(withdrawn: Withdrawn, path: Path) -> dict[str, Any]:
    """How many names of the list a record has, and the first that none has; said aloud too."""
    unknown = withdrawn.unknown
    if unknown:
        shown = ", ".join(unknown[:MAX_EXAMPLES]) + (" …" if unknown[MAX_EXAMPLES:] else "")
        logger.warning("source.remove (%s): not in the source (%s): %s", path, len(unknown), shown)
    return {
        "found": len(withdrawn.found),
        "unknown": len(unknown),
        "examples": unknown[:MAX_EXAMPLES],
    }


def _document_id(identity: Any, record: Record) -> bytes:
    """The id of a record; identity: a hash of what all ids of its stream share."""
    hashed = identity.copy()
    hashed.update(b"%d" % record.position)
    return bytes(hashed.digest())


def nothing_left(name: str, num_files: int, counters: Mapping[str, Any], first_fault: str) -> str:
    """Why a source gives no document, in one line. A failed stage keeps nothing to look into, so
    the first fault is in it."""
    reasons = Counter({k: v for k, v in counters["dropped"].items() if v})
    if counters["quarantined"]:
        reasons["quarantined"] = counters["quarantined"]
    if not reasons:
        files = f"{num_files} file{'s' * (num_files != 1)}"
        skipped = ", ".join(f"{kind} {count}" for kind, count in counters["skipped"].items())
        found = f"{files} (skipped: {skipped})" if skipped else files
        return f"source {name}: no record was found in {found}; check source.paths"
    took = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3))
    first = f"; first {first_fault}" if first_fault else ""
    return (
        f"source {name}: none of {counters['read']:,} records is left ({took}{first}); check"
        " text_column, encoding, exclude and include"
    )


def _merge(results: Sequence[PartResult], out_dir: Path) -> None:
    """Number the tables in order of (name of the file, place in it), and join the lists of dropped
    records."""
    merge_dropped([result.path / DROPPED_FILE for result in results], out_dir / DROPPED_FILE)
    number = 0
    with (out_dir / QUARANTINE_FILE).open("wb") as quarantine:
        for result in results:
            quarantine.write((result.path / QUARANTINE_FILE).read_bytes())
            for table in sorted(result.path.glob("[0-9]*.parquet")):
                link_file(table, out_dir / "documents" / f"part-{number:05d}.parquet")
                number += 1


def _histogram(length_bits: Mapping[str, int]) -> dict[str, list[int]]:
    """Documents by text bytes, in bins from one power of two to the next."""
    bits = sorted(int(b) for b in length_bits)
    steps = range(bits[0], bits[-1] + 1) if bits else range(0)
    return {
        "edges_bytes": [2**b for b in (*steps, (bits[-1] if bits else 0) + 1)],
        "counts": [length_bits.get(str(b), 0) for b in steps],
    }


def _first_faults(quarantine: Path, count: int) -> str:
    faults = _examples(quarantine, count)
    return "; ".join(f"{fault['file']} line {fault['line']}: {fault['error']}" for fault in faults)


def _examples(quarantine: Path, count: int) -> list[dict[str, Any]]:
    with quarantine.open(encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
