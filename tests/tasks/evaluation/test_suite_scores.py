"""Scores of items do not depend on batches, order or parts, and every figure follows from rows."""

import dataclasses
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from llm_core.huggingface.export import load_model
from llm_core.model.transformer import Transformer
from tasks.evaluation import suite_parts
from tasks.evaluation.config import (
    EvaluateConfig,
    EvaluateStageConfig,
    GenerateConfig,
    SuitesConfig,
)
from tasks.evaluation.stage import evaluate_model
from tasks.evaluation.suite_results import (
    CHOICE_SCORES,
    ROWS_FILE,
    figures,
    for_tracking,
    item_scores,
    over_suites,
    read_suites,
)
from tasks.evaluation.suite_scores import score_items
from tasks.evaluation.suites import Suite, load_suite
from tasks.runtime.artifact import Artifact
from tasks.tokenizer.encoder import load_tokenizer
from tests.support.data.trained_run import Run
from tests.support.data.written_suites import question
from tests.support.data.written_suites import write_suite as write
from tests.tasks.evaluation.conftest import Write

WORDS = ["apache", "package", "version", "name", "list", "file", "line", "king", "lord", "house"]
CONFIG = EvaluateConfig(bootstrap_samples=200, sample_prompts=("Hi",), num_document_prompts=0)


def items(count: int = 14) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for n in range(count):
        text, *choices = rng.choice(WORDS, 5, replace=False).tolist()
        found.append(question(f"i{n}", f"The {text} of the", choices[: 2 + n % 3], n % 2))
    return found


@pytest.fixture(scope="module")
def model(small_run: Run) -> Transformer:
    return load_model(small_run.train.path / "model").double()


@pytest.fixture(scope="module")
def one_suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return load_suite("x", write(tmp_path_factory.mktemp("suites"), "x", items()))


def scored(
    run: Run, model: Transformer, suite: Suite, config: EvaluateConfig = CONFIG
) -> list[dict[str, Any]]:
    tokenizer = load_tokenizer(run.tokenizer.path)
    return score_items(model, tokenizer, suite, suite.items, 96, config, [tokenizer.eos_id])


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batch_tokens=st.integers(1, 700),
    order=st.permutations(range(14)),
    cuts=st.lists(st.integers(1, 13), max_size=4),
    shots=st.integers(0, 3),
)
def test_batches_order_and_parts_do_not_change_a_digit_in_float64(
    small_run: Run,
    model: Transformer,
    one_suite: Suite,
    batch_tokens: int,
    order: list[int],
    cuts: list[int],
    shots: int,
) -> None:
    tokenizer = load_tokenizer(small_run.tokenizer.path)
    config = dataclasses.replace(CONFIG, shots=shots)
    expected = score_items(model, tokenizer, one_suite, one_suite.items, 96, config, [])
    changed = dataclasses.replace(config, batch_tokens=batch_tokens)
    found = []
    for begin, end in pairwise([0, *sorted(set(cuts)), 14]):
        chosen = [one_suite.items[place] for place in order[begin:end]]
        found += score_items(model, tokenizer, one_suite, chosen, 96, changed, [])
    assert [found[order.index(place)] for place in range(14)] == expected


def test_log_probabilities_are_those_of_one_plain_pass(
    small_run: Run, model: Transformer, write_suite: Write
) -> None:
    import torch

    suite = load_suite("x", write_suite("x", items(3)))
    tokenizer = load_tokenizer(small_run.tokenizer.path)
    for row, item in zip(scored(small_run, model, suite), suite.items, strict=True):
        for choice, text in zip(row["choices"], item.choices, strict=True):
            for context, name in ((item.question, "logprob"), ("Answer:", "unconditional")):
                start = [*tokenizer.start_ids, *tokenizer.encode(context).tolist()]
                ids = [*tokenizer.start_ids, *tokenizer.encode(f"{context} {text}").tolist()]
                assert ids[: len(start)] == start  # no border is merged here
                with torch.no_grad():
                    logits = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
                picked = [float(logits[n - 1, ids[n]]) for n in range(len(start), len(ids))]
                assert choice[name] == pytest.approx(math.fsum(picked), abs=1e-6)
            assert choice["tokens"] == len(ids) - len(start)


def plain_logprob(model: Transformer, run: Run, context: str, answer: str) -> tuple[float, int]:
    """(log-probability, tokens) of an answer by one pass."""
    import torch

    tokenizer = load_tokenizer(run.tokenizer.path)
    start = [*tokenizer.start_ids, *tokenizer.encode(context).tolist()]
    ids = [*tokenizer.start_ids, *tokenizer.encode(context + answer).tolist()]
    assert ids[: len(start)] == start  # no border is merged here
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
    places = range(len(start), len(ids))
    return math.fsum(float(logits[n - 1, ids[n]]) for n in places), len(places)


def test_a_choice_is_scored_after_its_own_stem(
    small_run: Run, model: Transformer, write_suite: Write
) -> None:
    record = question("a", "The king and the lord, and", ["was late", "was late"], 1)
    folder = write_suite("x", [record | {"of": [" king", " lord"]}], columns={"stems": "of"})
    (found,) = scored(small_run, model, load_suite("x", folder))
    for choice, stem in zip(found["choices"], (" king", " lord"), strict=True):
        expected, _ = plain_logprob(model, small_run, record["question"] + stem, " was late")
        assert choice["logprob"] == pytest.approx(expected, abs=1e-6)
    assert found["choices"][0]["logprob"] != found["choices"][1]["logprob"]


def test_likelihood_of_an_answer_is_in_bits_per_byte_and_says_whether_it_is_written(
    small_run: Run, model: Transformer, write_suite: Write
) -> None:
    lines = {"kind": "likelihood", "delimiter": ""}
    asked, texts = ["The file", "The king"], [" is a line", " ist größer"]
    records = [
        {"id": str(n), "question": q, "answer": t}
        for n, (q, t) in enumerate(zip(asked, texts, strict=True))
    ]
    rows = scored(small_run, model, load_suite("x", write_suite("x", records, **lines)))
    found = item_scores(rows, ["bits_per_byte", "greedy"])
    for value, question_text, text in zip(found["bits_per_byte"], asked, texts, strict=True):
        nats, _ = plain_logprob(model, small_run, question_text, text)
        assert value == pytest.approx(-nats / math.log(2) / len(text.encode()), abs=1e-6)
    assert found["greedy"].tolist() == [0.0, 0.0]
    about = figures(rows, "likelihood", ["bits_per_byte", "greedy"], "greedy", "en", 200)
    assert about["metrics"]["bits_per_byte"]["value"] == found["bits_per_byte"].mean()

    tokenizer = load_tokenizer(small_run.tokenizer.path)
    ids = [*tokenizer.start_ids, *tokenizer.encode("The file").tolist()]
    best = tokenizer.decode([greedy_id(model, ids)])
    written = [{"id": "0", "question": "The file", "answer": best}]
    rows = scored(small_run, model, load_suite("y", write_suite("y", written, **lines)))
    assert item_scores(rows, ["greedy"])["greedy"].tolist() == [1.0]


def greedy_id(model: Transformer, ids: list[int]) -> int:
    import torch

    with torch.no_grad():
        return int(model(torch.tensor([ids]))[0, -1].argmax())


def row(label: int, choices: Sequence[tuple[float, float, str, int]]) -> dict[str, Any]:
    """choices: (log-probability, unconditional, text, tokens)."""
    return {
        "item": "i",
        "cluster": "i",
        "label": label,
        "is_truncated": False,
        "choices": [
            {
                "logprob": logprob,
                "unconditional": free,
                "tokens": count,
                "chars": len(text),
                "bytes": len(text.encode()),
                "is_merged": False,
                "is_greedy": False,
            }
            for logprob, free, text, count in choices
        ],
    }


@pytest.mark.parametrize(
    ("metric", "right"),
    [("acc", 0), ("acc_chars", 1), ("acc_bytes", 2), ("acc_tokens", 3), ("acc_unconditional", 4)],
)
def test_each_way_to_compare_has_its_own_winner(metric: str, right: int) -> None:
    choices = [
        (-5.0, -5.5, "ab", 2),
        (-6.0, -6.0, "abcdefghij", 1),
        (-8.0, -8.0, "文文文文文文", 1),
        (-20.0, -20.0, "abcd", 9),
        (-9.0, -30.0, "abc", 1),
    ]
    for label in range(5):
        credit = item_scores([row(label, choices)], [metric])[metric][0]
        assert credit == float(label == right)


def test_ties_share_one_credit(small_run: Run, model: Transformer, write_suite: Write) -> None:
    """lm-eval gives all of it to the first of the best."""
    same = [question("a", "The", ["same", "same", "zz"], 1)]
    rows = scored(small_run, model, load_suite("x", write_suite("x", same)))
    chosen = rows[0]["choices"]
    assert chosen[0]["logprob"] == chosen[1]["logprob"] != chosen[2]["logprob"]
    expected = 0.5 if chosen[0]["logprob"] > chosen[2]["logprob"] else 0.0
    assert item_scores(rows, ["acc"])["acc"][0] == expected
    tie = [row(1, [(-1.0, 0, "same", 1), (-1.0, 0, "same", 1), (-2.0, 0, "zz", 1)])]
    assert item_scores(tie, ["acc"])["acc"][0] == 0.5


def test_chance_centred_score_brier_and_calibration_are_those_of_their_formulas() -> None:
    rng = np.random.default_rng(4)
    rows, shares = [], []
    for n in range(40):
        logprobs = rng.normal(-5, 2, 2 + n % 3)
        rows.append(row(n % 2, [(value, 0.0, "x", 1) for value in logprobs]))
        shares.append(softmax(logprobs))
    found = figures(rows, "choices", list(CHOICE_SCORES), "acc", "en", 200)
    acc = np.mean([np.argmax(p) == r["label"] for p, r in zip(shares, rows, strict=True)])
    chance = np.mean([1 / len(p) for p in shares])
    assert found["metrics"]["acc"]["value"] == pytest.approx(acc)
    assert found["chance"] == pytest.approx(chance)
    assert found["centred"] == pytest.approx((acc - chance) / (1 - chance))
    right = [np.eye(len(p))[r["label"]] for p, r in zip(shares, rows, strict=True)]
    brier = np.mean([((p - one) ** 2).sum() for p, one in zip(shares, right, strict=True)])
    assert found["brier"] == pytest.approx(brier)
    sure = np.array([p.max() for p in shares])
    hits = np.array([np.argmax(p) == r["label"] for p, r in zip(shares, rows, strict=True)])
    error = 0.0
    for low in np.arange(10) / 10:
        inside = (sure >= low) & (sure < low + 0.1)
        if inside.any():
            error += inside.mean() * abs(sure[inside].mean() - hits[inside].mean())
    assert found["calibration_error"] == pytest.approx(error)


def test_means_over_suites_say_whether_suites_or_items_count_alike() -> None:
    suites = {
        name: {
            "kind": "choices",
            "items": count,
            "centred": centred,
            "metrics": {"acc": {"value": acc, "low": None, "high": 1.0}},
        }
        for name, count, acc, centred in (("a", 10, 0.5, 0.0), ("b", 30, 0.9, 0.8))
    }
    assert over_suites(suites) == {
        "macro_centred": pytest.approx(0.4),
        "pooled_acc": pytest.approx(0.8),
    }
    assert for_tracking(suites)["a"] == {"acc": 0.5, "acc_high": 1.0}
    assert over_suites({}) == {}


def test_answers_stop_where_the_suite_says_and_are_counted(
    small_run: Run, model: Transformer, write_suite: Write
) -> None:
    records = [{"id": str(n), "question": f"Say {n}", "answer": ["x", "y"]} for n in range(4)]
    lines = {"kind": "generation", "metrics": ["f1", "chrf"], "max_new_tokens": 5}
    suite = load_suite("x", write_suite("x", records, stop=[], **lines))
    rows = scored(small_run, model, suite)
    assert all(row["is_cut_off"] == (row["answer_tokens"] == 5) for row in rows)
    cut = next(row["answer"] for row in rows if len(row["answer"]) > 1)
    stopping = load_suite("x", write_suite("y", records, stop=[cut[1]], **lines))
    again = scored(small_run, model, stopping)
    assert not any(cut[1] in row["answer"] for row in again)
    assert not all(row["is_cut_off"] for row in again)
    found = figures(again, "generation", ["f1", "chrf"], "f1", "en", 200)
    assert found["empty_frac"] == sum(not row["answer"] for row in again) / 4
    assert found["cut_off_frac"] == sum(row["is_cut_off"] for row in again) / 4
    assert set(found["metrics"]) == {"f1", "chrf"}


def test_a_stage_scores_its_suites_and_every_figure_can_be_rebuilt(
    small_run: Run, write_suite: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_suite("one", items(9)).parent
    records = [{"id": str(n), "question": f"Say {n}", "answer": "x"} for n in range(3)]
    write_suite("two", records, kind="generation", metrics=["bleu", "f1"], max_new_tokens=4)
    config = EvaluateStageConfig(CONFIG, GenerateConfig(max_new_tokens=2), SuitesConfig((folder,)))

    def evaluate(name: str, max_items: int | None = None) -> Artifact:
        suites = dataclasses.replace(config.suites, max_items=max_items)
        (tmp_path / name).mkdir()
        parents = small_run.documents, small_run.tokenizer, small_run.shards, small_run.train
        chosen = dataclasses.replace(config, suites=suites)
        return evaluate_model(*parents, tmp_path / name, chosen)

    whole = evaluate("whole")
    assert read_suites(whole) == whole.metrics["suites"]
    assert json.loads(whole.file("eval.json").read_text())["suites"] == whole.metrics["suites"]
    rows = pq.read_table(whole.file(ROWS_FILE)).to_pylist()
    assert [row["suite"] for row in rows] == ["one"] * 9 + ["two"] * 3
    assert (
        whole.metrics["eval"]["one"]["acc"]
        == (whole.metrics["suites"]["one"]["metrics"]["acc"]["value"])
    )
    monkeypatch.setattr(suite_parts, "PART_ITEMS", 2)
    parts = evaluate("parts")
    for name, suite in whole.metrics["suites"].items():
        assert parts.metrics["suites"][name]["metrics"] == suite["metrics"]
    few = evaluate("few", max_items=2)
    assert few.metrics["suites"]["one"]["items"] == 2
