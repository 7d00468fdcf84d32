"""A model of one run is given to another, and a score whose high end is bad drops what is high."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flows.compose import compose
from llm_core.config import ConfigError, build
from tasks.quality.stage import filter_quality
from tasks.runtime.artifact import Artifact
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.scored_sample import columns_of, parents_of, sample_records, score

UNWANTED = "metadata->>'kind' = 'changelog'"
RECIPE = "scores.classifiers.toxicity.model_path"


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    records = sample_records()
    return parents_of(tmp_path_factory.mktemp("parents"), [records[:60], records[60:]])


@pytest.fixture(scope="module")
def learnt(
    parents: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    out = tmp_path_factory.mktemp("learnt") / "out"
    return score(parents, out, classifiers={"bad": {"positives": UNWANTED}})


def test_a_model_of_another_run_gives_the_scores_of_that_run(
    parents: tuple[Artifact, Artifact], learnt: Artifact, tmp_path: Path
) -> None:
    by_fold = []
    for file in learnt.files("models/bad-*"):
        made = score(parents, tmp_path / file.name, classifiers={"bad": {"model_path": str(file)}})
        by_fold.append(columns_of(made)["bad"])
    assert len(by_fold) == 2
    expected = columns_of(learnt)["bad"]
    same = np.array([[a == b for a, b in zip(one, expected, strict=True)] for one in by_fold])
    assert same.any(0).all() and same.any(1).all()


def test_a_damaged_model_is_refused_in_one_line(
    parents: tuple[Artifact, Artifact], learnt: Artifact, tmp_path: Path
) -> None:
    whole = learnt.files("models/bad-*")[0]
    tensors, content = load_file(whole), whole.read_bytes()
    about = {"textmill": json.dumps({"kind": "linear-ngrams", "ngrams": 2, "bits": 20})}
    more = about | {"textmill": about["textmill"].replace("20", "21")}
    (tmp_path / "torn").write_bytes(content[: len(content) // 2])
    save_file(tensors, tmp_path / "foreign")
    save_file(tensors, tmp_path / "larger", more)
    save_file(tensors | {"weights": tensors["weights"] * np.nan}, tmp_path / "nan", about)
    for name in ("torn", "foreign", "larger", "nan"):
        file = str(tmp_path / name)
        with pytest.raises(ConfigError, match="is not a model of a run") as refused:
            score(
                parents,
                empty_dir(tmp_path / f"{name}-out") / "o",
                classifiers={"bad": {"model_path": file}},
            )
        assert "\n" not in str(refused.value)


def test_the_recipe_for_toxicity_tells_what_it_cuts_by_language_and_source(
    parents: tuple[Artifact, Artifact], learnt: Artifact, tmp_path: Path
) -> None:
    model = learnt.files("models/bad-*")[0]
    words = [
        "scores=toxicity",
        f"{RECIPE}={model}",
        "quality=off",
        "quality.limits.toxicity.max=0.5",
    ]
    config = compose(words)
    scores = score_documents(*parents, empty_dir(tmp_path / "scores"), config.scores)
    about = scores.metrics["scores"]["toxicity"]
    assert about["best"] == "low"
    # The better half are those that do not look unwanted.
    kept = about["by"]["register"]["changelog"]
    assert kept["kept_0.5"] < kept["scored"] / 4
    judged = filter_quality(*parents, scores, empty_dir(tmp_path / "quality"), config.quality)
    values = np.array(columns_of(scores)["toxicity"], float)
    removed = int((values > 0.5).sum())
    assert judged.counters["dropped"] == {"TOXICITY_OVER_MAX": removed} and removed > 10
    table = judged.metrics["score_rules"]["TOXICITY_OVER_MAX"]
    for dimension in ("language", "source"):
        assert sum(row["removed"] for row in table[dimension].values()) == removed
    with pytest.raises(ConfigError, match=r"needs positives \(a condition\), .* or model_path"):
        compose(words[:1])


def test_a_score_whose_high_end_is_bad_keeps_the_low_end() -> None:
    given = {"model_path": "x", "best": "low"}
    config = build(ScoresConfig, {"classifiers": {"bad": given, "good": {"positives": UNWANTED}}})
    assert (config.best("bad"), config.best("good")) == ("low", "high")
