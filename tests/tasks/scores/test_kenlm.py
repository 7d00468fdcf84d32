"""Given models of KenLM score documents as their ARPA file says: by KenLM itself where it is
installed, else by a stand-in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import read_table
from tasks.language.config import LanguageConfig
from tasks.language.stage import identify_languages
from tasks.runtime.code import ROOT
from tasks.scores import perplexity
from tasks.scores.config import ScoresConfig
from tasks.scores.perplexity import kenlm_log10_probabilities
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import empty_dir, ingest_files, write_jsonl

ARPA = """\\data\\
ngram 1=6
ngram 2=3

\\1-grams:
-1.0\t<unk>\t0
0\t<s>\t-0.3
-0.7\t</s>\t0
-0.5\tgood\t-0.2
-0.6\ttext\t-0.1
-0.9\t文\t0

\\2-grams:
-0.2\t<s> good
-0.15\tgood text
-0.25\ttext </s>

\\end\\
"""
LOG10 = {
    "Good, TEXT!": -0.2 - 0.15 - 0.25,
    "text good": -0.3 - 0.6 - 0.1 - 0.5 - 0.2 - 0.7,
    "unheard": -0.3 - 1.0 - 0.7,
    "文文": -0.3 - 0.9 - 0.9 - 0.7,
    "": -0.3 - 0.7,
}
"""By the definition of back-off: log10 p of a text and its end, of which the model reads units in
lower case."""


@pytest.fixture
def kenlm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = importlib.util.find_spec("kenlm") is not None
    if not installed:
        monkeypatch.syspath_prepend(str(ROOT / "tests/support/data/kenlm_stand_in"))
    yield
    if not installed:
        sys.modules.pop("kenlm", None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "good.arpa").write_text(ARPA, "utf-8")
    return tmp_path / "good.arpa"


def scores_of(tmp_path: Path, texts: list[str], **config: Any) -> list[float | None]:
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": text} for text in texts])
    ingest = ingest_files(tmp_path, "ingest", [tmp_path / "in"])
    language = identify_languages(ingest, empty_dir(tmp_path / "language"), LanguageConfig())
    scores = build(ScoresConfig, {"perplexities": {"web": config}})
    made = score_documents(ingest, language, empty_dir(tmp_path / "scores"), scores)
    return [
        value
        for file in made.files("part-*.parquet")
        for value in read_table(file)["web"].to_pylist()
    ]


def test_a_given_model_scores_as_its_file_says(kenlm: None, model: Path) -> None:
    np.testing.assert_allclose(
        kenlm_log10_probabilities(list(LOG10), model), list(LOG10.values()), rtol=1e-6
    )


def test_the_perplexity_of_a_document_is_per_unit_and_its_end(
    kenlm: None, model: Path, tmp_path: Path
) -> None:
    texts = {text: len(text.split()) for text in ("Good, TEXT!", "text good", "unheard")}
    expected = [10 ** (-LOG10[text] / (units + 1)) for text, units in texts.items()]
    assert scores_of(tmp_path, list(texts), kenlm_models={"any": str(model)}) == pytest.approx(
        expected, rel=1e-6
    )


def test_documents_of_languages_without_a_given_model_have_no_score(
    kenlm: None, model: Path, tmp_path: Path
) -> None:
    english, chinese = (
        "This is good text, and there is more of it in the book.",
        "今天天气很好，我们一起去公园散步，然后回家吃晚饭。",
    )
    scores = scores_of(tmp_path, [english, chinese, "???"], kenlm_models={"en": str(model)})
    assert scores[0] is not None and scores[0] > 1 and scores[1:] == [None, None]


def test_a_file_that_is_no_model_is_named(kenlm: None, tmp_path: Path) -> None:
    (tmp_path / "x.arpa").write_text("no model", "utf-8")
    with pytest.raises(ConfigError, match=r"x\.arpa is not a KenLM model"):
        kenlm_log10_probabilities(["text"], tmp_path / "x.arpa")


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"textmill\[kenlm\]"):
        perplexity.require_kenlm()
