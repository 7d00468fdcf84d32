"""Limits on scores: shares, quantiles of each language, and draws that depend on a document's id
alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flows.compose import compose
from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table
from tasks.explain.replay import replay_quality
from tasks.quality.config import QualityConfig
from tasks.quality.stage import filter_quality
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import PartRunner
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.scored_documents import NUM, scored


def judged(
    parents: list[Artifact], out: Path, limit: dict[str, object], **config: object
) -> tuple[Artifact, list[bool]]:
    made = build(QualityConfig, {"presets": [], "record": [], "limits": {"edu": limit}, **config})
    artifact = filter_quality(*parents, empty_dir(out), made)
    return artifact, [
        kept
        for file in artifact.files("part-*.parquet")
        for kept in read_table(file)["kept"].to_pylist()
    ]


def test_a_share_keeps_the_best_of_all_parts(tmp_path: Path) -> None:
    parents = scored(tmp_path, [float(i) for i in range(NUM)])
    artifact, kept = judged(parents, tmp_path / "high", {"keep_frac": 0.1})
    assert kept == [i >= 36 for i in range(NUM)]
    assert artifact.counters["dropped"] == {"EDU_UNDER_MIN": 36}
    rule = next(r for r in artifact.metrics["rules"] if r["name"] == "EDU_UNDER_MIN")
    assert rule["threshold"] == 36 and rule["drops"]
    table = artifact.metrics["score_rules"]["EDU_UNDER_MIN"]
    assert table["language"]["de"] == {
        "documents": 20,
        "bytes": 2000,
        "scored": 20,
        "removed": 18,
        "removed_bytes": 1800,
    }
    assert table["register"]["prose"]["removed"] == 36
    parents[2].metrics["scores"]["edu"]["best"] = "low"  # type: ignore[index]
    assert judged(parents, tmp_path / "low", {"keep_frac": 0.1})[1] == [i < 4 for i in range(NUM)]


def test_quantiles_are_of_each_language_where_scores_do_not_compare(tmp_path: Path) -> None:
    # Documents of `de` have scores ten times higher.
    values = [float(i) * (10 if i % 2 else 1) for i in range(NUM)]
    parents = scored(tmp_path, values, "low", by_language=True)
    _, each = judged(parents, tmp_path / "each", {"max_quantile": 0.6})
    assert each == [i < 24 for i in range(NUM)]
    _, together = judged(
        parents, tmp_path / "together", {"max_quantile": 0.6, "each_language": False}
    )
    limit = sorted(values)[23]
    assert together == [value <= limit for value in values]
    _, one = judged(parents, tmp_path / "one", {"max_quantile": 0.6, "languages": ["de"]})
    assert one == [i < 24 or i % 2 == 0 for i in range(NUM)]


def test_given_bounds_hold_by_language_and_the_rest_is_as_for_all(tmp_path: Path) -> None:
    parents = scored(tmp_path, [float(i) for i in range(NUM)])
    _, kept = judged(parents, tmp_path / "a", {"min_by_language": {"de": 30}})
    assert kept == [i % 2 == 0 or i >= 30 for i in range(NUM)]
    _, kept = judged(parents, tmp_path / "b", {"max": 10, "max_by_language": {"de": 30}})
    assert kept == [i <= (30 if i % 2 else 10) for i in range(NUM)]


def test_documents_without_a_score_are_not_judged(tmp_path: Path) -> None:
    values = [math.nan if i % 4 == 0 else float(i) for i in range(NUM)]
    artifact, kept = judged(scored(tmp_path, values), tmp_path / "q", {"keep_frac": 0.5})
    assert kept == [i % 4 == 0 or i >= 20 for i in range(NUM)], "15 of the 30 that have a score"
    column = read_table(artifact.files("part-*.parquet")[0])["edu"]
    assert column.null_count == 5 and column.type == pa.float32()


def test_draws_keep_the_better_more_often_and_depend_on_ids_alone(tmp_path: Path) -> None:
    num = 4000
    values = [0.95 if i % 2 else 0.1 for i in range(num)]
    parents = scored(tmp_path / "a", values, parts=4)
    artifact, kept = judged(parents, tmp_path / "q", {"pareto": 9})
    shares = [np.mean(kept[k::2]) for k in (0, 1)]
    # P(Lomax(9) > 1 - score) = (2 - score) ** -9.
    assert shares == pytest.approx([1.9**-9, 1.05**-9], abs=0.04)
    assert set(artifact.counters["dropped"]) == {"EDU_NOT_DRAWN"}
    _, again = judged(scored(tmp_path / "b", values, parts=1), tmp_path / "r", {"pareto": 9})
    assert again == kept


def test_spared_documents_pass_whatever_their_score(tmp_path: Path) -> None:
    _, kept = judged(
        scored(tmp_path, [0.0] * 2000), tmp_path / "q", {"min": 0.5, "spare_frac": 0.1}
    )
    assert np.mean(kept) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    "limit",
    [
        {"keep_frac": 0.25},
        {"max_quantile": 0.6},
        {"max": 10, "max_by_language": {"de": 30}},
        {"pareto": 9},
    ],
)
def test_a_replay_of_limits_on_scores_is_what_a_run_would_give(
    limit: dict[str, object], tmp_path: Path
) -> None:
    parents = scored(tmp_path, [float(i) / NUM for i in range(NUM)], "low", by_language=True)
    made, kept = judged(parents, tmp_path / "made", limit)
    before = made if "pareto" in limit else judged(parents, tmp_path / "before", {"min": 0})[0]
    replay = replay_quality(
        *parents,
        before,
        build(QualityConfig, {"presets": [], "record": [], "limits": {"edu": limit}}),
    )
    assert replay.total.kept_after == sum(kept)


def test_finished_parts_are_those_of_the_same_cut(tmp_path: Path) -> None:
    parents = scored(tmp_path, [float(i) for i in range(NUM)])
    config = build(QualityConfig, {"presets": [], "limits": {"edu": {"keep_frac": 0.5}}})
    first = filter_quality(
        *parents, empty_dir(tmp_path / "q1"), config, PartRunner(tmp_path / "parts")
    )
    other = scored(tmp_path / "other", [float(-i) for i in range(NUM)])
    second = filter_quality(
        *other[:2], other[2], empty_dir(tmp_path / "q2"), config, PartRunner(tmp_path / "parts")
    )
    keeps = [read_table(a.files("part-*.parquet")[0])["kept"].to_pylist() for a in (first, second)]
    assert keeps == [[False] * 20, [True] * 20]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["quality.limits={mean_word_length: {min: 3}}"],
            "neither a feature nor a score.*did you mean mean_word_chars",
        ),
        (["quality.limits={prose: {keep_frac: 0.1}}"], "neither a feature nor a score"),
        (
            ["scores=prose", "quality.by_language={de: {limits: {prose: {keep_frac: 0.1}}}}"],
            "by_language.de.*all documents",
        ),
    ],
)
def test_a_limit_on_nothing_is_refused_before_the_run(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(overrides)


def test_a_limit_may_stand_on_a_score_of_the_run() -> None:
    limit = compose(["scores=prose", "quality.limits={prose: {keep_frac: 0.1}}"]).quality.limits[
        "prose"
    ]
    assert limit.keep_frac == 0.1 and limit.is_share
