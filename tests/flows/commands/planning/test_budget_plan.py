"""A plan with a source compares its tokens with those that earlier runs found in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.compose import compose
from flows.records import new_record, write_record
from flows.run import decide
from tasks.runtime.artifact import Artifact

TRAINING = ["hardware=h100", "train.num_steps=1000"]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Overrides under which an earlier run has found 100,000 tokens."""
    given = ["run=demo", f"store={tmp_path / 'store'}", f"state={tmp_path / 'state'}"]
    store, plan = decide(compose(given), "shards")
    node = plan["shards"].node
    with store.hold(node, print) as out:
        (out / "train-00000.arrow").touch()
        made = Artifact(out, "shards", {}, {"splits": {"train": {"tokens": 100_000}}})
        store.publish(node, made, 0, 0, "2026-01-01")
    write_record(store, new_record("refresh", plan, given))
    return given


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    assert main(["plan", *TRAINING, *words]) == 0
    shown = capsys.readouterr().out
    return shown, json.loads(shown.splitlines()[-1])["tokens"]


def test_tokens_are_those_of_the_corpus_that_a_run_has_read(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown, tokens = planned(capsys, *words)
    assert tokens["corpus"] == {"num_tokens": 100_000, "source": "these settings"}
    assert tokens["epochs"] == pytest.approx(10.24)
    assert 7.9e5 < tokens["effective_tokens"] < 8.0e5
    worth = f"10.24 epochs, worth {tokens['effective_tokens']:,.0f} new tokens"
    assert worth in shown and "do harm" not in shown
    shown, tokens = planned(capsys, *words, "tokenizer.vocab_size=777", "train.num_steps=2000")
    assert tokens["corpus"]["source"].endswith("of other settings")
    assert "more than 16 may do harm" in shown


def test_a_plan_says_why_it_knows_no_tokens(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = f"store={tmp_path / 'other'}"
    cases = {
        "has no run": [*words, elsewhere],
        "no earlier run has tokens of this source": [*words, "source.name=another"],
        "nowhere.jsonl": [*words, "source.paths=[nowhere.jsonl]"],
    }
    for said, given in cases.items():
        shown, tokens = planned(capsys, *given)
        assert tokens["corpus"] is None and tokens["epochs"] is None
        assert "tokens of the corpus are not known" in shown and said in shown
    shown, _ = planned(capsys, elsewhere)
    assert "of the corpus" not in shown


def test_answers_ask_for_a_smaller_model_and_more_tokens(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown, tokens = planned(capsys, *words, "inference_tokens=1e9")
    assert [each["law"] for each in tokens["over_trained"]] == ["besiroglu", "sardana"]
    assert shown.count("as good after 1e+09 tokens of answers") == 2
    for wrong in ("inference_tokens=many", "inference_tokens=-1", "inference_tokens=inf"):
        assert main(["plan", *TRAINING, wrong]) == 2
        assert "inference_tokens" in capsys.readouterr().err
