"""The evaluation harness gives the same figures on the same items, where it is installed
(`textmill[lm-eval]`): one plain pass per request, none of our scoring."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_core.huggingface.export import load_model
from llm_core.infer.bits_per_byte import score_documents
from llm_core.model.transformer import Transformer
from tasks.evaluation.config import (
    EvaluateConfig,
    EvaluateStageConfig,
    GenerateConfig,
    SuitesConfig,
)
from tasks.evaluation.harness import (
    NAMES,
    Pair,
    bits_per_byte,
    compare_suite,
    harness_model,
    own_score,
)
from tasks.evaluation.stage import evaluate_model
from tasks.evaluation.suite_results import item_scores
from tasks.evaluation.suite_scores import score_items
from tasks.evaluation.suites import Suite, load_suite
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tests.support.data.trained_run import Run
from tests.support.data.written_suites import question
from tests.tasks.evaluation.conftest import Write

slow = pytest.mark.slow
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[3]
WINDOW = 95


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever opens a connection fails."""
    pytest.importorskip("lm_eval")

    def refuse(*_: object) -> None:
        raise AssertionError("the harness asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def model(small_run: Run) -> Transformer:
    return load_model(small_run.train.path / "model").double()


@pytest.fixture(scope="module")
def tokenizer(small_run: Run) -> Tokenizer:
    return load_tokenizer(small_run.tokenizer.path)


def plain(model: Transformer, tokenizer: Tokenizer, window: int = WINDOW) -> Any:
    """The harness's model, with one plain pass per request."""

    def score(pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        return [one(context, ids) for context, ids in pairs]

    def one(context: list[int], ids: list[int]) -> tuple[float, bool]:
        whole = [*context, *ids]
        with torch.no_grad():
            logprobs = model(torch.tensor([whole[:-1]]))[0].log_softmax(-1)
        places = range(len(context) - 1, len(whole) - 1)
        total = math.fsum(float(logprobs[p, whole[p + 1]]) for p in places)
        return total, all(int(logprobs[p].argmax()) == whole[p + 1] for p in places)

    return harness_model(model, tokenizer, window, score)


def shipped(form: dict[str, Any]) -> Iterator[Suite]:
    """Our suites of choices, in a form of their own."""
    for suite in SuitesConfig((ROOT / "data/suites",)).load():
        if suite.file.kind == "choices":
            yield dataclasses.replace(suite, file=dataclasses.replace(suite.file, **form))


@slow
@pytest.mark.parametrize("form", [{}, {"form": "letters", "shots": 1}], ids=["cloze", "letters"])
def test_choices_have_the_credits_that_the_harness_gives(
    model: Transformer, tokenizer: Tokenizer, offline: None, form: dict[str, Any]
) -> None:
    lm = plain(model, tokenizer)
    names = set()
    for suite in shipped(form):
        shots = suite.file.shots
        rows = score_items(model, tokenizer, suite, suite.items, WINDOW, EvaluateConfig(), [])
        found = compare_suite(lm, suite, rows, shots, seed=0)
        assert found["agrees"], found["disagreements"]
        assert found["worst_nats"] <= 1e-6  # of what is neither merged nor truncated
        differ = {(each["metric"], each["item"]) for each in found["disagreements"]}
        for metric, values in found["metrics"].items():
            if not any(name == metric for name, _ in differ):
                assert abs(values["difference"]) <= 1e-6
        if not form:
            assert found["disagreements"] == []
        names.add(suite.name)
    assert len(names) >= 5  # with both forms ten


def test_ties_go_to_the_first_choice_of_the_harness_and_are_shared_here(
    model: Transformer, tokenizer: Tokenizer, offline: None, write_suite: Write
) -> None:
    folder = write_suite("ties", [question("a", "The", ["the", "the", "a b c d e f"], 1)])
    suite = load_suite("ties", folder)
    rows = score_items(model, tokenizer, suite, suite.items, WINDOW, EvaluateConfig(), [])
    found = compare_suite(plain(model, tokenizer), suite, rows, 0, 0)
    assert found["metrics"]["acc"] == {"value": 0.5, "lm_eval": 0.0, "difference": 0.5}
    assert {each["why"] for each in found["disagreements"]} == {"tie"} and found["agrees"]


def test_its_acc_norm_counts_characters_and_its_acc_bytes_bytes(
    model: Transformer, tokenizer: Tokenizer, offline: None, write_suite: Write
) -> None:
    """Of the log-probability of the words alone, without the space before them."""
    choices = ["文文", "zq", "xj"]
    records = [question(f"{n}", f"The {w}", choices, n % 3) for n, w in enumerate("abcdefgh")]
    suite = load_suite("x", write_suite("x", records))
    rows = score_items(model, tokenizer, suite, suite.items, WINDOW, EvaluateConfig(), [])
    found = compare_suite(plain(model, tokenizer), suite, rows, 0, 0)
    ours = item_scores(rows, list(NAMES))
    assert not np.array_equal(ours["acc_chars"], ours["acc_bytes"])
    assert found["disagreements"] == [] and found["worst_nats"] <= 1e-6


def test_other_numbers_and_other_definitions_are_not_agreement(
    model: Transformer, tokenizer: Tokenizer, offline: None, write_suite: Write
) -> None:
    suite = load_suite("x", write_suite("x", [question("a", "The", ["list", "king"], 0)]))
    (row,) = score_items(model, tokenizer, suite, suite.items, WINDOW, EvaluateConfig(), [])
    best = max(choice["logprob"] for choice in row["choices"])

    def compare(**changes: Any) -> dict[str, Any]:
        choices = [
            {**choice, **{name: change(choice) for name, change in changes.items()}}
            for choice in row["choices"]
        ]
        lm = plain(model, tokenizer)
        return compare_suite(lm, suite, [{**row, "choices": choices}], 0, 0)

    # The other one wins: by numbers that are too far off for rounding, then by another formula.
    found = compare(logprob=lambda choice: -100 - choice["logprob"])
    assert not found["agrees"] and found["worst_nats"] > 1
    assert [each["why"] for each in found["disagreements"]] == ["rounding"] * len(NAMES)
    found = compare(chars=lambda choice: 1 if choice["logprob"] == best else 10_000)
    assert not found["agrees"] and found["worst_nats"] <= 1e-6
    assert [(each["metric"], each["why"]) for each in found["disagreements"]] == [
        ("acc_chars", None)
    ]
    assert compare()["agrees"]


def test_bits_per_byte_of_disjoint_windows_are_those_of_the_harness(
    small_run: Run, model: Transformer, tokenizer: Tokenizer, offline: None
) -> None:
    texts = [text for text in small_run.texts.values() if text.strip()]
    tokens = [tokenizer.encode(text).astype(np.int64) for text in texts]
    bits = score_documents(model, tokens, tokenizer.eos_id, 48, 0, 500, "disjoint")
    own = math.fsum(np.concatenate(bits)) / sum(len(text.encode()) for text in texts)
    theirs = bits_per_byte(plain(model, tokenizer, 48), texts)
    assert own == pytest.approx(theirs, abs=1e-6)


def test_a_stage_puts_the_figures_of_the_harness_beside_its_own(
    small_run: Run, tmp_path: Path, offline: None, write_suite: Write
) -> None:
    records = [question(f"{n}", f"The {n} of the", ["king", "list", "a"], n % 3) for n in range(9)]
    folder = write_suite("x", records)
    settings = {"sample_prompts": ("Hi",), "num_document_prompts": 0, "bootstrap_samples": 100}
    scoring = EvaluateConfig(backend="lm_eval", windows="disjoint", **settings)  # type: ignore[arg-type]
    config = EvaluateStageConfig(scoring, GenerateConfig(max_new_tokens=2), SuitesConfig((folder,)))
    parents = small_run.documents, small_run.tokenizer, small_run.shards, small_run.train
    made = evaluate_model(*parents, tmp_path, config)
    told = json.loads(made.file("eval.json").read_text())
    # Documents of shards end with end-of-text, which takes a place of the last window here.
    assert 0 < abs(told["lm_eval"]["difference"]) <= 1e-3
    assert told["suites"]["x"]["lm_eval"]["agrees"]
    assert told["suites"]["x"]["lm_eval"]["worst_nats"] <= 1e-4


def test_the_harness_gets_answers_that_end_where_a_task_says(
    model: Transformer, tokenizer: Tokenizer, offline: None
) -> None:
    from lm_eval.api.instance import Instance

    lm = harness_model(model, tokenizer, WINDOW, own_score(model, 500))

    def ask(**wanted: Any) -> str:
        about = {"request_type": "generate_until", "doc": {}, "idx": 0}
        (text,) = lm.generate_until([Instance(arguments=("The", wanted), **about)])
        return text

    whole = ask(max_gen_toks=12)
    assert len(whole) > 3 and ask(max_gen_toks=12, until=[whole[2]]) == whole.partition(whole[2])[0]
