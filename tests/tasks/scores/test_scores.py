"""Scores are learnt from what a condition chooses, never by a model that has read the text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pytest

from flows.compose import compose
from llm_core.config import ConfigError, build
from tasks.corpus.documentset import ID, read_table
from tasks.runtime.artifact import Artifact, digest_file
from tasks.runtime.keys import canonical_json, key_config
from tasks.runtime.parts import PartRunner, thread_executor
from tasks.runtime.stage import StageFailure
from tasks.scores.classifier import ClassifierConfig, text_line
from tasks.scores.config import ScoresConfig
from tasks.scores.perplexity import PerplexityConfig, perplexities
from tests.support.data.make_artifacts import write_jsonl
from tests.support.data.scored_sample import (
    LEARNT,
    PROSE,
    columns_of,
    parents_of,
    sample_records,
    score,
)


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    records = sample_records()
    return parents_of(
        tmp_path_factory.mktemp("parents"), [records[:45], records[45:46], records[46:]]
    )


@pytest.fixture(scope="module")
def learnt(parents, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return score(parents, tmp_path_factory.mktemp("learnt") / "out", **LEARNT)


def test_nothing_configured_gives_ids_alone(parents, tmp_path: Path) -> None:
    artifact = score(parents, tmp_path / "out")
    assert all(
        read_table(f).schema == pa.schema([("id", ID)]) for f in artifact.files("part-*.parquet")
    )
    assert artifact.counters == {"read": 130, "kept": 130, "dropped": {}, "quarantined": 0}
    assert artifact.metrics == {"scores": {}} and [f.name for f in artifact.files("*")] == [
        f"part-0000{i}.parquet" for i in range(3)
    ]


def test_prose_scores_higher_than_manuals_by_models_that_have_not_read_it(learnt: Artifact) -> None:
    found = columns_of(learnt)
    kinds = np.array([record["kind"] for record in sample_records()])
    prose, other = (
        np.array(found["prose"])[which] for which in (kinds == "prose", kinds != "prose")
    )
    assert np.median(prose) > 0.9 and np.median(other) < 0.1
    training = learnt.metrics["scores"]["prose"]["training"]
    assert training["auc"]["value"] > 0.97
    assert (training["positives"], training["negatives"]) == (50, 80)
    assert sum(row["texts"] for row in training["calibration"]) == 130
    perplexity = [None if value is None else math.log(value) for value in found["perplexity"]]
    english = [value for value in perplexity if value is not None]
    assert len(english) > 120, "documents identified as another language have no model"
    means = [
        np.mean(
            [
                v
                for v, k in zip(perplexity, kinds, strict=True)
                if v is not None and (k == "prose") == is_prose
            ]
        )
        for is_prose in (True, False)
    ]
    assert means[0] < means[1]


def test_what_a_cut_would_keep_is_told_by_language_source_and_register(learnt: Artifact) -> None:
    about = learnt.metrics["scores"]["prose"]
    assert set(about["by"]) == {"language", "source", "register"}
    for table in about["by"].values():
        assert sum(row["documents"] for row in table.values()) == 130
        assert sum(row["kept_0.25"] for row in table.values()) == math.ceil(0.25 * 130)
    assert about["by"]["register"]["changelog"]["kept_0.25"] == 0
    json.dumps(learnt.metrics, allow_nan=False)


def test_scores_are_the_same_for_other_parts_workers_and_order(
    parents, learnt: Artifact, tmp_path: Path
) -> None:
    again = score(parents, tmp_path / "threads", PartRunner(None, thread_executor(3)), **LEARNT)
    digests = [
        {file.relative_to(a.path): digest_file(file) for file in a.path.rglob("*.*")}
        for a in (learnt, again)
    ]
    assert digests[0] == digests[1] and again.metrics == learnt.metrics
    records = sample_records()
    other = parents_of(tmp_path, [records[100:], records[:100]])
    divided = columns_of(score(other, tmp_path / "divided", **LEARNT))
    found = columns_of(learnt)
    for name in ("prose", "perplexity"):
        assert divided[name][30:] + divided[name][:30] == found[name]


def test_copies_of_a_training_text_are_scored_by_the_model_that_has_not_read_it(
    tmp_path: Path,
) -> None:
    # Without folds the copies of a positive, among the negatives or not, would have the score of
    # what was learnt by heart.
    records = sample_records()
    copies = [
        {
            **records[i],
            "id": f"copy{i}",
            "text": f"  {records[i]['text'].upper()}\n!!",
            "kind": "copy",
        }
        for i in (0, 1, 60)
    ]
    ingested = parents_of(tmp_path, [records + copies])
    config = {
        "classifiers": {
            "prose": {
                "positives": PROSE,
                "negatives": "metadata->>'kind' in ('html', 'changelog')",
                "prefix_bytes": 100_000,
            }
        }
    }
    found = columns_of(score(ingested, tmp_path / "out", **config))["prose"]
    assert [found[130 + k] for k in range(3)] == [found[i] for i in (0, 1, 60)]


def test_a_text_in_both_classes_teaches_nothing(tmp_path: Path) -> None:
    records = sample_records()
    copies = [{**record, "id": f"copy{i}", "kind": "html"} for i, record in enumerate(records[:20])]
    ingested = parents_of(tmp_path, [records, copies])
    config = {
        "classifiers": {"prose": {"positives": PROSE, "negatives": "metadata->>'kind' = 'html'"}}
    }
    training = score(ingested, tmp_path / "out", **config).metrics["scores"]["prose"]["training"]
    assert (training["in_both"], training["positives"], training["negatives"]) == (20, 30, 40)


def test_texts_come_from_files_too(parents, tmp_path: Path) -> None:
    records = sample_records()
    files = {
        "good": [{"body": r["text"]} for r in records if r["kind"] == "prose"],
        "bad": [{"body": r["text"]} for r in records if r["kind"] == "html"],
    }
    paths = {
        name: str(write_jsonl(tmp_path / f"{name}.jsonl", rows)) for name, rows in files.items()
    }
    config = {
        "classifiers": {
            "good": {
                "positive_files": [paths["good"]],
                "negative_files": [paths["bad"]],
                "text_column": "body",
            }
        },
        "perplexities": {
            "likely": {
                "reference_files": [paths["good"]],
                "text_column": "body",
                "per_language": False,
                "order": 2,
            },
        },
    }
    artifact = score(parents, tmp_path / "out", **config)
    found = columns_of(artifact)
    assert artifact.metrics["scores"]["good"]["training"]["positives"] == 50
    assert np.median(found["good"][:50]) > 0.8 > 0.2 > np.median(found["good"][50:90])
    assert None not in found["likely"] and np.median(found["likely"][:50]) < np.median(
        found["likely"][50:]
    )
    made = build(ScoresConfig, config)
    assert set(made.input_files()) == {
        "good/positive_files/0",
        "good/negative_files/0",
        "likely/reference_files/0",
    }
    assert str(tmp_path) not in canonical_json(key_config(made))


def test_a_text_without_words_has_no_score(tmp_path: Path) -> None:
    records = [*sample_records(), {"id": "x", "text": "… — !!", "kind": "html", "source": "s"}]
    found = columns_of(score(parents_of(tmp_path, [records]), tmp_path / "out", **LEARNT))
    assert found["prose"][-1] is None and found["perplexity"][-1] is None


def test_a_given_fasttext_model_is_applied_as_it_is(parents, tmp_path: Path) -> None:
    records = sample_records()
    config = ClassifierConfig(model_path=tmp_path / "m.bin", label="__label__hq")
    lines = [
        f"__label__{'hq' if r['kind'] == 'prose' else 'cc'} {text_line(r['text'], config)}"
        for r in records
    ]
    (tmp_path / "train.txt").write_text("\n".join(lines), "utf-8")
    # All words are in the file of vectors: fastText leaves most of its first weights to chance
    # otherwise.
    words = sorted({word for line in lines for word in line.split()[1:]})
    rows = [
        f"{word} " + " ".join(["0.1" if (i + j) % 3 else "-0.1" for j in range(8)])
        for i, word in enumerate(words)
    ]
    (tmp_path / "vectors.vec").write_text(f"{len(words)} 8\n" + "\n".join(rows) + "\n", "utf-8")
    model = fasttext.train_supervised(
        str(tmp_path / "train.txt"),
        dim=8,
        epoch=5,
        thread=1,
        verbose=0,
        pretrainedVectors=str(tmp_path / "vectors.vec"),
    )
    model.save_model(str(tmp_path / "m.bin"))
    artifact = score(
        parents, tmp_path / "out", classifiers={"hq": {"model_path": str(tmp_path / "m.bin")}}
    )
    labels, probabilities = model.f.multilinePredict(
        [text_line(r["text"], config) + "\n" for r in records], 2, 0.0, "strict"
    )
    expected = [
        dict(zip(a, b, strict=True))["__label__hq"]
        for a, b in zip(labels, probabilities, strict=True)
    ]
    assert columns_of(artifact)["hq"] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(
        ConfigError,
        match=r"label \(__label__edu\) is not a label of m.bin; it has __label__cc, __label__hq",
    ):
        score(
            parents,
            tmp_path / "o2",
            classifiers={"hq": {"model_path": str(tmp_path / "m.bin"), "label": "__label__edu"}},
        )
    (tmp_path / "torn.bin").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="not a fastText model"):
        score(
            parents, tmp_path / "o3", classifiers={"hq": {"model_path": str(tmp_path / "torn.bin")}}
        )


def test_perplexity_is_ten_to_the_mean_cost_of_a_unit_and_the_end() -> None:
    found = perplexities(np.array([-8.0, -1e9, 0.0]), np.array([3, 2, 0]))
    assert found[0] == 100 and found[1] == np.finfo(np.float32).max and math.isnan(found[2])


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"classifiers": {"a": {}}}, ConfigError, "needs positives"),
        (
            {"classifiers": {"a": {"positives": "x", "model_path": "m.bin"}}},
            ConfigError,
            "exclude each other",
        ),
        ({"classifiers": {"kept": {"positives": "true"}}}, ConfigError, "score name .kept."),
        ({"classifiers": {"A-b": {"positives": "true"}}}, ConfigError, "score name .A-b."),
        (
            {"classifiers": {"a": {"positives": "sorce = 'x'"}}},
            ConfigError,
            "scores.classifiers.a.positives.*did you mean source",
        ),
        (
            {"classifiers": {"a": {"positives": "source = 'nowhere'"}}},
            StageFailure,
            "0 different positive texts and needs 10",
        ),
        ({"classifiers": {"a": {"model_path": "/nowhere.bin"}}}, ConfigError, "is not a file"),
        ({"perplexities": {"a": {}}}, ConfigError, "needs reference"),
        (
            {"perplexities": {"a": {"reference": PROSE, "min_reference_bytes": 10**9}}},
            StageFailure,
            "finds no language",
        ),
        (
            {"perplexities": {"a": {"reference_files": ["x.jsonl"]}}},
            ConfigError,
            "reference_language",
        ),
        ({"perplexities": {"a": {"reference": PROSE, "folds": 1}}}, ConfigError, "folds .1."),
        (
            {"perplexities": {"a": {"kenlm_models": {"en": "x"}, "reference": PROSE}}},
            ConfigError,
            "exclude each other",
        ),
    ],
)
def test_what_cannot_be_learnt_is_said_in_one_line(
    parents, tmp_path: Path, config, error, message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        made = build(ScoresConfig, config)
        made.input_files()
        score(parents, tmp_path / "out", **config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("choice", ["none", "prose"])
def test_every_choice_is_a_configuration(choice: str) -> None:
    assert compose([f"scores={choice}"]).scores.register_key == "kind"


def test_the_default_for_perplexity_has_models_of_order_three() -> None:
    assert PerplexityConfig(reference="true").order == 3
