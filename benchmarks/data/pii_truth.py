"""Measures recall and precision of the search for personal data where the truth is known.

`python -m benchmarks.data.pii_truth INGEST PII TRUTH` tells recall. Truth is `pii.jsonl` (or
`.jsonl.zst`, or the folder that holds it): lines {"id": a record's own id, "spans": [[kind, start,
end], …]} with offsets in code points, kinds email, ip, phone, name. A span is found where one span
of its type covers it. Addresses that every machine has (127.x, 0.x, ::1) are nobody's:
`pii_ip_recall` is without them and `pii_ip_all_recall` with them, as all that stands in the truth;
how many there are is told. Truth known from the structure of documents is not complete: it says
nothing of precision.

`python -m benchmarks.data.pii_truth [FOLDER]` tells precision, on labels: spans found once and
judged by eye, in `pii_labels.jsonl` as {"id", "start", "end", "type", "right"} with UTF-8 byte
offsets and without the value, of the records in `sample.jsonl`. It is that of the labelled spans
which are still found. Intervals are Wilson's, of 95 %, as if spans were independent: spans of one
document are alike, so the true ones are wider.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.shares import finished_pair, records, share
from llm_core.printing import note, show
from tasks.corpus.documentset import check_aligned, read_table
from tasks.definitions.pii_kinds import FORM_TYPES
from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_spans
from tasks.runtime.artifact import Artifact, ArtifactMismatch

TYPE_OF = {"email": "EMAIL", "ip": "IP", "phone": "PHONE", "name": "NAME"}
_ON_EVERY_MACHINE = (b"127.", b"0.", b"::1")
SAMPLE = Path(__file__).parents[2] / "data" / "sample"


def pii_recall(pii: Artifact, ingest: Artifact, truth: Path) -> dict[str, Any]:
    """Shares of known spans that were found: `pii_email_recall`, `pii_ip_recall` and so on, each
    with `_count` and `_interval`.

    Kinds that the artifact does not look for are left out. Raises ArtifactMismatch where the truth
    names no document here.
    """
    known = {
        record["id"]: record["spans"]
        for record in records(truth / "pii.jsonl" if truth.is_dir() else truth)
    }
    found, wanted, nobodys = Counter[str](), Counter[str](), 0
    for document, text, spans in _documents(pii, ingest):
        if document not in known:
            continue
        data, shift = text.encode(), _shift(text, known[document])
        # Byte offset of every code point, and of the end.
        starts = np.flatnonzero(np.frombuffer(data + b"\0", np.uint8) & 0xC0 != 0x80)
        for kind, first, last in known[document]:
            start, end = int(starts[first - shift]), int(starts[last - shift])
            is_found = any(
                s["type"] == TYPE_OF.get(kind) and s["start"] <= start and end <= s["end"]
                for s in spans
            )
            if kind == "ip":
                wanted["ip_all"] += 1
                found["ip_all"] += is_found
                if data[start:end].startswith(_ON_EVERY_MACHINE):
                    nobodys += 1
                    continue
            wanted[kind] += 1
            found[kind] += is_found
    if not wanted:
        raise ArtifactMismatch(
            f"{truth} names no document of {ingest.path}; give the truth of this corpus"
        )
    looked_for = pii.metrics["types"]
    result: dict[str, Any] = {"pii_ip_on_every_machine": nobodys}
    for kind in sorted(wanted):
        if TYPE_OF.get(kind.removesuffix("_all")) in looked_for:
            result |= share(f"pii_{kind}_recall", found[kind], wanted[kind], "")
    return result


def pii_precision(
    spans: Mapping[str, Iterable[tuple[int, int, str]]], labels: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """`pii_TYPE_precision` with `_count` and `_interval`, of labelled spans that are among those
    found in {own id: spans}."""
    right, judged = Counter[str](), Counter[str]()
    found = {name: set(members) for name, members in spans.items()}
    for label in labels:
        if (label["start"], label["end"], label["type"]) in found.get(label["id"], ()):
            judged[label["type"]] += 1
            right[label["type"]] += label["right"]
    result: dict[str, Any] = {}
    for kind in sorted(judged):
        result |= share(f"pii_{kind.lower()}_precision", right[kind], judged[kind], "")
    return result


def labelled_precision(folder: Path) -> dict[str, Any]:
    """`pii_precision` of the labels in a folder with `sample.jsonl` and `pii_labels.jsonl`, all
    types looked for.

    Raises ArtifactMismatch where one of the two is missing.
    """
    labels = list(records(folder / "pii_labels.jsonl"))
    judged, config = {label["id"] for label in labels}, PiiConfig(types=FORM_TYPES)
    texts = {
        record["id"]: record["text"]
        for record in records(folder / "sample.jsonl")
        if record["id"] in judged
    }
    return pii_precision(
        {name: find_spans(text.encode(), config) for name, text in texts.items()}, labels
    )


def _shift(text: str, spans: Iterable[tuple[str, int, int]]) -> int:
    """1 where the offsets count a byte order mark that ingest took from the beginning: only then do
    spans begin as words do."""
    firsts = [first for _, first, _ in spans]
    begin_words = [
        sum(not text[max(0, f - shift - 1) : f - shift].isalnum() for f in firsts if f >= shift)
        for shift in (0, 1)
    ]
    return int(begin_words[1] > begin_words[0])


def _documents(pii: Artifact, ingest: Artifact) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """(own id, text, spans) of each document."""
    for file in ingest.files("documents/part-*.parquet"):
        documents = read_table(file, ["id", "source_id", "text"])
        sidecar = read_table(pii.file(file.name), ["id", "spans"])
        check_aligned(documents, sidecar, "pii")
        columns = documents["source_id"], documents["text"], sidecar["spans"]
        for batch in zip(*columns, strict=True):
            yield tuple(value.as_py() for value in batch)  # type: ignore[misc]


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        folder = Path(arguments[0]) if arguments else SAMPLE
        show(json.dumps({"benchmark": "pii_precision"} | labelled_precision(folder)))
        return 0
    if len(arguments) != 3:
        note("give an ingest artifact, a pii artifact made of it, and the known spans")
        return 2
    if (pair := finished_pair(arguments[:2])) is None:
        return 2
    show(json.dumps({"benchmark": "pii_truth"} | pii_recall(pair[1], pair[0], Path(arguments[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
