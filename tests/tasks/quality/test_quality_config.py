"""Every choice of rules in conf builds, and unknown rules are refused with the nearest known."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_core.config import ConfigError, build
from tasks.definitions.features import FEATURES
from tasks.language.config import LanguageConfig
from tasks.quality.config import QualityConfig
from tests.support.data.judged_texts import ROOT


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"presets": ["gofer"]}, "did you mean gopher"),
        ({"record": ["c4"]}, "c4_paper"),
        ({"presets": ["fineweb2/zho"]}, "fineweb2/zh"),
        ({"thresholds": {"TOP_2_GRAM": 0.1}}, "TOP_2GRAM"),
        ({"thresholds": {"TOP_2GRAM": "much"}}, "must be a finite number"),
        ({"limits": {"num words": {"min": 3}}}, "did you mean num_words"),
        (
            {"limits": {"num_words": {"keep_frac": 0.1}}},
            "shares, quantiles and draws are for scores",
        ),
        ({"limits": {"num_words": {"min": 3, "spare_frac": 0.1}}}, "draws are for scores"),
        ({"limits": {"edu": {"keep_frac": 1.5}}}, "keep_frac .1.5. must be between 0 and 1"),
        ({"limits": {"edu": {"keep_frac": 0.5, "min": 1}}}, "exclude min and max"),
        ({"limits": {"edu": {"pareto": -1}}}, "pareto .-1. must be positive"),
        ({"limits": {"edu": {"min": 0, "spare_frac": 1}}}, "spare_frac .1. must be"),
        ({"limits": {"num_words": {"languages": ["en"]}}}, "num_words.*limits nothing"),
        ({"limits": {"num_words": {"min": 3, "max": 2}}}, "min .3. must not be over max .2."),
        ({"limits": {"num_words": {"min": 3, "languages": ["fra"]}}}, "the label is fr"),
        ({"by_language": {"zho": {"presets": ["fineweb2/zh"]}}}, "the label is zh"),
        ({"by_language": {"False": {}}}, "Norwegian"),
        ({"by_source": {"mail": {"presets": ["gofer"]}}}, r"by_source.mail.*did you mean gopher"),
        (
            {"presets": ["gopher", "fineweb2/zh"]},
            "gopher_quality and fineweb2/zh give SHORT_WORDS two thresholds, 3 and 1",
        ),
        ({"by_language": {"zh": {"record": ["fineweb2/zh"]}}}, "for language zh give SHORT_WORDS"),
        (
            {"limits": {name: {"min": 0, "max": 1} for name in FEATURES[:25]}},
            r"\d\d rules are chosen, and a verdict has 64 bits",
        ),
    ],
)
def test_unknown_rules_are_refused_with_the_nearest_known(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(QualityConfig, values)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "conf" / "quality").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_choice_of_rules_can_be_built(file: Path) -> None:
    build(QualityConfig, yaml.safe_load(file.read_text("utf-8")))


@pytest.mark.parametrize(
    "file", sorted((ROOT / "conf" / "language").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_choice_of_language_model_can_be_built(file: Path) -> None:
    build(LanguageConfig, yaml.safe_load(file.read_text("utf-8")))
