"""The duplicates of the sample corpus fare as its list of true duplicates says."""

from __future__ import annotations

import json

import pytest

from tasks.runtime.artifact import Artifact
from tests.support.data.dedup_runs import SAMPLE, kept, near_pairs, run, sample_documents
from tests.support.data.shingles_by_definition import shingles_by_definition


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, dict[str, dict]]:
    return run(tmp_path_factory.mktemp("sample"), sample_documents(), num_parts=3)


def truth(kind: str) -> list[list[str]]:
    lines = map(json.loads, (SAMPLE / "truth_dups.jsonl").read_text("utf-8").splitlines())
    return [line["ids"] for line in lines if line["type"] == kind]


def test_every_exact_duplicate_of_the_sample_is_found(
    sample: tuple[Artifact, dict[str, dict]],
) -> None:
    _, rows = sample
    for group in truth("exact"):
        assert len({rows[name]["cluster_id"] for name in group}) == 1
        assert sum(rows[name]["kept"] for name in group) <= 1


def test_near_pairs_of_the_sample_fare_as_their_exact_similarity_says(
    sample: tuple[Artifact, dict[str, dict]],
) -> None:
    artifact, rows = sample
    text_of = {d["name"]: d["text"] for d in sample_documents()}
    pairs = near_pairs(artifact)
    together = alike = 0
    for a, b in truth("near"):
        one, two = (set(shingles_by_definition(text_of[name], 5)) for name in (a, b))
        jaccard = len(one & two) / max(len(one | two), 1)
        recorded = pairs.get((rows[a]["id"], rows[b]["id"])) or pairs.get(
            (rows[b]["id"], rows[a]["id"])
        )
        assert recorded is None or recorded["jaccard"] == jaccard
        if jaccard >= 0.8:
            assert not (rows[a]["kept"] and rows[b]["kept"])
        if jaccard >= 0.5:
            alike += 1
            together += rows[a]["family_id"] == rows[b]["family_id"]
    assert alike > 100
    assert together >= 0.97 * alike


def test_metrics_describe_the_sample(sample: tuple[Artifact, dict[str, dict]]) -> None:
    artifact, rows = sample
    metrics = artifact.metrics
    histogram = metrics["cluster_size_histogram"]
    assert sum(int(size) * n for size, n in histogram.items()) == artifact.counters["read"]
    assert sum(histogram.values()) == artifact.counters["kept"] == len(kept(rows))
    assert metrics["families"] == len({row["family_id"] for row in rows.values()})
    assert metrics["lsh"]["num_bands"] == 14 and metrics["lsh"]["rows_per_band"] == 8
    assert metrics["clusters"][0]["size"] == max(row["cluster_size"] for row in rows.values())
    json.dumps(metrics, allow_nan=False)
