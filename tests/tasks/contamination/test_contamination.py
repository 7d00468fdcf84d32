"""Documents that overlap a suite are found with their places; what only looks alike is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tasks.contamination.config import ContaminationConfig
from tasks.contamination.hits import hits_of, list_hits
from tasks.contamination.passes import merged_spans, scrubbed_excerpt
from tasks.contamination.stage import find_contamination
from tasks.contamination.suites import SuiteConfig
from tasks.corpus.documentset import read_table
from tasks.runtime.artifact import Artifact, ArtifactMismatch
from tasks.runtime.stage import StageFailure
from tests.support.data.contaminated import ANSWER, CLEAN, QUESTION, find_in_parts, suite_item
from tests.support.data.language_texts import documents_artifact
from tests.support.data.make_artifacts import empty_dir, write_jsonl

CHINESE = "从黑林山发源并在注入大海之前流经十个国家的河流是哪一条河流呢"


def test_a_document_that_holds_a_question_goes_and_its_place_is_told(tmp_path: Path) -> None:
    text = f"Größer! {CLEAN} {QUESTION} {CLEAN}"
    artifact, rows, hits = find_in_parts(tmp_path, [[CLEAN, text]], [suite_item(QUESTION)])
    assert [row["kept"] for row in rows] == [True, False]
    assert [(row["reason"], row["num_hits"]) for row in rows] == [(None, 0), ("CONTAMINATED", 1)]
    [hit] = hits
    [[start, stop]] = hit.pop("spans")
    assert text.encode()[start:stop].decode() == QUESTION.rstrip("?")
    known = {
        "suite": "rivers",
        "item": "q1",
        "number": 1,
        "document": f"{1:032x}",
        "item_frac": 1.0,
        "with_answer": False,
    }
    assert hit == known
    assert artifact.counters["dropped"] == {"CONTAMINATED": 1}
    assert artifact.metrics["suites"] == {
        "rivers": {"items": 1, "too_short": 0, "hit_items": 1, "hit_documents": 1}
    }


def test_every_hit_is_listed_with_the_text_of_the_item_and_of_the_document(tmp_path: Path) -> None:
    """Items of one name are told apart, documents in any part are found, and the suite's file is
    not needed any more."""
    other = (
        "How many rivers of the world are longer than the one that flows through Vienna and"
        " Budapest?"
    )
    shouted, both = f"{CLEAN} {QUESTION.upper()} {CLEAN}", f"{other} {CLEAN} {QUESTION}"
    parts = [[CLEAN], [CLEAN, shouted], [CLEAN], [both]]
    items = [
        suite_item("What is this?", name="q"),
        suite_item(QUESTION, ANSWER, "q"),
        suite_item(other, name="q"),
    ]
    artifact, _, hits = find_in_parts(tmp_path, parts, items)
    (tmp_path / "run-0" / "suite.jsonl").unlink()
    ingest = Artifact(tmp_path / "run-0" / "ingest", "ingest")
    listed = list(list_hits(ingest, artifact))
    assert [{name: hit[name] for name in hits[0]} for hit in listed] == hits
    asked = QUESTION.rstrip("?")
    assert [(hit["number"], hit["question"], hit["answers"], hit["texts"]) for hit in listed] == [
        (2, QUESTION, [ANSWER], [asked.upper()]),
        (2, QUESTION, [ANSWER], [asked]),
        (3, other, [], [other.rstrip("?")]),
    ]
    document = listed[-1]["document"]
    assert hits_of(artifact, document, both) == [
        {k: v for k, v in h.items() if k != "source_id"} for h in listed[1:]
    ]
    with pytest.raises(ArtifactMismatch, match="which ingest does not have"):
        list(list_hits(documents_artifact(tmp_path / "others", [[CLEAN]]), artifact))


@pytest.mark.parametrize(
    "form",
    [
        QUESTION.upper(),
        QUESTION.replace(" ", "\n\t"),
        QUESTION.replace(" ", " — ").replace("river", "“river”"),
        f"*{QUESTION.replace(' ', '_ ')}*".replace("_ ", " "),
    ],
)
def test_case_punctuation_and_white_space_do_not_matter(form: str, tmp_path: Path) -> None:
    assert not find_in_parts(tmp_path, [[CLEAN, f"So: {form}"]], [suite_item(QUESTION)])[1][1][
        "kept"
    ]


def test_thirteen_units_in_a_row_are_needed(tmp_path: Path) -> None:
    words = QUESTION.split()
    texts = [
        " ".join(words[:13]),
        " ".join(words[:12]),
        " ".join([*words[:6], "x", *words[6:12]]),
        " ".join(words[4:17]),
    ]
    _, rows, _ = find_in_parts(tmp_path, [texts], [suite_item(QUESTION)])
    assert [row["kept"] for row in rows] == [False, True, True, False]


def test_scripts_without_spaces_are_compared_by_the_letter(tmp_path: Path) -> None:
    texts = [f"甲乙丙{CHINESE[5:18]}丁", f"甲乙丙{CHINESE[5:17]}丁", f"「{CHINESE}」"]
    _, rows, hits = find_in_parts(tmp_path, [texts], [suite_item(CHINESE)])
    assert [row["kept"] for row in rows] == [False, True, False]
    assert texts[0].encode()[slice(*hits[0]["spans"][0])].decode() == CHINESE[5:18]


def test_more_than_one_ngram_may_be_asked_for(tmp_path: Path) -> None:
    words = QUESTION.split()
    texts = [" ".join(words[:13]), " ".join(words[:15]), QUESTION]
    assert len(words) == 17  # five n-grams
    _, rows, hits = find_in_parts(
        tmp_path, [texts], [suite_item(QUESTION)], min_item_frac=0.5, action="report"
    )
    assert [row["num_hits"] for row in rows] == [0, 1, 1] and all(row["kept"] for row in rows)
    assert [hit["item_frac"] for hit in hits] == [0.6, 1.0]


def test_report_lists_and_drops_nothing(tmp_path: Path) -> None:
    artifact, rows, hits = find_in_parts(
        tmp_path, [[QUESTION]], [suite_item(QUESTION)], action="report"
    )
    assert (
        rows[0]["kept"]
        and rows[0]["reason"] is None
        and rows[0]["num_hits"] == 1
        and len(hits) == 1
    )
    assert artifact.counters["dropped"] == {} and artifact.metrics["documents"] == 1
    with pytest.raises(StageFailure, match="dropped all 1 documents .CONTAMINATED.*action=report"):
        find_in_parts(tmp_path, [[QUESTION]], [suite_item(QUESTION)])


def test_without_suites_everything_is_kept(tmp_path: Path) -> None:
    ingest = documents_artifact(tmp_path / "ingest", [[QUESTION, ""], [CLEAN]])
    artifact = find_contamination(ingest, empty_dir(tmp_path / "out"), ContaminationConfig())
    rows = [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]
    assert [(row["kept"], row["reason"], row["num_hits"]) for row in rows] == [(True, None, 0)] * 3
    assert (artifact.path / "hits.jsonl").read_text() == "" and artifact.metrics["suites"] == {}


def test_a_search_that_was_stopped_late_keeps_its_finished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, out = documents_artifact(tmp_path / "ingest", [[QUESTION]]), tmp_path / "out"
    suite = SuiteConfig(write_jsonl(tmp_path / "suite.jsonl", [{"question": QUESTION}]))
    config = ContaminationConfig({"rivers": suite}, action="report")
    find_contamination(ingest, empty_dir(out), config)
    shutil.rmtree(out)
    monkeypatch.setattr("tasks.contamination.stage.find_part", None)
    assert find_contamination(ingest, empty_dir(out), config).metrics["documents"] == 1


def test_excerpts_are_scrubbed_and_metrics_hold_no_other_text(tmp_path: Path) -> None:
    text = f"{CLEAN} write to somebody@example.org or {QUESTION} or to other@example.net {CLEAN}"
    artifact, _, _ = find_in_parts(tmp_path, [[CLEAN, text]], [suite_item(QUESTION)])
    [example] = artifact.metrics["examples"]
    assert "<EMAIL>" in example["excerpt"] and "Black Forest" in example["excerpt"]
    assert "@" not in json.dumps(artifact.metrics)
    whole = b"x somebody@example.org y"
    for start in range(len(whole)):
        assert "some" not in scrubbed_excerpt(whole * 40, start + 480, start + 481).replace(
            "somebody@", ""
        )


def test_spans_that_overlap_or_touch_are_one() -> None:
    assert merged_spans(np.array([0, 3, 10, 12, 20]), np.array([5, 10, 11, 18, 25])) == [
        [0, 11],
        [12, 18],
        [20, 25],
    ]
