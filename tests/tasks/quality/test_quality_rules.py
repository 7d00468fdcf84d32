"""Limits, languages, sources and kinds have rules of their own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml

from llm_core.config import ConfigError, build
from tasks.definitions.features import FEATURES
from tasks.quality.config import QualityConfig
from tasks.quality.fineweb2 import FINEWEB2
from tasks.quality.presets import PRESETS, RULE_NAMES
from tasks.quality.rules import MAX_RULES, document_kind, judge
from tests.support.data.judged_texts import (
    FOR_PAGES,
    PARAGRAPH,
    ROOT,
    RULES,
    broken_rules,
    filter_texts,
    judge_one,
)


def test_a_limit_on_any_feature_drops_what_passes_it(tmp_path: Path) -> None:
    limits = {
        "mean_word_chars": {"min": 5, "max": 6},
        "num_words": {"max": 70, "languages": ["de"]},
    }
    artifact, rows = filter_texts(
        tmp_path, [[PARAGRAPH, "a b " * 30, "abcdef " * 80]], presets=[], record=[], limits=limits
    )
    names = [rule["name"] for rule in artifact.metrics["rules"]]
    assert names == ["MEAN_WORD_CHARS_UNDER_MIN", "MEAN_WORD_CHARS_OVER_MAX", "NUM_WORDS_OVER_MAX"]
    assert [row["kept"] for row in rows] == [row["mean_word_chars"] >= 5 for row in rows]
    assert artifact.counters["dropped"] == {
        "MEAN_WORD_CHARS_UNDER_MIN": [row["kept"] for row in rows].count(False)
    }


def test_a_limit_knows_its_languages_and_may_only_record() -> None:
    limits = {
        "num_words": {"min": 10, "languages": ["de", "fr"]},
        "num_lines": {"max": 5, "drops": False},
    }
    config = build(QualityConfig, {"presets": [], "record": [], "limits": limits})
    values = {"num_words": 9.0, "num_lines": 6.0}
    assert judge_one(config, values, "fr") == {"NUM_WORDS_UNDER_MIN", "NUM_LINES_OVER_MAX"}
    assert judge_one(config, values, "en") == {"NUM_LINES_OVER_MAX"}
    features = {name: np.full(1, values.get(name, 0.0)) for name in FEATURES}
    _, drops = judge(
        config.rule_book(), features, np.array(["web"], object), np.array(["en"], object)
    )
    assert drops.tolist() == [0]


def test_a_feature_without_a_value_breaks_no_limit() -> None:
    config = build(
        QualityConfig, {"presets": [], "record": [], "limits": {"num_words": {"min": 1, "max": 2}}}
    )
    assert judge_one(config, {"num_words": float("nan")}) == set()


def test_languages_and_sources_have_rules_of_their_own() -> None:
    config = build(
        QualityConfig,
        {
            "presets": FOR_PAGES,
            "thresholds": {"TOP_2GRAM": 0.5},
            "limits": {"num_chars": {"max": 9}},
            "by_language": {"zh": {"presets": ["fineweb2/zh"]}},
            "by_source": {
                "mail": {"thresholds": {"TOO_FEW_WORDS": None}},
                "code": {"presets": [], "record": [], "limits": {}},
            },
        },
    )
    values = {
        "top_2gram_char_frac": 0.3,
        "num_words": 9.0,
        "short_line_frac": 1.0,
        "num_chars": 10.0,
    }
    assert judge_one(config, values) == {
        "TOO_FEW_WORDS",
        "TOO_MANY_SHORT_LINES",
        "NUM_CHARS_OVER_MAX",
    }
    assert judge_one(config, values, "zh") == {"TOO_FEW_WORDS", "TOP_2GRAM", "NUM_CHARS_OVER_MAX"}
    assert judge_one(config, values, "zh", "mail") == {"TOP_2GRAM", "NUM_CHARS_OVER_MAX"}
    assert (
        judge_one(config, values, "zh", "code")
        == judge_one(config, values, "en", "code")
        == {"NUM_CHARS_OVER_MAX"}
    )


def test_every_rule_measures_what_there_is_and_a_name_means_one_feature() -> None:
    meaning: dict[str, tuple[str, str]] = {}
    for rule in RULES:
        assert rule.feature in FEATURES
        assert meaning.setdefault(rule.name, (rule.feature, rule.side)) == (rule.feature, rule.side)
    assert len(RULE_NAMES) <= MAX_RULES


def test_paper_and_code_of_fineweb_differ_where_they_are_known_to() -> None:
    names = ("fineweb_paper", "fineweb_code")
    paper, code = (
        {r.name: dict(r.cuts).get("en", r.threshold) for r in PRESETS[name]} for name in names
    )
    assert (paper.pop("ANY_DUPLICATE_LINE_CHARS"), code.pop("ANY_DUPLICATE_LINE_CHARS")) == (
        0.1,
        0.01,
    )
    assert code == paper | {"TOO_MANY_NEWLINES": 0.3}


KINDS = yaml.safe_load((ROOT / "conf" / "quality" / "by_kind.yaml").read_text("utf-8"))["by_kind"]


def test_a_kind_has_rules_of_its_own_over_its_language_and_under_its_source() -> None:
    config = build(
        QualityConfig,
        {
            "presets": FOR_PAGES,
            "by_language": {"de": {"thresholds": {"TOO_FEW_WORDS": 40, "TOO_MANY_WORDS": 5000}}},
            "by_kind": {"verse": {"thresholds": {"TOO_FEW_WORDS": 10, "TOO_MANY_NEWLINES": None}}},
            "by_source": {"hymns": {"thresholds": {"TOO_MANY_NEWLINES": 1.0}}},
        },
    )
    values = {"num_words": 30.0, "newline_per_word": 2.0}
    assert judge_one(config, values, "de", kind="prose") == {"TOO_FEW_WORDS", "TOO_MANY_NEWLINES"}
    assert (
        judge_one(config, values, "de", kind="verse")
        == judge_one(config, values, kind="verse")
        == set()
    )
    assert judge_one(config, values, "de", "hymns", "verse") == {"TOO_MANY_NEWLINES"}
    assert judge_one(config, {"num_words": 6000.0}, "de", kind="verse") == {"TOO_MANY_WORDS"}


def test_a_document_is_of_the_kind_it_names_else_of_that_of_its_source() -> None:
    of_source, known = {"list": "mail"}, {"mail", "verse"}
    for metadata, source, key, kind in (
        ('{"kind":"verse"}', "list", "kind", "verse"),
        ('{"kind":"essay"}', "list", "kind", "mail"),
        ('{"kind":["verse"]}', "web", "kind", None),
        (None, "list", "kind", "mail"),
        ('{"kind":"verse"}', "web", None, None),
        ('{"a/b":"verse","kind":"mail"}', "web", "a/b", "verse"),
    ):
        assert document_kind(metadata, source, known, of_source, key) == kind
    with pytest.raises(
        ConfigError,
        match=r"kind_of_source.list is male, which has no rules in by_kind; did you mean mail",
    ):
        build(QualityConfig, {"by_kind": KINDS, "kind_of_source": {"list": "male"}})
    with pytest.raises(ConfigError, match="take quality=by_kind"):
        build(QualityConfig, {"kind_of_source": {"list": "mail"}})
    with pytest.raises(ConfigError, match=r"by_kind.mail.*did you mean gopher"):
        build(QualityConfig, {"by_kind": {"mail": {"presets": ["gofer"]}}})


def test_ready_kinds_keep_what_the_rules_for_web_pages_misjudge() -> None:
    config = build(QualityConfig, {"presets": FOR_PAGES, "by_kind": KINDS})
    poem = {
        "terminal_line_frac": 0.05,
        "short_line_frac": 1.0,
        "newline_per_word": 0.35,
        "dup_line_char_frac": 0.3,
    }
    letter = {"terminal_line_frac": 0.08, "dup_line_char_frac": 0.05, "alphabetic_word_frac": 0.7}
    program = {
        "hash_per_word": 0.2,
        "terminal_line_frac": 0.0,
        "newline_per_word": 0.4,
        "num_stop_words": 0.0,
    }
    dialogue = {"num_words": 24, "bullet_line_frac": 1.0, "terminal_line_frac": 0.05}
    kinds = (
        ("verse", poem),
        ("mail", letter),
        ("email", letter),
        ("code", program),
        ("fortune", dialogue),
        ("fortune", poem),
    )
    for kind, values in kinds:
        assert judge_one(config, values, kind=kind) == set() != judge_one(config, values)
    for kind in KINDS:
        assert judge_one(
            config, {"top_2gram_char_frac": 0.9, "dup_line_frac": 0.95}, kind=kind
        ) >= {
            "TOP_2GRAM",
            "DUPLICATE_LINES",
        }


def test_the_default_asks_of_lines_only_where_there_are_many_and_words_have_spaces() -> None:
    lines = {"bullet_line_frac": 1.0, "bare_line_frac": 1.0, "terminal_line_frac": 0.0}
    few, many = ({**lines, "num_lines": float(number)} for number in (9, 10))
    broken = {"TOO_MANY_BARE_LINES", "BARE_LINES_IN_LISTING"}
    assert judge_one(QualityConfig(), few) == set()
    assert judge_one(QualityConfig(), many) == broken
    for other in ({"unsegmented_frac": 0.8}, {"bare_line_frac": 0.1}):
        assert judge_one(QualityConfig(), many | other) == set()


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"alphabetic_word_frac": 0.82}, "FEW_WORDS_IN_LISTING"),
        ({"sign_frac": 0.27}, "MANY_SIGNS_IN_LISTING"),
        ({"bare_line_frac": 0.85, "num_lines": 10.0}, "BARE_LINES_IN_LISTING"),
        ({"ellipsis_line_frac": 0.4, "num_lines": 10.0}, "TOO_MANY_ELLIPSIS_LINES"),
        ({"num_stop_words": 1.0}, "TOO_FEW_STOP_WORDS"),
    ],
)
def test_the_default_asks_more_of_listings_than_of_text_in_sentences(values, rule) -> None:
    def reasons(words: float, unsegmented: float = 0.0) -> set[str]:
        sentences = {"mean_sentence_words": words, "unsegmented_frac": unsegmented}
        return judge_one(QualityConfig(), values | sentences)

    assert reasons(4.1) == reasons(18) == reasons(30) == set()
    assert reasons(4) == reasons(30.1) == {rule}
    if rule == "FEW_WORDS_IN_LISTING":  # two letters of Chinese are a word
        assert reasons(8.1, 1.0) == reasons(60, 1.0) == set()
        assert reasons(8, 1.0) == reasons(60.1, 1.0) == {rule}


def test_the_default_knows_how_long_words_of_a_language_are() -> None:
    def reasons(chars: float, language: str) -> set[str]:
        return judge_one(QualityConfig(), {"mean_word_chars": chars}, language)

    assert reasons(2, "ko") == reasons(3, "en") == reasons(12, "fi") == reasons(13, "und") == set()
    assert reasons(2, "en") == reasons(0.9, "ko") == {"SHORT_WORDS"}
    assert reasons(12, "en") == reasons(15, "fi") == {"LONG_WORDS"}


def test_the_default_keeps_prose_in_lines_of_fixed_width_and_drops_signs_and_damage(
    tmp_path: Path,
) -> None:
    wrapped = textwrap.fill(PARAGRAPH, 50)
    signs = "\n".join(f"x[{i}] = {{{i}: 'a_{i}', \"b\": (1, 2)}};" for i in range(40))
    damaged = PARAGRAPH.replace("that", "thÃ©t â€™")
    _, rows = filter_texts(tmp_path, [[wrapped, signs, damaged]])
    assert [row["kept"] for row in rows] == [True, False, False]
    assert "TOO_MANY_SIGNS" in broken_rules(rows[1])
    assert "DAMAGED_CHARACTERS" in broken_rules(rows[2])


def test_fineweb2_has_the_published_numbers_of_each_language() -> None:
    chinese = {rule.name: rule.threshold for rule in PRESETS["fineweb2/zh"]}
    assert [chinese[f"DUPLICATE_{n}GRAMS"] for n in range(5, 11)] == [
        0.198,
        0.182,
        0.167,
        0.154,
        0.14,
        0.127,
    ]
    assert [chinese[f"TOP_{n}GRAM"] for n in (2, 3, 4)] == [0.256, 0.201, 0.171]
    assert (
        chinese["LONG_WORDS"],
        chinese["TOO_FEW_ALPHABETIC_WORDS"],
        chinese["TOO_MANY_NEWLINES"],
    ) == (5, 0.735, 0.178)
    assert (chinese["DUPLICATE_LINES"], chinese["TOO_FEW_PUNCTUATED_LINES"]) == (0.287, 0.106)
    assert chinese["ANY_DUPLICATE_LINE_CHARS"] == 0.1
    assert not {"TOO_MANY_SHORT_LINES", "DUPLICATE_PARAGRAPHS", "DUPLICATE_LINE_CHARS"} & set(
        chinese
    )
    assert {r.name: r.threshold for r in PRESETS["fineweb2/de"]}["LONG_WORDS"] == 15
    for limits in FINEWEB2.values():
        falling = [limits.thresholds[name] for name in [*(f"TOP_{n}GRAM" for n in (2, 3, 4))]]
        assert falling == sorted(falling, reverse=True)
