"""Places all over a document say how much of it is in another language than its label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.compose import compose
from llm_core.config import ConfigError
from tasks.corpus.documentset import read_table
from tasks.language.config import LanguageConfig
from tasks.language.stage import MIN_WINDOW_CHARS, identify_languages, window_spans
from tasks.quality.stage import filter_quality
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.language_texts import CHINESE, ENGLISH, GERMAN, documents_artifact
from tests.support.data.make_artifacts import empty_dir

LIMIT = ["quality=off", "quality.limits.other_language_frac.max=0.3"]


def long(text: str, num_chars: int = 4000) -> str:
    return (text + " ") * (num_chars // len(text) + 1)


TEXTS = {
    "english": long(ENGLISH),
    "half German": long(ENGLISH) + long(GERMAN),
    "a quarter Chinese": long(ENGLISH, 6000) + long(CHINESE, 2000),
    "short": ENGLISH,
    "none": "1234567 " * 500,
}


def test_the_share_of_other_languages_is_that_of_the_text(tmp_path: Path) -> None:
    ingested = documents_artifact(tmp_path / "ingest", [list(TEXTS.values())])
    tables = []
    for name, config in (("one", LanguageConfig()), ("many", LanguageConfig(windows=8))):
        made = identify_languages(ingested, empty_dir(tmp_path / name), config)
        tables.append(read_table(made.files("part-*.parquet")[0]))
    assert "other_language_frac" not in tables[0].column_names
    assert tables[1].select(tables[0].column_names).equals(tables[0])
    found = dict(zip(TEXTS, tables[1]["other_language_frac"].to_pylist(), strict=True))
    assert found["english"] == 0 and found["short"] is None and found["none"] is None
    assert found["half German"] == pytest.approx(0.5, abs=0.13)
    assert found["a quarter Chinese"] == pytest.approx(0.25, abs=0.13)


def test_a_limit_drops_documents_of_several_languages(tmp_path: Path) -> None:
    ingested = documents_artifact(tmp_path / "ingest", [list(TEXTS.values())])
    config = compose(["language.windows=8", *LIMIT])
    language = identify_languages(ingested, empty_dir(tmp_path / "language"), config.language)
    scores = score_documents(ingested, language, empty_dir(tmp_path / "scores"), ScoresConfig())
    made = filter_quality(ingested, language, scores, empty_dir(tmp_path / "q"), config.quality)
    kept = read_table(made.files("part-*.parquet")[0])["kept"].to_pylist()
    assert dict(zip(TEXTS, kept, strict=True)) == {name: name != "half German" for name in TEXTS}
    assert made.counters["dropped"] == {"OTHER_LANGUAGE_FRAC_OVER_MAX": 1}


def test_a_limit_without_windows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"other_language_frac needs .* set language.windows=8"):
        compose(LIMIT)


@given(st.integers(0, 30_000), st.integers(2, 64), st.integers(1, 3000))
def test_windows_are_apart_and_reach_from_begin_to_end(length: int, most: int, size: int) -> None:
    spans = window_spans(length, most, size)
    assert len(spans) <= most and len(spans) != 1
    if spans:
        begins, ends = np.array(spans).T
        assert (begins[0], ends[-1]) == (0, length)
        assert (begins[1:] >= ends[:-1]).all()
        assert len(set(ends - begins)) == 1 and ends[0] <= max(size, MIN_WINDOW_CHARS)
    else:
        assert length < 2 * max(MIN_WINDOW_CHARS, min(size, length // most))
