"""Contamination: what overlaps is found and proved, what only looks alike is not, whatever the
division into parts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.hits import hits_of, list_hits
from tasks.contamination.passes import merged_spans, scrubbed_excerpt
from tasks.contamination.stage import find_contamination
from tasks.contamination.suites import Item, index_items
from tasks.corpus.documentset import read_table
from tasks.kernels.dedup.suite_ngrams import find_ngrams, text_ngrams
from tasks.kernels.text.chars import char_classes, fold_table
from tasks.runtime.artifact import Artifact, ArtifactMismatch, check_accounting
from tasks.runtime.keys import canonical_json, key_config
from tasks.runtime.parts import PartRunner, serial, thread_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.any_bytes import BYTES, assert_neighbours_do_not_matter
from tests.support.data.make_artifacts import empty_dir, write_jsonl
from tests.tasks.language.test_language import documents_artifact

WORDS = [f"w{i}" for i in range(400)]
CLEAN = " ".join(WORDS[200:260])
QUESTION = (
    "Which river that rises in the Black Forest flows through ten countries before it reaches the"
    " sea?"
)
ANSWER = (
    "The Danube, which is longer than any other river of the European Union and has many names."
)
CHINESE = "从黑林山发源并在注入大海之前流经十个国家的河流是哪一条河流呢"


def find(
    tmp_path: Path,
    parts: list[list[str]],
    items: list[dict[str, Any]],
    runner: PartRunner = serial,
    **config: Any,
) -> tuple[Artifact, list[dict[str, Any]], list[dict[str, Any]]]:
    """The artifact, its rows and its hits, for one suite of question, answer and id."""
    number = len(list(tmp_path.glob("run-*")))
    folder = empty_dir(tmp_path / f"run-{number}")
    ingest = documents_artifact(folder / "ingest", parts)
    suite = {
        "path": str(write_jsonl(folder / "suite.jsonl", items)),
        "answer": "answer",
    } | config.pop("suite", {})
    made = build(ContaminationConfig, {"suites": {"rivers": suite}, **config})
    artifact = find_contamination(ingest, empty_dir(folder / "out"), made, runner)
    check_accounting("contamination", artifact.counters)
    rows = [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]
    hits = [
        json.loads(line) for line in (artifact.path / "hits.jsonl").read_text("utf-8").splitlines()
    ]
    return artifact, rows, hits


def item(question: str, answer: str | None = None, name: str = "q1") -> dict[str, Any]:
    return {"id": name, "question": question, "answer": answer}


def test_a_document_that_holds_a_question_goes_and_its_place_is_told(tmp_path: Path) -> None:
    text = f"Größer! {CLEAN} {QUESTION} {CLEAN}"
    artifact, rows, hits = find(tmp_path, [[CLEAN, text]], [item(QUESTION)])
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
    items = [item("What is this?", name="q"), item(QUESTION, ANSWER, "q"), item(other, name="q")]
    artifact, _, hits = find(tmp_path, parts, items)
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
    assert not find(tmp_path, [[CLEAN, f"So: {form}"]], [item(QUESTION)])[1][1]["kept"]


def test_thirteen_units_in_a_row_are_needed(tmp_path: Path) -> None:
    words = QUESTION.split()
    texts = [
        " ".join(words[:13]),
        " ".join(words[:12]),
        " ".join([*words[:6], "x", *words[6:12]]),
        " ".join(words[4:17]),
    ]
    _, rows, _ = find(tmp_path, [texts], [item(QUESTION)])
    assert [row["kept"] for row in rows] == [False, True, True, False]


def test_scripts_without_spaces_are_compared_by_the_letter(tmp_path: Path) -> None:
    texts = [f"甲乙丙{CHINESE[5:18]}丁", f"甲乙丙{CHINESE[5:17]}丁", f"「{CHINESE}」"]
    _, rows, hits = find(tmp_path, [texts], [item(CHINESE)])
    assert [row["kept"] for row in rows] == [False, True, False]
    assert texts[0].encode()[slice(*hits[0]["spans"][0])].decode() == CHINESE[5:18]


def test_a_short_item_is_looked_for_as_a_whole_and_a_tiny_one_not_at_all(tmp_path: Path) -> None:
    short, tiny = "What does the fox say in the old song?", "2 + 2 ="
    texts = [
        f"{CLEAN} {short} {CLEAN}",
        f"{CLEAN} what does the fox say in the new song",
        f"{CLEAN} 2 + 2 = 4",
    ]
    artifact, rows, _ = find(tmp_path, [texts], [item(short), item(tiny, name="q2")])
    assert [row["kept"] for row in rows] == [False, True, True]
    assert artifact.metrics["suites"]["rivers"]["too_short"] == 1


def test_the_answer_counts_with_its_question_and_never_alone(tmp_path: Path) -> None:
    short = "Which river is it?"
    texts = [f"{short}\n{ANSWER}", ANSWER, f"{short} {CLEAN}", f"{QUESTION} Answer: {ANSWER}"]
    _, rows, hits = find(tmp_path, [texts], [item(short, ANSWER), item(QUESTION, ANSWER, "q2")])
    assert [row["kept"] for row in rows] == [False, False, True, False]
    by_document = {(hit["item"], int(hit["document"], 16)): hit["with_answer"] for hit in hits}
    # The answer's own words reach 13 units; an answer shorter than that needs words of its
    # question.
    assert by_document[("q1", 0)] and by_document[("q2", 3)]
    brief = "the Danube of course"
    assert [
        r["kept"]
        for r in find(tmp_path, [[brief, f"{QUESTION} {brief}"]], [item(QUESTION, brief)])[1]
    ] == [True, False]
    _, rows, hits = find(tmp_path, [[f"{short} {brief}", short, brief]], [item(short, brief)])
    assert [row["kept"] for row in rows] == [False, True, True] and hits[0]["with_answer"]


def test_answers_may_be_lists_or_numbers_of_choices(tmp_path: Path) -> None:
    short = "Which river is it?"
    items = [
        {
            "id": 1,
            "question": short,
            "answer": ["the river Rhine of all rivers", "the river Danube of all rivers"],
            "choices": None,
        },
        {
            "id": 2,
            "question": "Which lake is it?",
            "answer": 1,
            "choices": ["lake of Como in Italy", "lake of Constance it is"],
        },
    ]
    texts = [
        f"{short} The river Danube of all rivers",
        "Which lake is it? Lake of Constance it is!",
        "Which lake is it? Lake of Como in Italy",
    ]
    _, rows, hits = find(tmp_path, [texts], items, suite={"choices": "choices"})
    assert [row["kept"] for row in rows] == [False, False, True]
    assert [hit["item"] for hit in hits] == ["1", "2"]


def test_a_phrase_of_many_documents_is_none_of_the_suite_but_a_whole_item_always_is(
    tmp_path: Path,
) -> None:
    phrase = " ".join(WORDS[:13])
    question = f"{phrase} {' '.join(WORDS[50:70])}"
    texts = [f"{CLEAN} {phrase} tail {i}" for i in range(11)]
    artifact, rows, _ = find(tmp_path, [texts[:5], texts[5:]], [item(question)])
    assert all(row["kept"] for row in rows) and artifact.metrics["ignored_ngrams"] == 1
    assert not any(
        row["kept"] for row in find(tmp_path, [[CLEAN, *texts[:10]]], [item(question)])[1][1:]
    )
    copies = [CLEAN, *(f"{question} {i}" for i in range(12))]
    assert [row["kept"] for row in find(tmp_path, [copies], [item(question)])[1]] == [True] + [
        False
    ] * 12
    assert not any(
        r["kept"]
        for r in find(tmp_path, [[CLEAN, *texts]], [item(question)], max_ngram_documents=None)[1][
            1:
        ]
    )


def test_more_than_one_ngram_may_be_asked_for(tmp_path: Path) -> None:
    words = QUESTION.split()
    texts = [" ".join(words[:13]), " ".join(words[:15]), QUESTION]
    assert len(words) == 17  # five n-grams
    _, rows, hits = find(tmp_path, [texts], [item(QUESTION)], min_item_frac=0.5, action="report")
    assert [row["num_hits"] for row in rows] == [0, 1, 1] and all(row["kept"] for row in rows)
    assert [hit["item_frac"] for hit in hits] == [0.6, 1.0]


def test_report_lists_and_drops_nothing(tmp_path: Path) -> None:
    artifact, rows, hits = find(tmp_path, [[QUESTION]], [item(QUESTION)], action="report")
    assert (
        rows[0]["kept"]
        and rows[0]["reason"] is None
        and rows[0]["num_hits"] == 1
        and len(hits) == 1
    )
    assert artifact.counters["dropped"] == {} and artifact.metrics["documents"] == 1
    with pytest.raises(StageFailure, match="dropped all 1 documents .CONTAMINATED.*action=report"):
        find(tmp_path, [[QUESTION]], [item(QUESTION)])


def test_without_suites_everything_is_kept(tmp_path: Path) -> None:
    ingest = documents_artifact(tmp_path / "ingest", [[QUESTION, ""], [CLEAN]])
    artifact = find_contamination(ingest, empty_dir(tmp_path / "out"), ContaminationConfig())
    rows = [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]
    assert [(row["kept"], row["reason"], row["num_hits"]) for row in rows] == [(True, None, 0)] * 3
    assert (artifact.path / "hits.jsonl").read_text() == "" and artifact.metrics["suites"] == {}


UNITS = st.lists(st.sampled_from(["a", "b", "B", "c", "天", "地", "d'e"]), max_size=14)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(UNITS, min_size=1, max_size=5),
    questions=st.lists(UNITS, min_size=1, max_size=4),
    length=st.integers(2, 5),
)
def test_hits_are_those_of_comparing_every_ngram(
    documents, questions, length, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def grams(units: list[str]) -> set[tuple[str, ...]]:
        folded = [unit.lower() for unit in units]
        size = min(length, len(folded))
        return (
            {tuple(folded[i : i + size]) for i in range(len(folded) - size + 1)}
            if size >= 2
            else set()
        )

    def contains(units: list[str], gram: tuple[str, ...]) -> bool:
        folded = tuple(unit.lower() for unit in units)
        return any(folded[i : i + len(gram)] == gram for i in range(len(folded) - len(gram) + 1))

    expected = [
        sum(any(contains(units, gram) for gram in grams(question)) for question in questions)
        for units in documents
    ]
    texts, items = (
        [" ".join(units) for units in documents],
        [item(" - ".join(q), name=str(i)) for i, q in enumerate(questions)],
    )
    config = {
        "ngram_units": length,
        "min_units": 2,
        "max_ngram_documents": None,
        "action": "report",
    }
    _, rows, hits = find(tmp_path_factory.mktemp("grams"), [texts], items, **config)
    assert [row["num_hits"] for row in rows] == expected and len(hits) == sum(expected)


def test_equal_hashes_of_other_texts_are_no_hits() -> None:
    from tasks.corpus.documentset import text_buffers  # noqa: F401 - the same kernels as the stage
    from tasks.kernels.dedup.suite_ngrams import prove_ngrams
    from tasks.kernels.text.chars import char_classes, fold_table

    index = index_items([Item("s", "1", QUESTION, ())], 13, 8)
    document = np.frombuffer(QUESTION.replace("flows", "runs").encode(), np.uint8)
    spans, places = np.zeros(2 * len(index.hashes), np.int64), np.arange(len(index.hashes))
    firsts = np.searchsorted(np.sort(index.text_starts), index.text_starts)
    texts = (index.text, index.text_starts, index.text_stops, index.lengths)
    prove_ngrams(
        document, 0, len(document), firsts, places, *texts, char_classes(), fold_table(), spans
    )
    # `flows` is the tenth word: every n-gram that does not hold it would be proved, and all hold
    # it.
    assert (spans == -1).all()


def test_the_result_is_the_same_for_other_parts_and_workers(tmp_path: Path) -> None:
    rng = random.Random(0)
    items = [
        item(
            " ".join(rng.choices(WORDS, k=rng.randint(9, 40))),
            " ".join(rng.choices(WORDS, k=5)),
            str(i),
        )
        for i in range(30)
    ]
    texts = [" ".join(rng.choices(WORDS, k=60)) for _ in range(40)]
    texts = [
        f"{text} {items[i % 30]['question']} {items[i % 30]['answer']}" if i % 3 == 0 else text
        for i, text in enumerate(texts)
    ]
    runs = [
        find(tmp_path, [texts], items),
        find(tmp_path, [texts[:1], texts[1:30], texts[30:]], items),
    ]
    runs.append(
        find(
            tmp_path,
            [texts[:1], texts[1:30], texts[30:]],
            items,
            PartRunner(None, thread_executor(3)),
        )
    )
    assert runs[0][1:] == runs[1][1:] == runs[2][1:] and len(runs[0][2]) == 14
    assert runs[0][0].metrics == runs[1][0].metrics == runs[2][0].metrics


def test_excerpts_are_scrubbed_and_metrics_hold_no_other_text(tmp_path: Path) -> None:
    text = f"{CLEAN} write to somebody@example.org or {QUESTION} or to other@example.net {CLEAN}"
    artifact, _, _ = find(tmp_path, [[CLEAN, text]], [item(QUESTION)])
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ngram_units": 1}, "ngram_units .1."),
        ({"min_units": 14}, "min_units .14. must be from 1 to ngram_units .13."),
        ({"max_ngram_documents": 0}, "max_ngram_documents .0."),
        ({"min_item_frac": 2}, "min_item_frac .2"),
        ({"action": "delete"}, "not a choice"),
        ({"suites": {"a": {"path": "x", "choices": "c"}}}, "needs answer"),
        ({"suites": {"a": {}}}, "suites.a.path has no value"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(ContaminationConfig, values)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no item"),
        (
            [{"prompt": "x"}],
            r"suites.rivers.question \(question\) is not text in record 1 .*its columns are prompt",
        ),
        ([{"question": 5}], "is not text in record 1"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(
    lines: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        find(tmp_path, [[CLEAN]], lines)
    assert "\n" not in str(refused.value)


def test_the_place_of_a_suite_is_not_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    config = build(ContaminationConfig, {"suites": {"a": {"path": str(tmp_path / "a.jsonl")}}})
    assert str(tmp_path) not in canonical_json(key_config(config))
    assert config.input_files() == {"a": tmp_path / "a.jsonl"}


@settings(max_examples=60, deadline=None)
@given(BYTES, BYTES)
def test_ngrams_of_any_bytes_are_found_whatever_stands_beside_them(
    data: bytes, beside: bytes
) -> None:
    tables = char_classes(), fold_table()
    hashes, length, starts, stops = text_ngrams(np.frombuffer(data, np.uint8), 2, 2, *tables)
    assert all(0 <= start < stop <= len(data) for start, stop in zip(starts, stops, strict=True))
    known = np.unique(hashes)
    buckets = np.searchsorted(known >> np.uint64(60), np.arange(17))

    def find(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        lengths = np.array([length], np.int64)
        found = find_ngrams(buf, begins, lengths, known, buckets, np.uint64(60), *tables).reshape(
            -1, 3
        )
        return (found[found[:, 0] == 1],)

    if len(known):
        assert_neighbours_do_not_matter(data, beside, find)
