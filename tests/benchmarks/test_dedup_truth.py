"""Claims about known duplicates are counted as they are worded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.data.dedup_truth import check_dedup, main
from benchmarks.data.shares import wilson_interval
from tasks.runtime.artifact import Artifact, ArtifactMismatch
from tests.support.data.dedup_runs import SAMPLE, run, sample_documents, words


def write_truth(
    folder: Path, groups: list[list[str]], pairs: list[tuple[str, str, float, float]]
) -> Path:
    folder.mkdir()
    (folder / "exact_dups.jsonl").write_text(
        "".join(json.dumps({"ids": ids}) + "\n" for ids in groups), "utf-8"
    )
    records = [{"a": a, "b": b, "j_word5": w, "j_char8": c} for a, b, w, c in pairs]
    (folder / "near_dup_pairs.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in records), "utf-8"
    )
    return folder


def ingest_of(artifact: Artifact) -> Artifact:
    return Artifact(artifact.path.parent / "ingest", "ingest")


def test_removals_are_judged_against_the_truth(tmp_path: Path) -> None:
    text, other = words(1, 80), words(2, 80)
    documents = [
        {"name": "a", "text": " ".join(text)},
        {"name": "b", "text": " ".join([*text, "more"])},
        {"name": "c", "text": " ".join(other)},
        {"name": "d", "text": " ".join(other).upper()},
        {"name": "e", "text": " ".join(words(3, 80))},
        {"name": "f", "text": "left out"},
    ]
    artifact, _ = run(tmp_path, documents, dropped={"f"})
    pairs = [
        ("a", "b", 0.95, 0.95),  # together
        ("b", "e", 0.95, 0.95),  # both stay, the truth says they should not
        ("c", "d", 0.1, 0.7),  # d went for c, different by words only
        ("d", "c", 0.1, 0.2),  # different by both
        ("a", "c", 0.1, 0.1),
        ("e", "f", 0.1, 0.1),  # f took no part
    ]
    truth = write_truth(tmp_path / "truth", [["c", "d"], ["b", "e", "f"], ["f", "nobody"]], pairs)
    found = check_dedup(ingest_of(artifact), artifact, truth)
    assert (found["exact_groups"], found["exact_copies"], found["exact_removed_frac"]) == (
        2,
        2,
        0.5,
    )
    assert (
        found["pairs"],
        found["near90_together_count"],
        found["near90_not_both_kept_count"],
    ) == (5, [1, 2], [1, 2])
    assert (found["below50_pairs"], found["below50_wrong_removals"]) == (3, 2)
    assert (found["below50_by_both_pairs"], found["below50_by_both_removals"]) == (2, 1)
    json.dumps(found, allow_nan=False)


def test_the_sample_is_free_of_what_the_truth_calls_duplicates(tmp_path: Path) -> None:
    artifact, _ = run(tmp_path, sample_documents(), num_parts=2)
    lines = [
        json.loads(line) for line in (SAMPLE / "truth_dups.jsonl").read_text("utf-8").splitlines()
    ]
    truth = write_truth(
        tmp_path / "truth", [line["ids"] for line in lines if line["type"] == "exact"], []
    )
    found = check_dedup(ingest_of(artifact), artifact, truth)
    assert found["exact_removed_frac"] == 1.0 and found["exact_copies"] > 10


def test_a_truth_of_another_corpus_is_refused(tmp_path: Path) -> None:
    artifact, _ = run(tmp_path, [{"name": "a", "text": "some text"}])
    truth = write_truth(tmp_path / "truth", [["x", "y"]], [])
    with pytest.raises(ArtifactMismatch, match="names no two documents"):
        check_dedup(ingest_of(artifact), artifact, truth)
    with pytest.raises(ArtifactMismatch, match="give the folder of the truth"):
        check_dedup(ingest_of(artifact), artifact, tmp_path / "nowhere")


def test_intervals_are_those_of_wilson() -> None:
    low, high = wilson_interval(8, 10) or (0, 0)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 0) is None
    assert wilson_interval(0, 100) == pytest.approx((0.0, 0.0370), abs=1e-4)


def test_wrong_arguments_have_a_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and main([str(tmp_path)] * 3) == 2
    assert "is not a finished artifact" in capsys.readouterr().err
