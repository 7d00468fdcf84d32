"""Checks deduplication on pairs and groups that are known. `python -m benchmarks.data.dedup_truth
INGEST DEDUP TRUTH`.

Truth is a folder with `exact_dups.jsonl` ({"ids": [...]}: groups of texts that are equal up to case
and white space) and `near_dup_pairs.jsonl` ({"a", "b", "j_word5", "j_char8"}: exact Jaccard
similarities of 5-grams of what stands between blanks, and of 8-grams of characters), each perhaps
with `.zst`. Ids are the records' own. Similarity is that of words, but of characters for documents
declared to be Chinese, Japanese or Khmer, which have no words to speak of.

Only documents that took part count. Three claims:

* `exact_removed_frac`: of the copies that a group has beyond one, the share that is gone.
* `near90_together_frac`: of pairs with similarity of at least 0.9, the share that has one
  survivor. `near90_not_both_kept_frac` also counts pairs of which both went, to different
  survivors.
* `below50_wrong_removals`: pairs below 0.5 of which one was removed for the other.
  `below50_by_both_removals` counts those that are below 0.5 by characters too: a licence in
  comment lines shares few 5-grams of what stands between blanks with the same licence without
  comment signs, but many characters.

Shares come with their counts and 95 % intervals (Wilson 1927). A pair counts as one trial though a
document may be in many.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.data.shares import finished_pair, records, share, wilson_interval
from llm_core.printing import note, show
from tasks.corpus.documentset import read_table
from tasks.runtime.artifact import Artifact, ArtifactMismatch

CHARACTER_LANGUAGES = ("zh", "ja", "km")


def check_dedup(ingest: Artifact, dedup: Artifact, truth: Path) -> dict[str, Any]:
    """The three claims, with counts and intervals. Raises ArtifactMismatch where the truth speaks
    of no document here."""
    documents = _judged_documents(ingest, dedup)
    exact = _exact(documents, truth)
    near = _near(documents, truth)
    if not exact["exact_groups"] and not near["pairs"]:
        raise ArtifactMismatch(
            f"{truth} names no two documents of {ingest.path}; give the truth of this corpus"
        )
    return exact | near


def _judged_documents(ingest: Artifact, dedup: Artifact) -> dict[str, dict[str, Any]]:
    """{own id: {id, language, cluster_id, kept}} of the documents that took part."""
    found: dict[str, dict[str, Any]] = {}
    for file in ingest.files("documents/part-*.parquet"):
        documents = read_table(file, ["id", "source_id", "language"])
        sidecar = read_table(dedup.file(file.name), ["id", "cluster_id", "kept"])
        if not documents["id"].equals(sidecar["id"]):
            raise ArtifactMismatch(
                f"{dedup.path / file.name} does not belong to {file}; give the parent of this"
                " artifact"
            )
        for document, judged in zip(documents.to_pylist(), sidecar.to_pylist(), strict=True):
            if judged["cluster_id"] is not None:
                found[document["source_id"]] = document | judged
    return found


def _exact(documents: dict[str, dict[str, Any]], truth: Path) -> dict[str, Any]:
    groups = copies = staying = 0
    for record in records(truth / "exact_dups.jsonl"):
        here = [documents[name] for name in record["ids"] if name in documents]
        groups += len(here) > 1
        copies += max(0, len(here) - 1)
        staying += max(0, sum(d["kept"] for d in here) - 1)
    return {"exact_groups": groups, "exact_copies": copies} | share(
        "exact_removed", copies - staying, copies
    )


def _near(documents: dict[str, dict[str, Any]], truth: Path) -> dict[str, Any]:
    pairs = alike = together = not_both = different = wrong = by_both = by_both_wrong = 0
    for record in records(truth / "near_dup_pairs.jsonl"):
        if record["a"] not in documents or record["b"] not in documents:
            continue
        a, b = documents[record["a"]], documents[record["b"]]
        by_characters = str(a["language"] or "").split("-")[0] in CHARACTER_LANGUAGES
        similarity = record["j_char8"] if by_characters else record["j_word5"]
        pairs += 1
        same = a["cluster_id"] == b["cluster_id"]
        if similarity >= 0.9:
            alike += 1
            together += same
            not_both += same or not (a["kept"] and b["kept"])
        removed = a["cluster_id"] == b["id"] or b["cluster_id"] == a["id"]
        different += similarity < 0.5
        wrong += similarity < 0.5 and removed
        by_both += max(similarity, record["j_char8"]) < 0.5
        by_both_wrong += max(similarity, record["j_char8"]) < 0.5 and removed
    return (
        {"pairs": pairs}
        | share("near90_together", together, alike)
        | share("near90_not_both_kept", not_both, alike)
        | {"below50_pairs": different, "below50_wrong_removals": wrong}
        | {"below50_wrong_interval": wilson_interval(wrong, different)}
        | {"below50_by_both_pairs": by_both, "below50_by_both_removals": by_both_wrong}
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        note("give three folders: an ingest artifact, a dedup artifact made of it, and the truth")
        return 2
    if (pair := finished_pair(arguments[:2])) is None:
        return 2
    show(json.dumps({"benchmark": "dedup_truth"} | check_dedup(*pair, Path(arguments[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
