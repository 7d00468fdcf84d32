"""Head, middle and tail: the buckets of CCNet, of each language for itself, and what mixtures make
of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table
from tasks.documents.mixture import MixtureConfig
from tasks.quality.buckets import BUCKETS, bucket_of, count_buckets
from tasks.quality.config import BucketConfig, QualityConfig
from tasks.quality.stage import filter_quality
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.scored_documents import NUM, scored

CCNET = {"score": "edu", "best": "low", "cuts": {"en": [340.0, 520.0]}}


def test_cuts_of_ccnet_part_english_as_ccnet_does() -> None:
    values = np.array([100.0, 340.0, 340.5, 520.0, 521.0, np.nan, 100.0])
    languages = np.array(["en"] * 6 + ["de"], object)
    assert bucket_of(CCNET, values, languages).to_pylist() == [
        "head",
        "head",
        "middle",
        "middle",
        "tail",
        None,
        None,
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=1, max_size=40),
    st.sampled_from(["high", "low"]),
)
def test_no_document_of_a_better_bucket_is_worse_than_one_of_the_next(
    rows: list[tuple[float, bool]], best: str
) -> None:
    values = np.array([value for value, _ in rows])
    languages = np.array(["en" if english else "de" for _, english in rows], object)
    first, second = (3.0, -3.0) if best == "high" else (-3.0, 3.0)
    found = bucket_of(
        {"best": best, "cuts": {"en": [first, second], "de": [first, second]}}, values, languages
    )
    places = [BUCKETS.index(name) for name in found.to_pylist()]
    ordered = [
        place for _, place in sorted(zip(values if best == "low" else -values, places, strict=True))
    ]
    assert ordered == sorted(ordered)
    table = count_buckets(found, np.full(len(rows), 7), languages)
    assert sum(row["documents"] for of in table.values() for row in of.values()) == len(rows)
    assert sum(row["bytes"] for of in table.values() for row in of.values()) == 7 * len(rows)


def test_every_language_has_a_head_of_its_own(tmp_path: Path) -> None:
    # Documents of `de` have values ten times higher, and as many of them are head, whatever the
    # division into parts.
    parents = scored(
        tmp_path, [float(i) * (10 if i % 2 else 1) for i in range(NUM - 1)] + [math.nan], "low"
    )
    config = build(QualityConfig, {"presets": [], "record": [], "buckets": {"score": "edu"}})
    artifact = filter_quality(*parents, empty_dir(tmp_path / "quality"), config)
    found = [
        name
        for file in artifact.files("part-*.parquet")
        for name in read_table(file)["bucket"].to_pylist()
    ]
    told = artifact.metrics["buckets"]
    assert {bucket: told["by_language"]["en"][bucket]["documents"] for bucket in BUCKETS} == {
        "head": 6,
        "middle": 6,
        "tail": 8,
    }
    assert [found[i] for i in range(0, NUM, 2)] == ["head"] * 6 + ["middle"] * 6 + ["tail"] * 8
    assert told["cuts"] == {"de": [110.0, 230.0], "en": [10.0, 22.0]} and found[-1] is None
    assert (
        told["by_language"]["de"]["(none)"]["documents"] == 1 and artifact.counters["kept"] == NUM
    )
    given_cuts = build(
        QualityConfig,
        {"presets": [], "record": [], "buckets": {"score": "edu", "cuts": {"en": [2, 4]}}},
    )
    other = filter_quality(*parents, empty_dir(tmp_path / "given"), given_cuts).metrics["buckets"]
    assert (
        other["by_language"]["en"]["head"]["documents"] == 2
        and other["by_language"]["de"] == told["by_language"]["de"]
    )


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        (
            {"score": "edo"},
            r"quality.buckets.score .edo. is not a score of this run; did you mean edu",
        ),
        ({"score": "edu", "cuts": {"en": [4, 2]}}, r"cuts.en .4, 2.: .* must be greater than"),
        ({"score": "edu", "head_frac": 0.6, "middle_frac": 0.5}, "leave no tail"),
        ({"score": "edu", "head_frac": 0}, "head_frac .0. must be between 0 and 1"),
        ({"cuts": {"en": [2, 4]}}, "cuts are values of a score"),
        ({"score": "edu", "cuts": {"fra": [2, 4]}}, "the label is fr"),
    ],
)
def test_buckets_that_part_nothing_are_refused(
    tmp_path: Path, buckets: dict[str, object], message: str
) -> None:
    parents = scored(tmp_path, [float(i) for i in range(NUM)], "low")
    with pytest.raises(ConfigError, match=message):
        made = build(QualityConfig, {"presets": [], "record": [], "buckets": buckets})
        filter_quality(*parents, empty_dir(tmp_path / "quality"), made)


def test_a_mixture_counts_documents_by_their_bucket() -> None:
    config = MixtureConfig(bucket_repeats={"head": 3, "tail": 0}, cluster_repeats={"2": 2})
    copies = config.copies_of(np.array([1, 2, 1, 1, 2]), ["head", "head", "middle", "tail", None])
    assert copies.tolist() == [3, 6, 1, 0, 2]
    with pytest.raises(ConfigError, match=r"bucket_repeats .best: 2. must map buckets"):
        MixtureConfig(bucket_repeats={"best": 2})
    assert BucketConfig().score is None
