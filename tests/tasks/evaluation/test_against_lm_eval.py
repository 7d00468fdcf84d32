"""The evaluation harness gives the same figures on the same items, where it is installed
(`textmill[lm-eval]`): one plain pass per request, none of our scoring."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_core.huggingface.export import load_model
from llm_core.infer.bits_per_byte import score_documents
from llm_core.model.transformer import Transformer
from tasks.evaluation.config import EvaluateConfig, SuitesConfig
from tasks.evaluation.suite_results import item_scores
from tasks.evaluation.suite_scores import score_items
from tasks.evaluation.suites import Suite, load_suite
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tests.support.data.trained_run import Run
from tests.support.data.written_suites import question
from tests.tasks.evaluation.conftest import Write

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[3]
NAMES = {"acc": "acc", "acc_chars": "acc_norm", "acc_bytes": "acc_bytes"}
"""Ours, and what lm-eval calls it."""
WINDOW = 48


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def plain_model(model: Transformer, tokenizer: Tokenizer) -> Any:
    """Our model as the harness takes one."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class Plain(TemplateLM):
        @property
        def eot_token_id(self) -> int:
            return tokenizer.eos_id

        def tok_encode(self, string: str, **_: Any) -> list[int]:
            return [*tokenizer.start_ids, *tokenizer.encode(string).tolist()]

        def score(self, context: list[int], ids: list[int]) -> tuple[float, bool]:
            whole = [*context, *ids]
            with torch.no_grad():
                logprobs = model(torch.tensor([whole[:-1]]))[0].log_softmax(-1)
            places = range(len(context) - 1, len(whole) - 1)
            total = math.fsum(float(logprobs[p, whole[p + 1]]) for p in places)
            return total, all(int(logprobs[p].argmax()) == whole[p + 1] for p in places)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            return [self.score(context, ids) for _, context, ids in requests]

        def loglikelihood_rolling(self, requests: Any, **_: Any) -> list[float]:
            totals = []
            for request in requests:
                ids = tokenizer.encode(request.args[0]).tolist()
                windows = get_rolling_token_windows(ids, tokenizer.eos_id, WINDOW, 1)
                scores = [self.score(*make_disjoint_window(each))[0] for each in windows]
                totals.append(math.fsum(scores))
            return totals

        def generate_until(self, requests: Any, **_: Any) -> list[str]:
            raise NotImplementedError

    return Plain()


def harness(lm: Any, folder: Path, tasks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{task: results and samples} of tasks whose records are JSON lines."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    (folder / "tasks").mkdir()
    for name, task in tasks.items():
        known = {"task": name, "dataset_path": "json", "test_split": "test", "num_fewshot": 0}
        files = {"data_files": {"test": str(task.pop("file"))}}
        text = json.dumps(known | {"dataset_kwargs": files} | task)
        (folder / f"tasks/{name}.yaml").write_text(text)
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = simple_evaluate(
            lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, log_samples=True
        )
    return {name: (found["results"][name], found["samples"][name]) for name in tasks}


def choice_task(suite: Suite, file: Path) -> dict[str, Any]:
    return {
        "file": file,
        "output_type": "multiple_choice",
        "doc_to_text": suite.file.prompt.replace("{", "{{").replace("}", "}}"),
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": name} for name in (*NAMES.values(), "brier_score")],
    }


def test_choices_have_the_credits_that_the_harness_gives(
    small_run: Run, tmp_path: Path, offline: None
) -> None:
    model = load_model(small_run.train.path / "model").double()
    tokenizer = load_tokenizer(small_run.tokenizer.path)
    suites = [
        suite
        for suite in SuitesConfig((ROOT / "data/suites",)).load()
        if suite.file.kind == "choices"
    ]
    tasks = {
        suite.name: choice_task(suite, ROOT / "data/suites" / suite.name / suite.file.file)
        for suite in suites
    }
    theirs = harness(plain_model(model, tokenizer), tmp_path, tasks)
    disagreements = []
    for suite in suites:
        config = EvaluateConfig(shots=0)
        rows = score_items(model, tokenizer, suite, suite.items, 95, config)
        scores = item_scores(rows, list(NAMES))
        results, samples = theirs[suite.name]
        samples = sorted(samples, key=lambda sample: sample["doc_id"])
        for row, sample, n in zip(rows, samples, range(len(rows)), strict=True):
            found = [response[0][0] for response in sample["resps"]]
            for choice, logprob in zip(row["choices"], found, strict=True):
                # Where a border is merged the harness scores only what follows the prompt's length.
                if not choice["is_merged"] and not row["is_truncated"]:
                    assert choice["logprob"] == pytest.approx(logprob, abs=1e-6)
            disagreements += [
                (suite.name, row["item"], ours)
                for ours, name in NAMES.items()
                if scores[ours][n] != sample[name]
            ]
        for ours, name in NAMES.items():
            assert scores[ours].mean() == pytest.approx(results[f"{name},none"], abs=1e-6)
    assert disagreements == []


def test_ties_go_to_the_first_choice_of_the_harness_and_are_shared_here(
    small_run: Run, tmp_path: Path, offline: None, write_suite: Write
) -> None:
    model = load_model(small_run.train.path / "model").double()
    tokenizer = load_tokenizer(small_run.tokenizer.path)
    folder = write_suite("ties", [question("a", "The", ["the", "the", "a b c d e f"], 1)])
    suite = load_suite("ties", folder)
    task = {"ties": choice_task(suite, folder / "items.jsonl")}
    results, _ = harness(plain_model(model, tokenizer), tmp_path, task)["ties"]
    rows = score_items(model, tokenizer, suite, suite.items, 95, EvaluateConfig())
    assert (results["acc,none"], item_scores(rows, ["acc"])["acc"][0]) == (0, 0.5)


def test_bits_per_byte_of_disjoint_windows_are_those_of_the_harness(
    small_run: Run, tmp_path: Path, offline: None
) -> None:
    model = load_model(small_run.train.path / "model").double()
    tokenizer = load_tokenizer(small_run.tokenizer.path)
    texts = [text for text in small_run.texts.values() if text.strip()]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(lines, "utf-8")
    task = {
        "file": tmp_path / "texts.jsonl",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [
            {"metric": "bits_per_byte"},
            {"metric": "word_perplexity"},
            {"metric": "byte_perplexity"},
        ],
    }
    results, _ = harness(plain_model(model, tokenizer), tmp_path, {"texts": task})["texts"]
    tokens = [tokenizer.encode(text).astype(np.int64) for text in texts]
    bits = score_documents(model, tokens, tokenizer.eos_id, WINDOW, 0, 500, "disjoint")
    total = math.fsum(np.concatenate(bits))
    size = sum(len(text.encode()) for text in texts)
    assert total / size == pytest.approx(results["bits_per_byte,none"], abs=1e-6)
    assert 2 ** (total / size) == pytest.approx(results["byte_perplexity,none"], rel=1e-6)
