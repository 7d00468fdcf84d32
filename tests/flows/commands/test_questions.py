"""explain and replay: what the commands say of a run on record, in text and in JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import cli
from flows.commands.answers import describe_dedup
from flows.records import RunRecord, write_record
from tasks.runtime.store import Store, now
from tests.support.data.run_on_record import TEXTS, Ask


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
