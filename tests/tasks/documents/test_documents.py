"""The documents stage joins what every judge says, and tells what became of the rest."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from tasks.documents.mixture import MixtureConfig
from tasks.runtime.artifact import Artifact, ArtifactMismatch, check_accounting
from tasks.runtime.parts import PartRunner, thread_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.judged_documents import NUM, with_columns, write_judged
from tests.support.data.make_artifacts import (
    CUTS,
    MASKS,
    SPANS,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)


def test_kept_documents_are_joined_scrubbed_and_counted(parents, tmp_path) -> None:
    artifact = write_judged(parents, tmp_path / "out")
    rows = read_documents(artifact)
    check_accounting("documents", artifact.counters)
    assert artifact.counters["read"] == NUM and artifact.counters["kept"] == len(rows)
    sources = {row["id"]: row for row in read_documents(parents["ingest"])}
    for row in rows:
        i = int(row["source_id"])
        assert i % 10 != 0 and row["family_id"] == row["id"] and row["url"] == f"u{i}"
        assert row["language"] == ("en", "zh")[i % 2]
        assert row["text"] == sources[row["id"]]["text"].replace(f"user{i}@example.org", "<EMAIL>")
    lost = len([i for i in range(0, NUM, 7) if i % 10 != 0 and (i - 1) % 10 != 0])
    assert artifact.counters["dropped"] == {"A": 3, "C": 3, "NEAR_DUPLICATE": lost}
    assert [step["documents"] for step in artifact.metrics["funnel"]] == [
        60,
        60,
        54,
        54 - lost,
        54 - lost,
    ]
    assert artifact.metrics["dropped"]["quality"] == {"A": 3, "C": 3}
    for table in ("by_language", "by_source", "split"):
        entries = artifact.metrics[table].values()
        assert sum(e["documents"] for e in entries) == len(rows)
        assert sum(e["bytes"] for e in entries) == sum(len(r["text"].encode()) for r in rows)
    assert {s: e["families"] for s, e in artifact.metrics["split"].items()} == {
        s: len({r["family_id"] for r in rows if r["split"] == s}) for s in ("train", "validation")
    }


def test_cuts_masks_and_replacements_are_applied_and_what_is_emptied_goes(
    parents, tmp_path
) -> None:
    texts = [row["text"].encode() for row in read_documents(parents["ingest"])]
    cuts = [[{"start": 0, "end": 9, "reason": "LINE"}] for _ in texts]
    cuts[1] = [{"start": 0, "end": len(texts[1]), "reason": "LINE"}]
    cuts[2] = [
        {"start": 0, "end": len(texts[2]) - 7, "reason": "LINE"},
        {"start": len(texts[2]) - 8, "end": len(texts[2]), "reason": "LINE"},
    ]
    masks = [
        [{"start": t.index(b"speaks"), "end": t.index(b"speaks") + 6, "type": "WORD"}]
        for t in texts
    ]
    spans = [
        [
            {
                "start": t.index(b"user"),
                "end": t.index(b" and"),
                "type": "EMAIL",
                "replacement": "you@there",
            }
        ]
        for t in texts
    ]
    edited = with_columns(
        parents,
        tmp_path,
        dedup={"cuts": (CUTS, cuts)},
        quality={"masks": (MASKS, masks)},
        pii={"spans": (SPANS, spans)},
    )
    artifact = write_judged(edited, tmp_path / "out")
    check_accounting("documents", artifact.counters)
    assert artifact.counters["dropped"]["EMPTIED"] == 2 and artifact.metrics["dropped"][
        "documents"
    ] == {"EMPTIED": 2}
    for row in read_documents(artifact):
        i = int(row["source_id"])
        assert row["text"] == f"{i} <WORD> of {'é' * (i % 9)} to you@there and others."
    assert artifact.counters["bytes"] == sum(
        len(r["text"].encode()) for r in read_documents(artifact)
    )


def test_lines_that_quality_cuts_go_beside_what_dedup_cuts(parents, tmp_path) -> None:
    texts = [row["text"].encode() for row in read_documents(parents["ingest"])]
    cuts = [[{"start": 0, "end": 9, "reason": "LINE"}] for _ in texts]
    lines = [[{"start": 4, "end": t.index(b" speaks"), "reason": "C4"}] for t in texts]
    lines[1] = [{"start": 9, "end": len(texts[1]), "reason": "C4"}]
    edited = with_columns(
        parents, tmp_path, dedup={"cuts": (CUTS, cuts)}, quality={"cuts": (CUTS, lines)}
    )
    artifact = write_judged(edited, tmp_path / "out")
    assert artifact.counters["dropped"]["EMPTIED"] == 1
    rows = read_documents(artifact)
    assert {row["text"] for row in rows} == {
        f" speaks of {'é' * (int(r['source_id']) % 9)} to <EMAIL> and others." for r in rows
    }
    assert artifact.counters["bytes"] == sum(len(row["text"].encode()) for row in rows)


def numbers_of(artifact: Artifact) -> set[int]:
    """Which of the documents are left."""
    return {int(row["source_id"]) for row in read_documents(artifact)}


def test_contaminated_documents_go_and_count_only_where_nothing_before_dropped_them(
    parents, tmp_path
) -> None:
    contaminated = [i % 5 == 0 for i in range(NUM)]
    reasons = ["CONTAMINATED" if one else None for one in contaminated]
    columns = {
        "kept": (pa.bool_(), [not one for one in contaminated]),
        "reason": (pa.string(), reasons),
    }
    artifact = write_judged(
        with_columns(parents, tmp_path, contamination=columns), tmp_path / "out"
    )
    check_accounting("documents", artifact.counters)
    before = numbers_of(write_judged(parents, tmp_path / "before"))
    assert numbers_of(artifact) == {i for i in before if i % 5}
    assert artifact.metrics["dropped"]["contamination"] == {
        "CONTAMINATED": sum(i % 5 == 0 for i in before)
    }


def test_documents_that_pii_drops_count_only_where_no_judge_before_did(parents, tmp_path) -> None:
    dropping = with_columns(
        parents, tmp_path, pii={"kept": (pa.bool_(), [i % 4 != 0 for i in range(NUM)])}
    )
    artifact = write_judged(dropping, tmp_path / "out")
    check_accounting("documents", artifact.counters)
    before = numbers_of(write_judged(parents, tmp_path / "before"))
    assert numbers_of(artifact) == {i for i in before if i % 4}
    assert artifact.counters["dropped"]["PII"] == sum(i % 4 == 0 for i in before)
    assert artifact.metrics["funnel"][-2]["stage"] == "pii"


def test_duplicate_examples_show_scrubbed_texts_of_removed_pairs(parents, tmp_path) -> None:
    examples = write_judged(parents, tmp_path / "out").metrics["duplicate_examples"]
    assert len(examples) == 3
    for example in examples:
        assert "@" not in example["survivor"] + example["member"] and "<EMAIL>" in example["member"]
    assert examples[0]["survivor"].startswith("Document 6 ") and examples[0]["member"].startswith(
        "Document 7 "
    )


def test_bytes_do_not_depend_on_workers(parents, tmp_path) -> None:
    mixture = MixtureConfig(temperature=3, target_bytes=3000)
    one = write_judged(parents, tmp_path / "one", mixture=mixture)
    four = write_judged(
        parents, tmp_path / "four", PartRunner(make_executor=thread_executor(4)), mixture=mixture
    )
    assert [f.read_bytes() for f in one.files("*")] == [f.read_bytes() for f in four.files("*")]
    assert (one.counters, one.metrics) == (four.counters, four.metrics)
    assert [f.name for f in one.files("*")] == [f"part-{i:05d}.parquet" for i in range(4)]


def test_sidecar_of_other_documents_is_refused(parents, tmp_path) -> None:
    others = ingest_files(
        tmp_path,
        "in",
        [
            write_jsonl(tmp_path / "a" / f"{i}.jsonl", [{"text": f"{i} {j}"} for j in range(15)])
            for i in range(4)
        ],
    )
    foreign = make_sidecar(
        others,
        "pii",
        tmp_path / "pii",
        [("spans", SPANS, [[]] * NUM), ("kept", pa.bool_(), [True] * NUM)],
    )
    with pytest.raises(ArtifactMismatch, match="pii"):
        write_judged(parents | {"pii": foreign}, tmp_path / "out")


def test_nothing_kept_names_the_three_reasons_that_took_most(parents, tmp_path) -> None:
    none = [
        ("num_bytes", pa.int64(), [1] * NUM),
        ("drops", pa.uint64(), [1] * NUM),
        ("kept", pa.bool_(), [False] * NUM),
    ]
    quality = make_sidecar(parents["ingest"], "quality", tmp_path / "quality", none)
    counters = quality.counters | {"dropped": {"A": 30, "B": 20, "C": 9, "D": 1}}
    quality = dataclasses.replace(quality, counters=counters, metrics=parents["quality"].metrics)
    with pytest.raises(StageFailure, match=r"quality A 30, quality B 20, quality C 9\)"):
        write_judged(parents | {"quality": quality}, tmp_path / "out")
