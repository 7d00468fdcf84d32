"""Sections of the report say what was measured, with the doubt there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.tally import OTHER
from tasks.report.config import ReportConfig
from tasks.report.quantities import NARROW, compact, significant
from tasks.report.sections.texts import legible_token
from tasks.report.stage import REPORT_FILE, write_report
from tests.support.data import report_artifacts
from tests.support.report_page import Page, changed, render


def test_types_of_personal_data_without_a_find_are_not_said_to_be_found(tmp_path: Path) -> None:
    types = {
        "EMAIL": {"spans": 3, "documents": 2},
        "IP": {"spans": 1, "documents": 1},
        "CARD": {"spans": 0, "documents": 0},
    }
    page = render(changed(report_artifacts.realistic(tmp_path), "pii", types=types), tmp_path)
    assert "4 passages of 2 of 3 types looked for were found" in page


def test_names_that_a_given_model_found_are_not_said_to_be_judged(tmp_path: Path) -> None:
    types, artifacts = {"NAME": {"spans": 4, "documents": 3}}, report_artifacts.realistic(tmp_path)
    by_form = Page(render(changed(artifacts, "pii", types=types), tmp_path)).text
    assert "NAME: 249 of 250 finds were right" in by_form and "a given model" not in by_form
    told = changed(artifacts, "pii", types=types, ner_types=["NAME"])
    by_model = Page(render(told, tmp_path)).text
    assert "NAME: no find has been judged" in by_model and "a given model (NAME)" in by_model


def test_a_corpus_of_one_language_is_not_weighed_by_language(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    states = next(a for a in artifacts if a.stage == "analysis").metrics["states"]
    alone = {name: state | {"languages": {"effective": 1.0}} for name, state in states.items()}
    assert "as many languages as" in render(artifacts, tmp_path)
    assert "as many languages as" not in render(
        changed(artifacts, "analysis", states=alone), tmp_path
    )


def test_suites_show_intervals_chance_and_how_answers_ended(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    text = Page(render(artifacts, tmp_path)).text
    assert "cloze acc 0.620 0.482" in text and "0.741 0.250 50 2" in text
    assert "chance 0.25" in text and "chance 0.50" in text
    assert "to_chinese chrf 1.500 0.250" in text
    assert "to_chinese 5.0 % 80.0 % 0 %" in text
    assert "cloze 0.493 0.551 0.124 3 2.0 % 0.272" in text
    assert "to_chinese – – – 3 – –" in text
    assert "cloze acc 48 5 0.620 0.578 −0.042 −0.081 to −0.004" in text
    without = Page(render(changed(artifacts, "evaluate", suites={}), tmp_path)).text
    assert "Metrics of suites" in text and "Metrics of suites" not in without


def test_perplexities_say_what_they_compare_with(tmp_path: Path) -> None:
    text = Page(render(report_artifacts.realistic(tmp_path), tmp_path)).text
    assert "token with models of the same tokenizer 79.3 61.2–104" in text
    assert "byte – 3.22 3.03–3.43" in text


def test_other_models_stand_beside_the_run_s_own_with_paired_differences(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    text = Page(render(artifacts, tmp_path)).text
    assert "bits per byte 1.686 1.200 −0.486 −0.550 to −0.410" in text
    assert "cloze acc 0.620 0.780 0.160 0.040–0.280 0.021" in text
    assert "trained 20.4 MB 1.6860 – –" in text and "agreement: acc −0.012" in text
    assert "no difference: 0.000 folder − this model" in text
    unfit = {"name": "published", "no_bits": "its tokens do not give 3 of 57 texts back"}
    without = Page(render(changed(artifacts, "evaluate", beside=unfit), tmp_path)).text
    assert (
        "Bits per byte of published are left out: its tokens do not give 3 of 57 texts back"
        in without
    )


def test_scores_are_drawn_against_tokens_and_bits_against_the_size_of_weights(
    tmp_path: Path,
) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    text = Page(render(artifacts, tmp_path)).text
    assert "cloze acc 600 9.830 0.620 0.520–0.720" in text
    assert "acc, million tokens 9.8304: 0.62 score" in text and "chance: 0.250" in text
    assert "int4 3.10 MB 1.7260 0.0400 0.0200–0.0600" in text
    assert "int4, 3.10 MB: 1.7260 bits per byte" in text
    assert text.count("Headline of the suite; dashed: guessing.") == 2
    (curves,) = [a.metrics["curves"] for a in artifacts if "curves" in a.metrics]
    curve = curves["cloze"] | {"metric": "bits_per_byte"}
    bits = Page(render(changed(artifacts, "evaluate", curves={"cloze": curve}), tmp_path)).text
    assert "Headline of the suite. Thin lines" in bits and "dashed: guessing" not in bits
    nothing = Page(
        render(changed(artifacts, "evaluate", formats={}, curves={}, beside={}), tmp_path)
    ).text
    for title in ("size of weights", "Suites against training tokens", "Against published"):
        assert title in text and title not in nothing


def test_speed_is_withheld_when_the_cache_is_not_proved_right(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    speed = compact(artifacts[-1].metrics["decode_tok_s"])
    failed = changed(artifacts, "bench", correctness={"fp64_max_abs_diff": 0.25, "passed": False})
    made = write_report(*failed, tmp_path, ReportConfig())  # type: ignore[arg-type]
    html = (tmp_path / REPORT_FILE).read_text("utf-8")
    text = Page(html).text
    medians = [
        significant(cell["decode_tok_s"]["median"]) for cell in artifacts[-1].metrics["cells"]
    ]
    assert "withheld" in text and f" {speed} " not in text and "tokens/s, smallest" not in html
    assert not [median for median in medians if f" {median} " in text]
    assert "decode_tok_s" not in made.metrics["headline"] and made.metrics["warnings"][
        0
    ].startswith("Decode speed is withheld")
    checks = [
        {"name": "pieces", "passed": True},
        {"name": "capacity", "max_abs_diff": None, "passed": False},
    ]
    unstated = {"fp64_max_abs_diff": None, "passed": False, "checks": checks}
    write_report(*changed(artifacts, "bench", correctness=unstated), tmp_path, ReportConfig())  # type: ignore[arg-type]
    assert (
        "check of cached decoding failed (capacity)"
        in Page((tmp_path / REPORT_FILE).read_text("utf-8")).text
    )


@pytest.mark.parametrize(
    ("ends", "name"),
    [(("min", "max"), "smallest to largest"), (("p05", "p95"), "5th to 95th percentile")],
)
def test_spread_of_speeds_is_named_as_what_it_is(
    ends: tuple[str, str], name: str, tmp_path: Path
) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    speed = {"median": 200.0, ends[0]: 190.25, ends[1]: 211.5, "repeats": 7}
    cells = [cell | {"decode_tok_s": speed} for cell in artifacts[-1].metrics["cells"]]
    write_report(*changed(artifacts, "bench", cells=cells), tmp_path, ReportConfig())  # type: ignore[arg-type]
    html = (tmp_path / REPORT_FILE).read_text("utf-8")
    assert f"200 tokens/s, {name} 190–212" in html or f"200.0 tokens/s, {name} 190" in html
    assert f"Whisker: {name} of the repeats" in Page(html).text
    other = {"smallest to largest", "5th to 95th percentile"} - {name}
    assert not [words for words in other if words in html]


@pytest.mark.parametrize(
    "stage,metrics,warning",
    [
        ("evaluate", {"gain_over_best_baseline": {"value": 0.1, "low": -0.1, "high": 0.3, "baseline": "bigram"}}, "not shown to"),  # noqa: E501
        ("evaluate", {"gain_over_best_baseline": None, "bigram_bpb": 1.7}, "not shown to be better than the bigram"),  # noqa: E501
        ("train", {"val_curve": [{"step": 0, "val_loss": 4.0}, {"step": 9, "val_loss": 4.2}]}, "Validation loss rose"),  # noqa: E501
        ("train", {"events": {"resumed": 1, "slow_rank": 2}}, "Not all of training went well: slow rank × 2;"),  # noqa: E501
        ("tokenizer", {"round_trip_frac": 0.99999}, "Only 99.9"),
        ("tokenizer", {"unknown_frac": 0.02}, "unknown to the vocabulary"),
    ],
)  # fmt: skip
def test_doubtful_results_are_warned_of(
    stage: str, metrics: dict[str, Any], warning: str, tmp_path: Path
) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    assert warning not in Page(render(artifacts, tmp_path)).text
    assert warning in Page(render(changed(artifacts, stage, **metrics), tmp_path)).text


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ({"low": 0.001, "high": 0.027}, "0.8 % below the bigram baseline (1.700)"),
        ({"low": -0.01, "high": 0.03}, "as the interval of the gain over it includes 0"),
        ({"low": None, "high": None}, "(1.700), which lies inside the interval"),
    ],
)
def test_a_baseline_inside_the_interval_is_judged_by_the_paired_gain_if_there_is_one(
    gain: dict[str, float | None], verdict: str, tmp_path: Path
) -> None:
    paired = gain | {"value": 0.014, "baseline": "bigram"}
    metrics = {"bigram_bpb": 1.7, "gain_over_best_baseline": paired}
    artifacts = changed(report_artifacts.realistic(tmp_path), "evaluate", **metrics)
    text = Page(render(artifacts, tmp_path)).text
    (finding,) = re.findall(r"1.686 bits per byte on 57 held-out documents: [^;]*;", text)
    assert verdict in finding


def test_quarantine_and_a_small_validation_set_are_warned_of(tmp_path: Path) -> None:
    text = Page(render(report_artifacts.realistic(tmp_path), tmp_path)).text
    assert "5 records" in text and "validation set has only 57 documents" in text


def test_documents_that_stay_with_earlier_runs_are_told_with_the_way_to_all(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    (i,) = (i for i, artifact in enumerate(artifacts) if artifact.stage == "dedup")
    for read_again, told in ((0, False), (79, True)):
        counters = {**artifacts[i].counters, "earlier_duplicates": 83, "read_again": read_again}
        artifacts[i] = dataclasses.replace(artifacts[i], counters=counters)
        text = Page(render(artifacts, tmp_path)).text
        assert (
            "Only new documents are in this run: 83 of" in text and "without dedup.chain" in text
        ) == told


def test_lost_documents_are_warned_of(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    artifacts[0] = dataclasses.replace(
        artifacts[0], counters={"read": 10, "kept": 8, "dropped": {"EMPTY": 1}, "quarantined": 0}
    )
    assert "ingest does not add up" in Page(render(artifacts, tmp_path)).text


def test_what_filtering_changed_is_shown_by_language(tmp_path: Path) -> None:
    text = Page(render(report_artifacts.realistic(tmp_path), tmp_path)).text
    assert "de num_ words 31.0 % de bullet_ line_ frac 2.2 % en hash_ per_ word 12.5 %" in text


@pytest.mark.parametrize("named", [{"web": {"documents": 9, "bytes": 90}}, {}])
def test_the_rest_of_many_sources_is_not_compared(named: dict[str, Any], tmp_path: Path) -> None:
    """What `(other)` sums up among the read has names of its own among the kept, and looked like 33
    lost documents."""
    rest = {OTHER: {"documents": 33, "bytes": 330}}
    artifacts = changed(report_artifacts.realistic(tmp_path), "ingest", by_source=named | rest)
    html = render(changed(artifacts, "documents", by_source=named), tmp_path)
    assert "of 33" not in html and re.search(r"\(other\) 33 330 B – – –", Page(html).text)


@pytest.mark.parametrize(
    ("rest", "note"),
    [
        ({}, "The 15 largest of 20; the table has all."),
        (
            {OTHER: {"documents": 33, "bytes": 330}},
            "The 15 largest of more than 20; the table has the 20 largest and the rest in one row.",
        ),
    ],
)
def test_the_note_under_many_sources_says_what_the_table_has(
    rest: dict[str, Any], note: str, tmp_path: Path
) -> None:
    named = {f"site{i}": {"documents": 9, "bytes": 90} for i in range(20)}
    assert (
        note
        in Page(
            render(
                changed(report_artifacts.realistic(tmp_path), "ingest", by_source=named | rest),
                tmp_path,
            )
        ).text
    )


def test_words_of_one_text_only_are_marked(tmp_path: Path) -> None:
    html = render(report_artifacts.realistic(tmp_path), tmp_path)
    marks = re.findall(r"<mark>([^<]*)</mark>", html)
    assert {"above", "three", "Contact", "Write to", "多少", "幾何"} <= set(marks)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" " * 12, "␣ ×12"),
        ("-" * 16, "-" * 16),
        ("\n ", "⏎␣"),
        ("Redistribut", "Redistribut"),
        ("", ""),
        (" a", " a"),
    ],
)
def test_white_space_in_a_token_is_seen(token: str, shown: str) -> None:
    assert legible_token(token) == shown


def test_variety_says_what_each_number_means_and_mixture_what_was_reached(tmp_path: Path) -> None:
    page = Page(render(report_artifacts.realistic(tmp_path), tmp_path))
    for words in (
        "Vendi score of documents, 95 % interval",
        "exponent of Heaps’ law",
        "HHI of sources; 1: a single one",
    ):
        assert words in page.text
    assert "the vocabulary grows faster after filtering" in page.text and "57.2 ± 1.3" in page.text
    assert "en: 3.21 MB there, 470 kB planned, 479 kB reached" in page.text.replace(NARROW, " ")
    assert "64 to 128: 220 of 300 documents" in page.text
    unmixed = changed(
        report_artifacts.realistic(tmp_path / "b"),
        "documents",
        mixture={"configured": False, "bytes": 9, "reached_bytes": 9},
    )
    assert (
        "every training document is read once in an epoch" in Page(render(unmixed, tmp_path)).text
    )
