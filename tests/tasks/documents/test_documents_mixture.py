"""A mixture repeats and drops training documents and leaves validation as it is."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from llm_core.config import ConfigError
from tasks.corpus.documentset import read_table, write_table
from tasks.documents.mixture import MixtureConfig
from tasks.runtime.artifact import check_accounting
from tests.support.data.judged_documents import NUM, with_columns, write_judged
from tests.support.data.make_artifacts import empty_dir, read_documents


def test_a_mixture_repeats_and_drops_training_documents_only(parents, tmp_path) -> None:
    plain = {
        row["id"]: row
        for row in read_documents(write_judged(parents, tmp_path / "plain", validation_frac=0.3))
    }
    assert {row["repeats"] for row in plain.values()} == {1}
    mixture = MixtureConfig(language_frac={"zh": 0.8}, max_repeats=10)
    artifact = write_judged(parents, tmp_path / "mixed", validation_frac=0.3, mixture=mixture)
    check_accounting("documents", artifact.counters)
    mixed = {row["id"]: row for row in read_documents(artifact)}
    validation = {key: row for key, row in plain.items() if row["split"] == "validation"}
    assert {key: row for key, row in mixed.items() if row["split"] == "validation"} == validation
    assert {row["split"] for row in mixed.values()} == {"train", "validation"}
    assert all(
        row["split"] == plain[key]["split"] and row["text"] == plain[key]["text"]
        for key, row in mixed.items()
    )
    assert artifact.counters["dropped"]["MIXTURE"] == len(plain) - len(mixed) > 0
    read = {"en": 0, "zh": 0}
    for row in mixed.values():
        if row["split"] == "train":
            read[row["language"]] += row["repeats"] * len(row["text"].encode())
    reached = {
        language: entry["reached_bytes"]
        for language, entry in artifact.metrics["mixture"]["by_language"].items()
    }
    assert reached == read and artifact.metrics["mixture"]["configured"]
    assert read["zh"] / sum(read.values()) == pytest.approx(0.8, abs=0.08)
    assert artifact.metrics["mixture"]["by_language"]["zh"]["planned_bytes"] == pytest.approx(
        0.8 * artifact.metrics["mixture"]["bytes"], abs=2
    )


def test_survivors_of_larger_clusters_are_read_more_often(parents, tmp_path) -> None:
    sized = with_columns(
        parents, tmp_path, dedup={"cluster_size": (pa.int32(), [1 + i % 3 for i in range(NUM)])}
    )
    rows = read_documents(
        write_judged(
            sized, tmp_path / "out", mixture=MixtureConfig(cluster_repeats={"2": 2, "3": 5})
        )
    )
    for row in rows:
        assert row["repeats"] == (
            1 if row["split"] == "validation" else (1, 2, 5)[int(row["source_id"]) % 3]
        )


def test_documents_of_the_tail_stay_out_and_those_of_the_head_are_read_twice(
    parents, tmp_path
) -> None:
    names = [("head", "middle", "tail", None)[i % 4] for i in range(NUM)]
    tables = [(file, read_table(file)) for file in parents["quality"].files("part-*.parquet")]
    folder, begin = empty_dir(tmp_path / "quality"), 0
    for file, table in tables:
        write_table(
            table.append_column("bucket", pa.array(names[begin : (begin := begin + len(table))])),
            folder / file.name,
        )
    told = parents["quality"].metrics | {"buckets": {}}
    bucketed = parents | {
        "quality": dataclasses.replace(parents["quality"], path=folder, metrics=told)
    }
    mixture = MixtureConfig(bucket_repeats={"head": 2, "tail": 0})
    rows = read_documents(write_judged(bucketed, tmp_path / "out", mixture=mixture))
    train = {int(row["source_id"]): row["repeats"] for row in rows if row["split"] == "train"}
    assert train and all(
        repeats == (1 if i % 4 else 2) and i % 4 != 2 for i, repeats in train.items()
    )
    with pytest.raises(
        ConfigError, match=r"bucket_repeats needs buckets; set quality.buckets.score"
    ):
        write_judged(parents, tmp_path / "none", mixture=mixture)
