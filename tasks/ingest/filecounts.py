"""Counts what became of the records of a file."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tasks.corpus.tally import Tally, add_to_tally
from tasks.readers import Fault


class FileCounts:
    def __init__(self) -> None:
        self.kept = self.bytes = 0
        self.dropped = Counter({"EMPTY": 0, "EXCLUDED": 0})
        self.quarantined: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.breaks: list[Fault] = []
        self.repaired = Counter({"NUL": 0, "BOM": 0, "CRLF": 0, "LONE_SURROGATE": 0, "RECODED": 0})
        self.by_source: Tally = {}
        self.licenses: Tally = {}
        self.length_bits: Counter[int] = Counter()

    def keep(self, columns: Any) -> None:
        """Count the documents of a file, given as a row of lists."""
        sizes = list(map(len, columns.text))
        self.kept += len(sizes)
        self.bytes += sum(sizes)
        self.length_bits.update(map(int.bit_length, sizes))
        add_to_tally(self.by_source, columns.source, sizes)
        add_to_tally(self.licenses, columns.license, sizes)
        for repairs in filter(None, columns.repairs):
            self.repaired.update(set(repairs))

    def counters(self) -> dict[str, Any]:
        quarantined = sum(self.quarantined.values())
        return {
            "read": self.kept + sum(self.dropped.values()) + quarantined,
            "kept": self.kept,
            "quarantined": quarantined,
            "bytes": self.bytes,
            "dropped": dict(self.dropped),
            "quarantined_by": dict(self.quarantined),
            "skipped": dict(self.skipped),
            "repaired": dict(self.repaired),
            "by_source": self.by_source,
            "licenses": self.licenses,
            "length_bits": {str(bits - 1): count for bits, count in self.length_bits.items()},
        }
