"""Says which documents of a run are missing from it because earlier runs have them, and how to get
all of them at once.

Deduplication against an index (`dedup.chain`, `dedup.index`) keeps what is new. So a source that
grows, read whole each time, gives its new documents only, which must not look like a loss.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.report.quantities import Facts, count
from tasks.runtime.artifact import Artifact


def earlier_documents(artifacts: Mapping[str, Artifact]) -> str | None:
    """One sentence where a run has read documents again that earlier runs had; None elsewhere."""
    if "dedup" not in artifacts:
        return None
    counters = Facts(artifacts["dedup"].counters)
    read_again, duplicates, read = counters.each("read_again", "earlier_duplicates", "read")
    if not read_again:
        return None
    return (
        f"Only new documents are in this run: {count(duplicates)} of {count(read)} that dedup read"
        f" are duplicates of what earlier runs kept ({count(read_again)} of them the very same"
        " documents, read again) and stay with those runs. For all in one, run the same source"
        " without dedup.chain and dedup.index."
    )
