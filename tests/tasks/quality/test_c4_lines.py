"""Lines that C4 takes out: as many as its measures say, each for a reason, and accounted for to the
end."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from llm_core.config import ConfigError, build
from tasks.definitions.c4_kinds import POLICY_PHRASES
from tasks.quality.c4_lines import LINE_CUTS, LineCutsConfig, LineRules, count_line_cuts, cut_lines
from tasks.quality.config import QualityConfig
from tasks.quality.measures import measure_features
from tests.support.data.features_by_definition import CITATION, JOINED, ascii_lower
from tests.support.data.sample_documents import SAMPLE

KEPT_FRAC: dict[LineRules, str] = {
    "c4_paper": "c4_kept_line_frac",
    "c4_code": "c4_code_kept_line_frac",
    "c4_fineweb": "c4_fineweb_kept_line_frac",
}


def line_cuts(text: str, rules: LineRules) -> list[tuple[int, int, str]]:
    texts = pa.chunked_array([pa.array([text], pa.large_string())])
    cuts = cut_lines(texts, np.array([True]), rules)
    return [(cut["start"], cut["end"], cut["reason"]) for cut in cuts[0].as_py()]


def plain_fault(line: str, rules: LineRules) -> str | None:
    """Why a line goes, by C4's published code on whole strings."""
    clean = CITATION.sub("", line)
    words, lower = (line if rules == "c4_fineweb" else clean).split(), ascii_lower(clean)
    if max(map(len, line.split())) > 1000:
        return "C4_LONG_WORD"
    ends_well = clean.endswith((".", "?", "!", '"')) and not clean.endswith("...")
    if rules != "c4_fineweb" and not ends_well:
        return "C4_NO_END_MARK"
    if len(words) < {"c4_paper": 3, "c4_code": 5, "c4_fineweb": 3}[rules]:
        return "C4_TOO_FEW_WORDS"
    if "javascript" in lower:
        return "C4_JAVASCRIPT"
    return "C4_POLICY" if any(phrase in lower for phrase in POLICY_PHRASES) else None


def without(text: str, cuts: list[tuple[int, int, str]]) -> str:
    data, out, position = text.encode(), b"", 0
    for start, end, _ in cuts:
        assert position <= start < end <= len(data)
        out, position = out + data[position:start], end
    return (out + data[position:]).decode()


def shown(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def agrees(text: str) -> None:
    features = measure_features(pa.chunked_array([pa.array([text], pa.large_string())]))
    for rules, feature in KEPT_FRAC.items():
        cuts = line_cuts(text, rules)
        left, before = shown(without(text, cuts)), shown(text)
        assert len(left) == round(features[feature][0] * len(before)) == len(before) - len(cuts), (
            rules
        )
        reasons = [plain_fault(line, rules) for line in before]
        assert [reason for *_, reason in cuts] == [reason for reason in reasons if reason]
        assert left == [line for line, reason in zip(before, reasons, strict=True) if not reason]


@settings(max_examples=200, deadline=None)
@given(JOINED)
@example(f"One two three.[{'1' * 63}]\nOne two three.[{'1' * 64}]")
@example("One two three [1].\n  \n no end\n\n\nwe use cookies, all of us.\nThe last one stays.")
def test_as_many_lines_stay_as_the_measures_count(text: str) -> None:
    agrees(text)


def test_as_many_lines_of_real_documents_stay_as_the_measures_count() -> None:
    for record in map(json.loads, SAMPLE.read_text("utf-8").splitlines()[::9]):
        agrees(record["text"])


def test_each_line_goes_for_its_first_reason_with_the_blank_lines_after_it() -> None:
    lines = [
        "A title\n",
        "This stays. Really.\n",
        "Ok.",
        "Please enable JavaScript to read.\n",
        "See our Privacy Policy here.",
    ]
    text = "\n".join([*lines, "w" * 1001])
    cuts = line_cuts(text, "c4_paper")
    reasons = ["C4_NO_END_MARK", "C4_TOO_FEW_WORDS", "C4_JAVASCRIPT", "C4_POLICY", "C4_LONG_WORD"]
    assert [reason for *_, reason in cuts] == reasons
    assert without(text, cuts) == "This stays. Really.\n\n"


def test_counts_are_of_kept_documents_and_others_lose_nothing() -> None:
    texts = pa.chunked_array(
        [
            pa.array(
                ["no end\nno end", "no end", "It ends well here.", "ü no end"], pa.large_string()
            )
        ]
    )
    cuts = cut_lines(texts, np.array([True, True, True, False]), "c4_paper")
    assert cuts.type == LINE_CUTS and [len(some) for some in cuts.to_pylist()] == [2, 1, 0, 0]
    counted = count_line_cuts(cuts, np.array([True, False, True, True]))
    assert counted == {
        name: {"cuts": 2, "bytes": 13, "documents": 1} for name in ("C4_NO_END_MARK", "all")
    }


def test_languages_without_rules_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"languages \(en\) does nothing without rules; try rules=c4_paper",
    ):
        build(QualityConfig, {"line_cuts": {"languages": ["en"]}})
    assert build(QualityConfig, {}).line_cuts == LineCutsConfig()
