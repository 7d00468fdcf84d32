"""Which bytes of each document are personal data? E-mail and IP addresses, phone and card numbers.

Columns in: `id, text`. Columns out: `id, spans` (list of start, end, type), UTF-8 byte offsets in the original text, ordered
and disjoint. Candidates come from `tasks.kernels.pii` in linear time; phone numbers are then checked by
`phonenumbers` on the candidate alone: international ones by number plan, national ones only with separators that
group the digits as a configured region does (so that dates, ISBNs, ids and rows of numbers stay).
Overlaps go to the surer type: EMAIL, CARD, IP, PHONE. Found spans may free what they shadowed, so the places around
them are searched again until nothing is left; that makes scrubbing idempotent.
Left out: names, postal addresses, addresses written in words ("john at example dot com"), national id numbers.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError, nearest
from tasks.artifact import Artifact, check_accounting
from tasks.documentset import ID, SIDECAR_FILE, document_parts, link_sidecars, read_table, sum_counters, text_buffers, write_table
from tasks.parts import Part, RunParts, serial

TYPES = ("EMAIL", "CARD", "IP", "PHONE")
"""In order of precedence where candidates overlap."""

SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("type", pa.string())]))
SCHEMA = pa.schema([("id", ID), ("spans", SPANS)])
MASK = ord("<")
DIGITS = re.compile(rb"\d+")


@dataclass(frozen=True)
class PiiConfig:
    """What counts as personal data."""

    types: tuple[str, ...] = TYPES
    """Types to find; the others stay in the text."""
    regions: tuple[str, ...] = ("US", "CN")
    """ISO 3166 regions whose national phone numbers are found; international ones always are."""

    def __post_init__(self) -> None:
        for kind in self.types:
            if kind not in TYPES:
                raise ConfigError(f"types ({kind}) is not a type of personal data; {nearest(kind, list(TYPES))}")
        for region in self.regions:
            if not re.fullmatch("[A-Z]{2}", region):
                raise ConfigError(f"regions ({region}) must be ISO 3166 codes of two capital letters, e.g. regions='[US,DE]'")


def find_pii(ingest: Artifact, out_dir: Path, config: PiiConfig, run_parts: RunParts = serial) -> Artifact:
    """Find personal data in every document; drops none.

    Raises ConfigError for a region that the number plans do not know: its numbers would stay in the text unseen.
    Deterministic for equal documents, whatever the number of workers.
    """
    from phonenumbers import SUPPORTED_REGIONS

    for region in config.regions:
        if region not in SUPPORTED_REGIONS:
            raise ConfigError(f"pii.regions ({region}) has no number plan; {nearest(region, sorted(SUPPORTED_REGIONS))}")
    results = run_parts(find_part, document_parts(ingest), config, out_dir)
    link_sidecars(results, out_dir)
    counters = sum_counters([result.counters for result in results])
    metrics = {"types": counters.pop("types")}
    check_accounting("pii", counters)
    return Artifact(out_dir, "pii", counters, metrics)


def find_part(part: Part, directory: Path, config: PiiConfig) -> dict[str, Any]:
    """Spans of one file of documents."""
    documents = read_table(part.payload["documents"], ["id", "text"])
    values, begins = text_buffers(documents["text"])
    spans = find_all_spans(values, begins, config)
    rows = [[{"start": start, "end": end, "type": kind} for start, end, kind in found] for found in spans]
    ids = documents["id"]
    write_table(pa.table([ids, pa.chunked_array([pa.array(rows, SPANS)])], schema=SCHEMA), directory / SIDECAR_FILE)
    types = {
        kind: {
            "spans": sum(1 for found in spans for span in found if span[2] == kind),
            "documents": sum(1 for found in spans if any(span[2] == kind for span in found)),
        }
        for kind in TYPES
    }
    return {"read": len(spans), "kept": len(spans), "dropped": {}, "quarantined": 0, "types": types}


Span = tuple[int, int, str]
"""Start, end (UTF-8 byte offsets), type."""


def find_spans(text: bytes, config: PiiConfig) -> list[Span]:
    """Spans of one text."""
    values = np.frombuffer(text, np.uint8)
    return find_all_spans(values, np.array([0, len(text)], np.int64), config)[0]


def find_all_spans(values: np.ndarray, begins: np.ndarray, config: PiiConfig) -> list[list[Span]]:
    """Spans of each document in a buffer, relative to its beginning, ordered and disjoint."""
    from tasks.kernels.pii import MAX_LOOK_BYTES

    found: list[list[Span]] = [[] for _ in range(len(begins) - 1)]
    windows = np.stack([np.arange(len(begins) - 1), begins[:-1], begins[1:]], axis=1)
    masked = values
    while len(windows):
        again: list[tuple[int, int, int]] = []
        for document, spans in _accepted(masked, begins, _candidates(masked, begins, windows), config):
            if masked is values:
                masked = values.copy()
            low, high = int(begins[document]), int(begins[document + 1])
            for start, end, kind in spans:
                masked[start:end] = MASK
                found[document].append((start - low, end - low, kind))
                again.append((document, max(low, start - MAX_LOOK_BYTES), min(high, end + MAX_LOOK_BYTES)))
        windows = np.array(_merged(again), np.int64).reshape(-1, 3)
    return [sorted(spans) for spans in found]


def _candidates(values: np.ndarray, begins: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Rows of (document, start, end, kind) for windows of (document, start, end)."""
    from tasks.kernels.pii import find_candidates

    # Always the same array types, read-only and writable alike, so that the kernel is compiled once.
    readonly = values.view()
    readonly.flags.writeable = False
    documents, scan_lo, scan_hi = (np.array(windows[:, i], np.int64) for i in range(3))
    found = find_candidates(readonly, begins[documents], begins[documents + 1], scan_lo, scan_hi).reshape(-1, 4)
    found[:, 0] = documents[found[:, 0]]
    return found


def _accepted(
    values: np.ndarray, begins: np.ndarray, candidates: np.ndarray, config: PiiConfig
) -> Iterator[tuple[int, list[Span]]]:
    """(document, disjoint spans that are what they look like), for each document that has candidates."""
    from tasks.kernels.pii import CARD, EMAIL, IP4, IP6, LOCAL_PHONE, PHONE

    types = {EMAIL: "EMAIL", CARD: "CARD", IP4: "IP", IP6: "IP", PHONE: "PHONE", LOCAL_PHONE: "PHONE"}
    borders = np.flatnonzero(np.diff(candidates[:, 0])) + 1
    for group in np.split(candidates, borders) if len(candidates) else ():
        text = values[: begins[group[0, 0] + 1]]  # what comes after belongs to another document
        spans: list[Span] = []
        for name in TYPES:
            if name not in config.types:
                continue
            # One walk over what is taken and what is offered, both in order: linear, however many spans there are.
            mine: list[Span] = []
            taken, last_end = 0, 0
            for start, end, kind in sorted((s, e, k) for _, s, e, k in group.tolist() if types[k] == name):
                while taken < len(spans) and spans[taken][1] <= start:
                    taken += 1
                if start < last_end or (taken < len(spans) and spans[taken][0] < end):
                    continue
                if kind in (PHONE, LOCAL_PHONE):
                    end = _phone_end(text, start, end, config.regions if kind == LOCAL_PHONE else ())
                elif kind == IP6 and not _is_ip6(text[start:end].tobytes()):
                    continue
                if end > start:
                    mine.append((start, end, name))
                    last_end = end
            spans = sorted(spans + mine)
        yield int(group[0, 0]), spans


def _merged(windows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Overlapping windows of a document as one."""
    merged: list[tuple[int, int, int]] = []
    for document, low, high in sorted(windows):
        if merged and merged[-1][0] == document and low <= merged[-1][2]:
            merged[-1] = (document, merged[-1][1], max(high, merged[-1][2]))
        else:
            merged.append((document, low, high))
    return merged


def _is_ip6(text: bytes) -> bool:
    try:
        address = ipaddress.IPv6Address(text.decode("ascii"))
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _phone_end(values: np.ndarray, start: int, end: int, regions: Sequence[str]) -> int:
    """Where a valid phone number ends that begins the candidate, the longest first; `start` if none does."""
    text = values[start:end].tobytes()
    groups = list(DIGITS.finditer(text))
    after = values[end : end + 2].tobytes()
    for count in range(len(groups), 0, -1):
        stop = groups[count - 1].end()
        digits = tuple(group.group().decode() for group in groups[:count])
        if not regions:
            if _is_international(digits):
                return start + stop
        elif sum(map(len, digits)) < 9:
            break
        elif (
            not _goes_on(text[:stop], text[stop:] + after)
            and not (b"." in text[:stop] and b"-" in text[:stop])  # 252.227-7014 is a clause of some law
            and any(_is_national(digits, region) for region in regions)
        ):
            return start + stop
    return start


def _goes_on(number: bytes, rest: bytes) -> bool:
    """Is a national number only the beginning of a longer row of numbers?"""
    if not rest[1:2].isdigit():
        return False
    return rest[:1] in b"-./" or (rest[:1] == b" " and b" " in number)


@functools.lru_cache(maxsize=1 << 16)
def _is_international(groups: tuple[str, ...]) -> bool:
    import phonenumbers

    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse("+" + "".join(groups))))
    except phonenumbers.NumberParseException:
        return False


@functools.lru_cache(maxsize=1 << 16)
def _is_national(groups: tuple[str, ...], region: str) -> bool:
    """A valid number of the region, with its digits grouped as the region writes them."""
    import phonenumbers
    from phonenumbers import PhoneNumberFormat, format_number

    try:
        number = phonenumbers.parse("".join(groups), region)
    except phonenumbers.NumberParseException:
        return False
    if not phonenumbers.is_valid_number_for_region(number, region):
        return False
    written = (format_number(number, style) for style in (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL))
    return any(groups == tuple(re.findall("[0-9]+", form)) for form in written)
