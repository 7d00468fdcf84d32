"""explain and replay: what the commands say of a run on record, in text and in JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows import cli
from flows.commands.answers import describe_dedup
from flows.records import RunRecord, write_record
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.stage import find_contamination
from tasks.contamination.suites import SuiteConfig
from tasks.corpus.documentset import ID, write_table
from tasks.documents.config import DocumentsConfig
from tasks.documents.mixture import MixtureConfig
from tasks.documents.stage import write_documents
from tasks.explain.explain import find_documents, find_records
from tasks.quality.c4_lines import LineCutsConfig
from tasks.quality.config import QualityConfig
from tasks.quality.limits import Limit, RuleOverlay
from tasks.quality.stage import filter_quality
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import key_config
from tasks.runtime.store import Node, Store, now
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import (
    empty_dir,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)

TEXTS = {
    "good": "The people of the town have a river to be with, and that is "
    + " ".join(f"word{i}" for i in range(60))
    + ".",
    "copy": "The people of the town have a river to be with, and that was "
    + " ".join(f"word{i}" for i in range(60))
    + ".",
    "short": "Too few words of\x1b[31m text here.",
    "emptied": "All of this that the people have to be with is cut "
    + " ".join(f"cut{i}" for i in range(50))
    + ".",
    "unmixed": "Das hier ist the text of another language that we have "
    + " ".join(f"wort{i}" for i in range(99))
    + ".",
    "again": "The people of the town had all that is to be read with a run "
    + " ".join(f"again{i}" for i in range(50))
    + ".",
    "headed": "A heading\n\nThe people of the town have all that is to be read "
    + " ".join(f"fin{i}" for i in range(60))
    + ".",
    "unended": "The line of this has no end that C4 is to take for one "
    + " ".join(f"bout{i}" for i in range(60))
    + "”",
    "other": "And one more document that is to be read with the rest "
    + " ".join(f"more{i}" for i in range(45))
    + ".",
}
RULES = QualityConfig(
    limits={"num_lines": Limit(max_by_language={"de": 0.5}, drops=False)},
    by_language={
        "zh": RuleOverlay(limits={"num_lines": Limit(max=9.0, max_by_language={"en": 0.25})})
    },
    by_kind={"mail": RuleOverlay(limits={"num_words": Limit(max=9.0, drops=False)})},
    line_cuts=LineCutsConfig("c4_paper", ("fr",)),
)
LISTS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())]))
SPANS = pa.list_(
    pa.struct(
        [
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("type", pa.string()),
            ("replacement", pa.string()),
        ]
    )
)
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A store with one run on record; the id of each document by its source id."""
    folder = tmp_path_factory.mktemp("past")
    records = [
        {"id": name, "text": text, "url": f"https://x.org/{name}"} for name, text in TEXTS.items()
    ]
    records[list(TEXTS).index("other")]["kind"] = "mail"
    records += [{"id": "bla\x1bnk", "text": " "}, {"id": "good", "text": None}]
    ingested = ingest_files(folder, "ingest", [write_jsonl(folder / "in.jsonl", records)])
    names, ids = list(TEXTS), {row["source_id"]: row["id"] for row in read_documents(ingested)}
    others = {"unmixed": "de", "headed": "fr", "unended": "fr"}
    kinds = [others.get(name, "en") for name in names]
    language = make_sidecar(
        ingested,
        "language",
        folder / "language",
        [("language", pa.string(), kinds), ("score", pa.float32(), [0.875] * len(names))],
    )
    scores = score_documents(ingested, language, empty_dir(folder / "scores"), ScoresConfig())
    quality = filter_quality(ingested, language, scores, empty_dir(folder / "quality"), RULES)
    survivor = {"copy": "good", "again": "earlier"}
    ids["earlier"] = b"earlier document"
    reasons = {"copy": "NEAR_DUPLICATE", "again": "NEAR_DUPLICATE"}
    cuts = [
        [{"start": 0, "end": len(TEXTS[n]), "reason": "REPEATED_LINE"}] if n == "emptied" else []
        for n in names
    ]
    dedup = make_sidecar(
        ingested,
        "dedup",
        folder / "dedup",
        [
            ("cluster_id", ID, [None if n == "short" else ids[survivor.get(n, n)] for n in names]),
            ("family_id", ID, [None if n == "short" else ids[survivor.get(n, n)] for n in names]),
            (
                "cluster_size",
                pa.int32(),
                [None if n == "short" else 2 if n in ("good", "copy") else 1 for n in names],
            ),
            ("kept", pa.bool_(), [n != "short" and n not in reasons for n in names]),
            ("reason", pa.string(), [reasons.get(n) for n in names]),
            ("cuts", LISTS, cuts),
        ],
    )
    pair = {
        "a": pa.array([ids["good"]], ID),
        "b": pa.array([ids["copy"]], ID),
        "jaccard": [0.9375],
        "removed": [True],
    }
    write_table(pa.table(pair), dedup.path / "pairs.parquet")
    pair |= {
        "a": pa.array([ids["earlier"]], ID),
        "b": pa.array([ids["again"]], ID),
        "jaccard": [0.90625],
    }
    write_table(pa.table(pair), dedup.path / "earlier_pairs.parquet")
    spans = [
        [{"start": 4, "end": 10, "type": "NAME", "replacement": "<NAME>"}] if n == "good" else []
        for n in names
    ]
    pii = make_sidecar(
        ingested,
        "pii",
        folder / "pii",
        [("spans", SPANS, spans), ("kept", pa.bool_(), [True] * len(names))],
    )
    asks = {
        "id": "q1",
        "question": "Do people\x1b have a river to be with, and that is not all?",
        "answer": "Yes",
    }
    suite = SuiteConfig(write_jsonl(folder / "quiz.jsonl", [asks]), answer="answer")
    looking = ContaminationConfig(suites={"quiz": suite}, action="report", ngram_units=8)
    contamination = find_contamination(ingested, empty_dir(folder / "contamination"), looking)
    made = {
        "ingest": ingested,
        "language": language,
        "quality": quality,
        "dedup": dedup,
        "pii": pii,
        "contamination": contamination,
    }
    config = DocumentsConfig(mixture=MixtureConfig(language_frac={"de": 0.0}))
    made["documents"] = write_documents(*made.values(), empty_dir(folder / "documents"), config)
    made["scores"] = scores
    store = Store(folder / "store")
    for stage, artifact in made.items():
        settings = key_config(RULES) if stage == "quality" else {}
        node = Node(
            stage,
            f"{stage}key",
            f"{stage}parts",
            {},
            json.loads(json.dumps(settings, default=dataclasses.asdict)),
        )
        store.publish(node, publishable(artifact, store.work_dir(stage, node.key)), 1.0, 1.0, now())
    keys = {stage: f"{stage}key" for stage in made}
    write_record(
        store,
        RunRecord(
            "20260101-000000-abcdef",
            "refresh",
            "shards",
            ["quality.limits={}"],
            now(),
            keys,
            {},
            "completed",
        ),
    )
    return {name: one.hex() for name, one in ids.items()} | {"store": str(store.root)}


def publishable(artifact: Artifact, work: Path) -> Artifact:
    work.mkdir(parents=True)
    return dataclasses.replace(artifact, path=artifact.path.rename(work / "out"))


@pytest.fixture
def ask(ids: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        code = cli.main([*arguments, f"store={ids['store']}"])
        out, err = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines()] if "--json" in arguments else []
        return {
            "code": code,
            "out": out,
            "err": err,
            "lines": lines,
            "json": lines[0] if lines else None,
        }

    return run


def test_a_dropped_document_is_explained_by_rule_value_and_threshold(
    ask: Ask, ids: dict[str, str]
) -> None:
    out = ask("explain", "short")["out"]
    assert (
        "dropped by quality: TOO_FEW_WORDS" in out
        and "num_words 7, wanted ≥ 50" in out
        and ids["short"] in out
    )
    assert "\x1b" not in out and "text begins" in out
    found = ask("explain", ids["short"].upper(), "--json")["json"]
    assert found["now"] == {"kept": False, "dropped_by": "quality", "reason": "TOO_FEW_WORDS"}
    rule = next(rule for rule in found["quality"]["broken"] if rule["rule"] == "TOO_FEW_WORDS")
    assert (rule["value"], rule["threshold"], rule["drops"]) == (7, 50, True)
    assert found["dedup"]["cluster_size"] is None and found["excerpt"] == TEXTS["short"]


def test_lines_that_quality_cut_are_explained_and_what_they_leave_nothing_of(ask: Ask) -> None:
    out, found = ask("explain", "headed")["out"], ask("explain", "headed", "--json")["json"]
    assert "cut C4_NO_END_MARK at bytes 0–11" in out
    assert found["now"]["kept"] and found["now"]["bytes"] == len(TEXTS["headed"]) - 11
    found = ask("explain", "unended", "--json")["json"]
    assert found["quality"]["kept"] and found["now"] == {
        "kept": False,
        "dropped_by": "documents",
        "reason": "EMPTIED",
    }
    assert ask("explain", "other", "--json")["json"]["quality"]["cuts"] == [], "of another language"


def test_a_document_is_explained_by_the_rules_of_its_kind(ask: Ask) -> None:
    out, found = (
        ask("explain", "other")["out"],
        ask("explain", "other", "--json")["json"]["quality"],
    )
    assert (
        "num_words 57, wanted ≤ 9   (recorded only)" in out
        and "by rules of the run + by_kind.mail" in out
    )
    assert (found["kind"], found["overlays"]) == ("mail", ["by_kind.mail"])
    assert "by rules of the run\n" in ask("explain", "good")["out"]


def test_a_duplicate_is_explained_by_its_survivor_and_their_likeness(
    ask: Ask, ids: dict[str, str]
) -> None:
    out = ask("explain", "copy", "run=20260101-000000-abcdef")["out"]
    assert "dropped by dedup: NEAR_DUPLICATE" in out and f"survivor {ids['good']}" in out
    assert f"{ids['good']}   Jaccard 0.938   removed for it" in out
    assert "removed for this" in ask("explain", "good")["out"]


def test_a_duplicate_of_an_earlier_run_is_explained_by_its_pair(ask: Ask) -> None:
    out, earlier = ask("explain", "again")["out"], b"earlier document".hex()
    assert (
        f"survivor {earlier}\n" in out
        and f"{earlier}   Jaccard 0.906   removed for it, of an earlier run" in out
    )
    assert "equal text" not in out
    assert "equal text" in _describe("EXACT_DUPLICATE") and "same URL" in _describe("SAME_URL")


def _describe(reason: str) -> str:
    dedup = {
        "cluster_size": 2,
        "kept": False,
        "reason": reason,
        "family": "f",
        "survivor": "s",
        "evidence": [],
        "cuts": [],
    }
    return "\n".join(describe_dedup(dedup, "d"))


def test_a_record_that_became_no_document_is_explained_by_its_reason_and_place(ask: Ask) -> None:
    out = ask("explain", "bla\x1bnk")["out"]
    assert (
        "dropped by ingest: EMPTY" in out
        and f"in.jsonl   line {len(TEXTS) + 1}   byte " in out
        and "\x1b" not in out
    )
    found = ask("explain", "bla\x1bnk", "--json")["json"]
    assert found["record"]["reason"] == "EMPTY" and found["other_matches"] == 0
    assert ask("explain", found["record"]["id"], "--json")["json"] == found
    assert ask("explain", "good", "--json")["json"]["other_matches"] == 1, (
        "a document and a record in quarantine"
    )
    assert "found 1 more with this source_id" in ask("explain", "good")["out"]


def test_an_evaluation_item_is_shown_with_its_text_and_the_documents(
    ask: Ask, ids: dict[str, str]
) -> None:
    out = ask("explain", "good")["out"]
    assert (
        "quiz, item q1 (number 1):" in out
        and "asks      Do people\\u001b have a river" in out
        and "answer    Yes" in out
    )
    assert "has       have a river to be with, and that is   (bytes " in out
    [hit] = ask("explain", "good", "--json")["json"]["contamination"]["hits"]
    assert TEXTS["good"].encode()[slice(*hit["spans"][0])].decode() == hit["texts"][0]


def test_hits_lists_all_items_in_text_and_in_json_lines(ask: Ask, ids: dict[str, str]) -> None:
    out = ask("hits")["out"]
    assert out.endswith("2 hits of evaluation items in documents of run 20260101-000000-abcdef\n")
    assert f"document  {ids['good']}   source_id good" in out and "\x1b" not in out
    lines = ask("hits", "--json", "run=20260101-000000-abcdef")["lines"]
    assert [line["source_id"] for line in lines] == ["good", "copy"] and all(
        "Do people" in line["question"] for line in lines
    )


def test_a_threshold_of_a_language_is_the_one_that_is_shown(ask: Ask) -> None:
    found = ask("explain", "unmixed", "--json")["json"]["quality"]["broken"]
    rule = next(rule for rule in found if rule["rule"] == "NUM_LINES_OVER_MAX")
    assert (rule["value"], rule["threshold"]) == (1, 0.5)
    assert "num_lines 1, wanted ≤ 0.5   (recorded only)" in ask("explain", "unmixed")["out"]


def test_a_kept_document_is_explained_by_its_split_repeats_and_spans(ask: Ask) -> None:
    found = ask("explain", "good", "--json")["json"]
    assert (
        found["now"]["kept"]
        and found["now"]["split"] in ("train", "validation")
        and found["now"]["repeats"] == 1
    )
    assert (
        found["pii"]["spans"] == [{"start": 4, "end": 10, "type": "NAME"}]
        and found["language"]["score"] == 0.875
    )
    out = ask("explain", "good")["out"]
    assert (
        "NAME at bytes 4–10" in out
        and "read 1 time per epoch" in out
        and all(len(line) < 400 for line in out.splitlines())
    )


def test_what_the_documents_stage_dropped_says_why(ask: Ask) -> None:
    assert ask("explain", "emptied", "--json")["json"]["now"] == {
        "kept": False,
        "dropped_by": "documents",
        "reason": "EMPTIED",
    }
    assert ask("explain", "unmixed", "--json")["json"]["now"]["reason"] == "MIXTURE"


def test_replay_lays_new_rules_over_those_of_the_run(ask: Ask, ids: dict[str, str]) -> None:
    found = ask(
        "replay",
        "quality.thresholds.TOO_FEW_WORDS=5",
        "quality.thresholds.TOO_FEW_STOP_WORDS=0",
        "--json",
    )["json"]
    assert (
        found["total"]["kept_before"],
        found["total"]["kept_after"],
        found["total"]["newly_kept"],
    ) == (8, 9, 1)
    [back] = found["newly_kept"]
    assert back == {
        "id": ids["short"],
        "source": "made",
        "source_id": "short",
        "language": "en",
        "rule": "TOO_FEW_WORDS",
        "feature": "num_words",
        "value": 7,
        "side": "min",
        "threshold": 50,
    }
    out = ask("replay", "quality.thresholds.TOO_FEW_WORDS=61")["out"]
    assert "documents would go" in out and "TOO_FEW_WORDS" in out and "would come back" in out
    assert "wanted ≥ 61" in out
    for text in TEXTS.values():
        assert text[:20] not in out, "a replay shows no text"


def test_a_document_is_found_by_whatever_its_source_calls_it(tmp_path: Path) -> None:
    names = ["0123456789abcdef" * 2, "https://x.org/?page=2", "-", "store=1", "a b"]
    ingested = ingest_files(
        tmp_path,
        "ingest",
        [write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": "t"} for n in names])],
    )
    own = [row["id"].hex() for row in read_documents(ingested)]
    for given in (names, own, [name.upper() for name in own]):
        assert [[p.row for p in find_documents(ingested, name)] for name in given] == [
            [i] for i in range(len(names))
        ]


def test_files_without_a_row_hold_nothing_that_is_asked_for(tmp_path: Path) -> None:
    nothing_dropped = [write_jsonl(tmp_path / "a.jsonl", [{"id": "x", "text": "t"}])]
    assert find_records(ingest_files(tmp_path, "whole", nothing_dropped), "x") == []
    no_document_in_one = [
        *nothing_dropped,
        write_jsonl(tmp_path / "b.jsonl", [{"id": "y", "text": ""}]),
    ]
    partly = ingest_files(tmp_path, "partly", no_document_in_one)
    assert len(find_documents(partly, "x")) == 1 and len(find_records(partly, "y")) == 1


def test_a_page_of_a_web_archive_is_found_by_its_url(tmp_path: Path) -> None:
    pages = [{"id": f"urn:uuid:{i}", "url": f"https://x.org/{i}", "text": "t"} for i in range(2)]
    pages.append({"id": "https://x.org/0", "url": None, "text": "t"})
    ingested = ingest_files(tmp_path, "ingest", [write_jsonl(tmp_path / "a.jsonl", pages)])
    assert [p.row for p in find_documents(ingested, "https://x.org/1")] == [1]
    assert [p.row for p in find_documents(ingested, "https://x.org/0")] == [2], (
        "an id that a source gives goes first"
    )


@pytest.mark.parametrize(
    ("arguments", "identifier"),
    [
        (["https://x.org/?page=2"], "https://x.org/?page=2"),
        (["--", "-x"], "-x"),
        (["--", "store=1"], "store=1"),
        (["~"], "~"),
    ],
)
def test_an_id_may_have_any_sign_in_it(
    arguments: list[str], identifier: str, ids: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", f"store={ids['store']}", *arguments]) == 2
    assert f"{identifier} is not found in run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["explain"], "explain needs one id"),
        (["explain", "nobody"], "nobody is not found in run"),
        (
            ["explain", "good", "run=20260101-000000-zzzzzz"],
            "has no record of run 20260101-000000-zzzzzz",
        ),
        (["explain", "good", "--yaml"], "--yaml is not an option"),
        (["explain", "good", "run=20260101"], "run=20260101 is not a run"),
        (["explain", "good", "copy"], "explain needs one id"),
        (["hits", "good"], "hits takes no good"),
        (["replay"], "replay needs settings of quality"),
        (["replay", "quality.thresholds.TOO_FEW=3"], "TOO_FEW, which is not a rule"),
    ],
)
def test_questions_that_cannot_be_answered_end_in_one_line(
    ask: Ask, arguments: list[str], complaint: str
) -> None:
    answer = ask(*arguments)
    assert answer["code"] == 2 and complaint in answer["err"] and answer["err"].count("\n") == 1


def test_a_run_of_some_stages_is_told_which_a_question_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    write_record(
        store,
        RunRecord(
            "20260101-000000-abcdef", "run", "ingest", [], now(), {"ingest": "k"}, {}, "completed"
        ),
    )
    assert cli.main(["explain", "good", f"store={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert (
        "has no language, quality, dedup, pii, documents, which this command needs" in said
        and "textmill refresh" in said
    )
