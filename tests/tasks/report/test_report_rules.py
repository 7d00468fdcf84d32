"""Rules in the report: thresholds by place, hits, and what is off."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import build
from tasks.quality.config import QualityConfig
from tasks.quality.described_rules import describe_rule
from tests.support.data import report_artifacts
from tests.support.report_page import Page, changed, render


def test_a_rule_without_a_threshold_is_shown_as_off(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    metrics = next(artifact.metrics for artifact in artifacts if artifact.stage == "quality")
    rules = copy.deepcopy(metrics["rules"])
    rules[0] |= {"threshold": None, "drops": False}
    quality = metrics | {"rules": rules, "funnel": metrics["funnel"][1:]}
    text = Page(render(changed(artifacts, "quality", **quality), tmp_path)).text
    name, preset, feature = (
        rules[0][key].replace("_", "_ ") for key in ("name", "preset", "feature")
    )
    assert f"{name} {preset} {feature} off – –" in text
    assert "only observed" not in text, "a rule that is off observes nothing"


def test_bars_of_hits_are_on_the_scale_of_the_rule_with_most_hits(tmp_path: Path) -> None:
    rule = {"preset": "own", "feature": "words", "threshold": 3, "side": "min"}
    quality = {
        "rules": [rule | {"name": "DROPS"}, rule | {"name": "OBSERVES", "drops": False}],
        "funnel": [{"rule": "DROPS", "dropped": 50, "dropped_first": 50}],
        "overlap": [[50, 10], [10, 200]],
    }
    artifacts = changed(report_artifacts.realistic(tmp_path), "quality", **quality)
    rules = render(artifacts, tmp_path).partition("<h3>Rules</h3>")[2].partition("</table>")[0]
    assert re.findall(r"--w:([\d.]+)%", rules) == ["25.0", "100.0"]


BY_PLACE = [
    (
        {"limits": {"perplexity": {"max_by_language": {"en": 340.0, "de": 370.0}}}},
        [
            "PERPLEXITY_ OVER_ MAX limits perplexity by language 4,000 3,900",
            "MAX all de perplexity ≤ 370",
        ],
    ),
    (
        {"by_language": {"zh": {"limits": {"num_words": {"min": 70}}}}},
        [
            "NUM_ WORDS_ UNDER_ MIN limits num_ words by language 4,000 3,900",
            "all zh num_ words ≥ 70",
        ],
    ),
    (
        {
            "limits": {"num_words": {"min": 50}},
            "by_source": {
                "mail": {"limits": {"num_words": {"min": 9, "min_by_language": {"fr": 7}}}}
            },
            "by_language": {"de": {"limits": {"num_words": {"min": 40, "drops": False}}}},
        },
        [
            "num_ words ≥ 50 by language and source 4,000 3,900",
            "MIN mail all num_ words ≥ 9",
            "MIN mail fr num_ words ≥ 7",
            "MIN all de num_ words ≥ 40 recorded only",
        ],
    ),
]


def described(asked: dict[str, Any]) -> list[dict[str, Any]]:
    book = build(QualityConfig, asked).rule_book()
    return [describe_rule(book, bit, name) for bit, name in enumerate(book.names)]


def text_with_rules(rules: list[dict[str, Any]], folder: Path, **quality: Any) -> str:
    artifacts = changed(report_artifacts.realistic(folder), "quality", rules=rules, **quality)
    return Page(render(artifacts, folder)).text


@pytest.mark.parametrize(("asked", "shown"), BY_PLACE)
def test_a_rule_with_thresholds_by_language_or_source_is_shown_with_its_hits(
    asked: dict[str, Any], shown: list[str], tmp_path: Path
) -> None:
    rules = described({"presets": [], "record": [], **asked})
    funnel = [{"rule": rules[0]["name"], "dropped": 4000, "dropped_first": 3900}]
    text = text_with_rules(rules, tmp_path, funnel=funnel, overlap=[[4000]], score_rules={})
    assert [one for one in shown if one not in text] == []


def test_a_place_where_a_rule_is_off_is_shown(tmp_path: Path) -> None:
    asked = {
        "presets": ["gopher"],
        "record": [],
        "by_source": {"mail": {"thresholds": {"TOO_FEW_WORDS": None}}},
    }
    text = text_with_rules(described(asked), tmp_path)
    assert "TOO_ FEW_ WORDS mail all off" in text and "1 threshold by language and source" in text


def test_a_source_without_a_say_does_not_repeat_the_thresholds_of_languages(tmp_path: Path) -> None:
    asked = {
        "by_language": {"zh": {"thresholds": {"LONG_WORDS": 5}}},
        "by_source": {"mail": {"thresholds": {"SHORT_WORDS": 2}}},
    }
    text = text_with_rules(described(asked), tmp_path)
    assert "LONG_ WORDS all zh mean_" in text and "LONG_ WORDS mail" not in text
    assert "SHORT_ WORDS mail all mean_" in text and "SHORT_ WORDS mail zh" not in text
    asked["by_kind"] = {"verse": {"thresholds": {"SHORT_WORDS": 1}}}
    text = text_with_rules(described(asked), tmp_path)
    # The source is laid over the kind, so both at once are told.
    assert (
        "SHORT_ WORDS all verse all mean_" in text and "SHORT_ WORDS mail verse all mean_" in text
    )
    assert "thresholds by language, kind and source" in text
