"""Replay: what the stored features say is what a run with those rules does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table, write_table
from tasks.explain.replay import replay_quality
from tasks.quality.config import QualityConfig
from tasks.quality.stage import filter_quality
from tasks.runtime.artifact import Artifact, ArtifactMismatch
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import (
    empty_dir,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)
from tests.support.data.sample_documents import sample_texts

CHANGES = [
    {},
    {"thresholds": {"TOO_FEW_WORDS": 30, "LONG_WORDS": 6, "DUPLICATE_LINES": None}},
    {"presets": ["c4_paper"], "record": []},
    {
        "limits": {
            "num_lines": {"min": 3, "max": 40},
            "terminal_line_frac": {"min": 0.5, "languages": ["de"]},
        }
    },
    {"limits": {"num_words": {"min": 200, "drops": False}}},
    {
        "presets": [],
        "record": [],
        "limits": {"num_words": {"max": 900, "max_by_language": {"zh": 60, "de": 90}}},
    },
    {
        "by_source": {"x'y": {"presets": ["fineweb2/de"]}},
        "by_language": {
            "zh": {"presets": [], "limits": {"num_words": {"min": 70}}},
            "de": {"thresholds": {"TOO_FEW_WORDS": 90}},
        },
    },
    {
        "by_source": {"x'y": {"thresholds": {"TOO_FEW_WORDS": 80}}},
        "by_language": {"de": {"thresholds": {"TOO_FEW_WORDS": 90, "LONG_WORDS": 6}}},
        "by_kind": {"it's": {"thresholds": {"TOO_FEW_WORDS": 10}}, "list": {"presets": ["gopher"]}},
        "kind_of_source": {"z": "list"},
        "kind_key": "a/b~c",
    },
]


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = (
        tmp_path_factory.mktemp("replay") / "language=xx" / "source=[1]"
    )  # no columns and no pattern, but a path
    texts = sample_texts(240, 1500)
    for part in range(3):
        records = [
            {"text": text, "from": ("x'y", "z")[i % 2]}
            | ({"a/b~c": ("it's", "essay", 3)[i % 3]} if i % 5 else {})
            for i, text in enumerate(texts)
            if i % 3 == part
        ]
        write_jsonl(folder / "in" / f"{part}.jsonl", records)
    ingested = ingest_files(folder, "ingest", [folder / "in"], source_column="from")
    labels = [("en", "zh", "de", "th")[i % 4] for i in range(len(texts))]
    language = make_sidecar(
        ingested, "language", folder / "language", [("language", pa.string(), labels)]
    )
    scores = score_documents(ingested, language, empty_dir(folder / "scores"), ScoresConfig())
    made = {"ingest": ingested, "language": language, "scores": scores}
    return made | {"quality": run(made, folder / "quality", {})}


def run(parents: dict[str, Artifact], out_dir: Path, settings: dict) -> Artifact:
    judged = (parents[name] for name in ("ingest", "language", "scores"))
    return filter_quality(*judged, empty_dir(out_dir), build(QualityConfig, settings))


def kept_bytes(quality: Artifact) -> dict[bytes, int]:
    tables = [pq.read_table(file).to_pylist() for file in quality.files("part-*.parquet")]
    return {row["id"]: row["num_bytes"] for rows in tables for row in rows if row["kept"]}


@pytest.mark.parametrize("settings", CHANGES)
def test_replayed_rules_keep_what_a_run_with_them_keeps(parents, tmp_path, settings) -> None:
    replay = replay_quality(*parents.values(), build(QualityConfig, settings))
    done = run(parents, tmp_path / "again", settings)
    old, new = kept_bytes(parents["quality"]), kept_bytes(done)
    total = replay.total
    assert (total.kept_before, total.bytes_before) == (len(old), sum(old.values()))
    assert (total.kept_after, total.bytes_after) == (len(new), sum(new.values()))
    assert (total.newly_dropped, total.newly_kept) == (
        len(old.keys() - new.keys()),
        len(new.keys() - old.keys()),
    )
    assert {name: count for name, (_, count) in replay.reasons.items() if count} == done.counters[
        "dropped"
    ]
    assert {name: count for name, (count, _) in replay.reasons.items() if count} == parents[
        "quality"
    ].counters["dropped"]
    for axis in ("by_source", "by_language"):
        by_label = {
            label: (c.kept_before, c.kept_after) for label, c in getattr(replay, axis).items()
        }
        assert by_label == {
            label: (parents["quality"].metrics[axis][label]["kept"], row["kept"])
            for label, row in done.metrics[axis].items()
        }
    assert {bytes.fromhex(one.id) for one in replay.newly_dropped} <= old.keys() - new.keys()
    assert {bytes.fromhex(one.id) for one in replay.newly_kept} <= new.keys() - old.keys()
    rows = {row["id"].hex(): row for row in read_documents(parents["quality"])}
    labels = {row["id"].hex(): row["language"] for row in read_documents(parents["language"])}
    for one in (*replay.newly_dropped, *replay.newly_kept):
        assert (
            one.value == rows[one.id][one.feature]
            and one.language == labels[one.id]
            and one.threshold is not None
        )
        assert one.value < one.threshold if one.side == "min" else one.value > one.threshold, (
            "the rule that is shown is broken"
        )
    assert len(replay.newly_dropped) == min(5, total.newly_dropped) and len(
        replay.newly_kept
    ) == min(5, total.newly_kept)
    if not settings:
        assert total.newly_dropped == total.newly_kept == 0


def test_some_of_the_changes_above_change_something(parents) -> None:
    moved = Counter(
        replay_quality(*parents.values(), build(QualityConfig, settings)).total.newly_dropped > 0
        for settings in CHANGES
    )
    assert moved[True] >= 3


def test_a_feature_that_was_not_measured_and_an_older_artifact_are_refused(
    parents, tmp_path
) -> None:
    config = build(QualityConfig, {"limits": {"num_lines": {"min": 3}}})
    for gone, error in (("num_lines", ConfigError), ("drops", ArtifactMismatch)):
        out = empty_dir(tmp_path / gone)
        for file in parents["quality"].files("part-*.parquet"):
            write_table(read_table(file).drop_columns([gone]), out / file.name)
        with pytest.raises(error):
            older = Artifact(out, "quality", {}, parents["quality"].metrics)
            replay_quality(parents["ingest"], parents["language"], parents["scores"], older, config)
