"""Languages and sources that a configuration names are those of its run, or the run does not
begin."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from flows.compose import compose
from llm_core.config import ConfigError
from tasks.corpus.conditions import compared_values
from tasks.corpus.language_labels import LID176_LABELS
from tasks.fasttext.files import read_labels
from tasks.language.config import LanguageConfig

PROSE = ["scores=prose", "source.name=wiki"]
KENLM = "++scores.perplexities.web={kenlm_models: {%s: model.arpa}}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The beginning of a fastText model, up to its words: settings, two words, three labels of
    another family."""
    entries = [
        ("le", 0),
        ("</s>", 0),
        *((f"__label__{label}", 1) for label in ("fra_Latn", "deu_Latn", "cmn_Hani")),
    ]
    dictionary = b"".join(word.encode() + struct.pack("<xqb", 9, kind) for word, kind in entries)
    sizes = struct.pack("<3i2q", len(entries), 2, 3, 99, -1)
    (tmp_path / "lid.bin").write_bytes(
        struct.pack("<2i12id", 793712314, 12, *[1] * 12, 1e-4) + sizes + dictionary + b"\0" * 64
    )
    return tmp_path / "lid.bin"


@pytest.mark.parametrize(
    ("overrides", "place", "way_out"),
    [
        (["documents.mixture.language_frac={fra: 0.5}"], "documents.mixture", "the label is fr"),
        (
            ["documents.mixture.language_frac={klingon: 0.5}"],
            "documents.mixture",
            "labels are like",
        ),
        (
            ["documents.mixture.language_frac={deu_Latn: 0.5}"],
            "documents.mixture.language_frac",
            "the label is de",
        ),
        (
            ["quality.by_language={fra_Latn: {presets: [gopher]}}"],
            "quality.by_language",
            "the label is fr",
        ),
        (["quality.by_language={zzz_Qqqq: {}}"], "quality.by_language", "labels are like"),
        (
            ["quality.limits={num_words: {min: 3, languages: [cmn_Hani]}}"],
            "quality.limits.num_words.languages",
            "is zh",
        ),
        (
            ["quality.by_source={files: {limits: {num_words: {max_by_language: {fra_Latn: 9}}}}}"],
            "max_by_language",
            "is fr",
        ),
        (
            ["quality.keywords={bad: {terms: [x], languages: [fra_Latn]}}"],
            "quality.keywords.bad.languages",
            "the label is fr",
        ),
        (
            [*PROSE, "scores.classifiers.prose.positives=\"language = 'fra'\""],
            "scores.classifiers.prose.positives",
            "is fr",
        ),
        (
            [*PROSE, "scores.classifiers.prose.negatives=\"language in ('en', 'eng')\""],
            "scores.classifiers.prose.negatives",
            "is en",
        ),
        (
            [*PROSE, "scores.perplexities.perplexity.reference=\"source = 'wikii'\""],
            "perplexity.reference",
            "mean wiki",
        ),
        (
            [*PROSE, "scores.classifiers.prose.positives=\"sorce = 'wiki'\""],
            "scores.classifiers.prose.positives",
            "mean source",
        ),
        (
            [*PROSE, "scores.perplexities.perplexity.reference_language=fra"],
            "scores.perplexities.perplexity",
            "the label is fr",
        ),
        (
            ["scores=prose", KENLM % "fra_Latn"],
            "scores.perplexities.web.kenlm_models",
            "the label is fr",
        ),
        (
            ["source.name=wiki", "quality.by_source={wikii: {}}"],
            "quality.by_source",
            "did you mean wiki",
        ),
        (
            ["source.sources={wiki: {paths: [x]}}", "documents.mixture.source_frac={web: 0.5}"],
            "mixture.source_frac",
            "wiki",
        ),
        (
            [
                "source.name=wiki",
                "dedup.survivor=[source_priority,id]",
                "dedup.source_priority=[web]",
            ],
            "source_priority",
            "wiki",
        ),
    ],
)
def test_a_label_that_no_document_can_carry_is_an_error_at_the_start(
    overrides: list[str], place: str, way_out: str
) -> None:
    with pytest.raises(ConfigError, match=way_out) as refused:
        compose(overrides)
    assert place in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["documents.mixture.language_frac={fr: 0.5, und: 0.1}"],
        ["scores=prose", KENLM % "any"],
        [
            *PROSE,
            (
                "scores.classifiers.prose.positives=\"language = 'fr' and source <> 'wiki' and"
                " declared_language = 'fra'\""
            ),
        ],
        [
            "run=demo",
            "quality.by_source={any_at_all: {}}",
        ],  # a column of the records names the sources of the sample
        ["quality=fineweb2"],
    ],
)
def test_a_label_of_the_run_is_accepted(overrides: list[str]) -> None:
    compose(overrides)


def test_labels_are_those_of_the_configured_model(model: Path) -> None:
    own = [f"language.model_path={model}"]
    compose([*own, "documents.mixture.language_frac={fra_Latn: 0.5, und: 0.1}"])
    with pytest.raises(ConfigError, match="names fr, .* the label is fra_Latn"):
        compose([*own, "documents.mixture.language_frac={fr: 0.5}"])
    with pytest.raises(
        ConfigError, match=r"names ita_Latn, .* of this run's language model; did you mean fra_Latn"
    ):
        compose([*own, "documents.mixture.language_frac={ita_Latn: 0.5}"])


def test_labels_are_read_from_models_of_any_kind(model: Path, tmp_path: Path) -> None:
    assert set(read_labels(model)) == {"fra_Latn", "deu_Latn", "cmn_Hani"}
    assert set(read_labels(LanguageConfig().input_files()["lid_model"])) == LID176_LABELS
    for data, why in (
        (b"no model", "not a fastText model"),
        (b"x" * 200, "not a fastText model"),
        (model.read_bytes()[:110], "end early"),
    ):
        (tmp_path / "torn.bin").write_bytes(data)
        with pytest.raises(ValueError, match=why):
            read_labels(tmp_path / "torn.bin")


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("language = 'a' or 'b' <> language", ["a", "b"]),
        ("LANGUAGE in ('a', 'b') and not (source not in ('c'))", ["a", "b"]),
        ("language is not distinct from 'a' and text = 'b'", ["a"]),
        ("case language when 'a' then true end", ["a"]),
        ("language is null or language ilike 'EN%' or language = source", []),
    ],
)
def test_what_a_column_is_compared_with_is_found(condition: str, values: list[str]) -> None:
    assert compared_values(condition, "language") == values
