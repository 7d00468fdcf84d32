"""Verdicts: every rule on every document, each drop explained, thresholds that mean what they say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.artifact import Artifact, ArtifactMismatch
from tasks.documentset import read_table
from tasks.language import LanguageConfig, identify_languages
from tasks.quality import QualityConfig, filter_quality
from tasks.quality_rules import RULES, judge, rules_with
from tasks.stage import StageFailure
from tests.tasks.test_language import CHINESE, ENGLISH, documents_artifact

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data" / "sample" / "sample.jsonl"
NAMES = [rule.name for rule in RULES]
PARAGRAPH = (
    "Water that falls on the hills runs down to the sea. Some of it stays in the ground, where roots can find it, "
    "and the rest goes its way through streams that nobody has ever named. In a dry summer most of these streams "
    "are gone by July, but the larger ones keep flowing because springs feed them from below."
)
THAI = "แม่น้ำไหลลงสู่ทะเล ฝนตกบนภูเขาทุกปี ชาวบ้านปลูกข้าวในฤดูฝน เด็กเล่นอยู่ริมฝั่งน้ำ ปลาว่ายผ่านสะพานเก่า"


def sample_texts() -> list[str]:
    return [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()]


def filter_texts(
    tmp_path: Path, parts: Sequence[Sequence[str]], name: str = "q", **config: object
) -> tuple[Artifact, list[dict]]:
    ingest = documents_artifact(tmp_path / name / "ingest", parts)
    for stage in ("language", "quality"):
        (tmp_path / name / stage).mkdir()
    language = identify_languages(ingest, tmp_path / name / "language", LanguageConfig())
    artifact = filter_quality(ingest, language, tmp_path / name / "quality", build(QualityConfig, config))
    return artifact, [row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()]


def broken_rules(row: dict) -> set[str]:
    return {name for bit, name in enumerate(NAMES) if row["verdict"] >> bit & 1}


def test_good_prose_is_kept_and_bad_is_not(tmp_path: Path) -> None:
    artifact, rows = filter_texts(tmp_path, [[PARAGRAPH, "Hello world", "", "spam spam " * 100]])
    assert [row["kept"] for row in rows] == [True, False, False, False]
    assert broken_rules(rows[0]) == {"C4_TOO_FEW_SENTENCES"}
    assert {"TOO_FEW_WORDS", "TOO_FEW_PUNCTUATED_LINES", "TOO_MANY_SHORT_LINES"} <= broken_rules(rows[1])
    assert "TOP_2GRAM" not in broken_rules(rows[1])
    assert {"TOP_2GRAM", "DUPLICATE_10GRAMS"} <= broken_rules(rows[3])
    assert artifact.counters["read"] == 4
    assert artifact.counters["kept"] == 1
    assert sum(artifact.counters["dropped"].values()) == 3


def test_every_rule_is_measured_whichever_drop(tmp_path: Path) -> None:
    _, strict = filter_texts(tmp_path, [sample_texts()[:80]], "strict")
    artifact, off = filter_texts(tmp_path, [sample_texts()[:80]], "off", drop=[])
    assert all(row["kept"] for row in off)
    assert artifact.counters["dropped"] == {}
    assert [row["verdict"] for row in off] == [row["verdict"] for row in strict]


def test_a_document_depends_on_no_other(tmp_path: Path) -> None:
    texts = sample_texts()[200:290]
    _, together = filter_texts(tmp_path, [texts], "together")
    _, apart = filter_texts(tmp_path, [texts[:1], [], texts[1:40], texts[40:]], "apart")
    assert together == apart


def test_metrics_account_for_every_document(tmp_path: Path) -> None:
    artifact, rows = filter_texts(tmp_path, [sample_texts()[::9], sample_texts()[1::40]])
    metrics = artifact.metrics
    dropping = {rule["name"] for rule in metrics["rules"] if rule["drops"]}
    for row in rows:
        assert row["kept"] == (not broken_rules(row) & dropping)
    firsts = {entry["rule"]: entry["dropped_first"] for entry in metrics["funnel"]}
    assert {name: n for name, n in firsts.items() if n} == artifact.counters["dropped"]
    for entry in metrics["funnel"]:
        hits = sum(entry["rule"] in broken_rules(row) for row in rows)
        assert entry["dropped"] == hits == metrics["overlap"][NAMES.index(entry["rule"])][NAMES.index(entry["rule"])]
        assert entry["dropped_first"] <= hits
    assert np.array_equal(metrics["overlap"], np.transpose(metrics["overlap"]))
    assert sum(metrics["dropped_by_language"].values()) == sum(not row["kept"] for row in rows)
    assert [rule["bit"] for rule in metrics["rules"]] == list(range(len(RULES)))


def test_a_reason_is_the_first_broken_rule(tmp_path: Path) -> None:
    artifact, rows = filter_texts(tmp_path, [[PARAGRAPH, *sample_texts()[:100]]])
    dropping = [rule["name"] for rule in artifact.metrics["rules"] if rule["drops"]]
    firsts = [next(n for n in dropping if n in broken_rules(row)) for row in rows if not row["kept"]]
    assert artifact.counters["dropped"] == {name: firsts.count(name) for name in sorted(set(firsts))}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(RULES), st.sampled_from([-1e-9, 0.0, 1e-9]))
def test_the_threshold_itself_passes(rule, offset: float) -> None:  # type: ignore[no-untyped-def]
    features = {r.feature: np.zeros(1) for r in RULES} | {"unsegmented_frac": np.zeros(1)}
    features[rule.feature] = np.array([float(rule.threshold) + offset])
    verdict = int(judge(RULES, features, np.array(["en"], object))[0])
    assert (verdict >> RULES.index(rule) & 1) == (offset < 0 if rule.side == "min" else offset > 0)


def test_a_threshold_of_null_switches_a_rule_off(tmp_path: Path) -> None:
    _, rows = filter_texts(tmp_path, [["Too short.", PARAGRAPH]], thresholds={"TOO_FEW_WORDS": None})
    assert "TOO_FEW_WORDS" not in broken_rules(rows[0])
    assert next(r for r in rules_with({"TOO_FEW_WORDS": None}) if r.name == "TOO_FEW_WORDS").threshold is None


def test_stop_words_are_asked_of_english_only() -> None:
    features = {r.feature: np.zeros(3) for r in RULES} | {"unsegmented_frac": np.zeros(3)}
    verdicts = judge(RULES, features, np.array(["en", "de", "und"], object))
    bit = NAMES.index("TOO_FEW_STOP_WORDS")
    assert [int(v) >> bit & 1 for v in verdicts] == [1, 0, 0]


def test_chinese_and_thai_prose_pass_the_rules_made_for_words(tmp_path: Path) -> None:
    chinese = CHINESE + "\n" + "".join(chr(c) for c in range(0x5200, 0x5240)) + "。"
    _, rows = filter_texts(tmp_path, [[chinese, THAI, PARAGRAPH]])
    assert [row["kept"] for row in rows] == [True, True, True]
    assert "TOO_FEW_PUNCTUATED_LINES" not in broken_rules(rows[1])
    assert not broken_rules(rows[0]) & {"SHORT_WORDS", "LONG_WORDS", "TOO_MANY_SHORT_LINES", "TOO_FEW_WORDS"}


def test_nothing_left_names_the_reasons_that_took_most(tmp_path: Path) -> None:
    with pytest.raises(StageFailure, match=r"all 4 documents, most for TOO_FEW_WORDS 3, .*; try quality=lenient"):
        filter_texts(tmp_path, [["one", "two", "", "# " * 10 + PARAGRAPH.replace(" ", " # ")]])


def test_a_sidecar_of_other_documents_is_refused(tmp_path: Path) -> None:
    ingest = documents_artifact(tmp_path / "ingest", [[PARAGRAPH, ENGLISH]])
    other = documents_artifact(tmp_path / "other", [[PARAGRAPH]])
    for name in ("language", "quality"):
        (tmp_path / name).mkdir()
    language = identify_languages(other, tmp_path / "language", LanguageConfig())
    with pytest.raises(ArtifactMismatch, match="language sidecar"):
        filter_quality(ingest, language, tmp_path / "quality", QualityConfig())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"drop": ["gofer_quality"]}, "gopher_quality"),
        ({"drop": ["TOO_FEW_WORD"]}, "TOO_FEW_WORDS"),
        ({"thresholds": {"TOP_2_GRAM": 0.1}}, "TOP_2GRAM"),
        ({"thresholds": {"TOP_2GRAM": "much"}}, "must be a number"),
    ],
)
def test_unknown_rules_are_refused_with_the_nearest_known(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(QualityConfig, values)


@pytest.mark.parametrize("file", sorted((ROOT / "conf" / "quality").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_choice_of_rules_can_be_built(file: Path) -> None:
    build(QualityConfig, yaml.safe_load(file.read_text("utf-8")))


@pytest.mark.parametrize("file", sorted((ROOT / "conf" / "language").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_choice_of_language_model_can_be_built(file: Path) -> None:
    build(LanguageConfig, yaml.safe_load(file.read_text("utf-8")))


def test_lenient_keeps_all_that_the_default_keeps(tmp_path: Path) -> None:
    texts = sample_texts()[::5]
    lenient = yaml.safe_load((ROOT / "conf" / "quality" / "lenient.yaml").read_text("utf-8"))
    _, default_rows = filter_texts(tmp_path, [texts], "default")
    _, lenient_rows = filter_texts(tmp_path, [texts], "lenient", **lenient)
    assert all(b["kept"] for a, b in zip(default_rows, lenient_rows, strict=True) if a["kept"])
    kept_bytes = sum(len(t.encode()) for t, row in zip(texts, lenient_rows, strict=True) if row["kept"])
    assert kept_bytes > 0.55 * sum(len(t.encode()) for t in texts)
