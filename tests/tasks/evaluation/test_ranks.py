"""Commands give the results of one process with a model in two, and a lost one is one line."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from tasks.bench.config import BenchConfig
from tasks.bench.stage import measure
from tasks.evaluation.config import (
    EvaluateConfig,
    EvaluateStageConfig,
    GenerateConfig,
    SuitesConfig,
)
from tasks.evaluation.generate import Answer, generate_text
from tasks.evaluation.models import open_models
from tasks.evaluation.stage import evaluate_model
from tasks.evaluation.suite_scores import score_items
from tasks.runtime.code import ROOT
from tasks.tokenizer.encoder import load_tokenizer
from tests.support.data.trained_run import Run, make_run, publish
from tests.support.data.written_suites import question, write_suite
from tests.support.served_models import publish_model, serving


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run"))


def answer(run: Run, params: SamplingParams, ranks: int = 1, draft: str | None = None) -> Answer:
    folder = run.train.path / "model"
    return generate_text(
        folder, run.tokenizer.path, "The ", params, 24, None, "cpu", (), ranks, draft
    )


@pytest.mark.slow
def test_two_ranks_write_the_answer_of_one_process_with_and_without_a_draft(run: Run) -> None:
    for params in (GREEDY, SamplingParams(temperature=2.0, seed=4)):
        assert answer(run, params, 2) == answer(run, params)
    assert answer(run, GREEDY, 2, "ngram") == answer(run, GREEDY)


def test_a_draft_gives_the_greedy_answer_and_samples_with_it(run: Run) -> None:
    plain = answer(run, GREEDY)
    for draft in ("ngram", str(run.train.path / "model")):
        # The folder of a model has its tokenizer beside it.
        if draft != "ngram":
            for file in run.tokenizer.path.glob("tokenizer*.json"):
                (Path(draft) / file.name).write_bytes(file.read_bytes())
        assert answer(run, GREEDY, draft=draft) == plain
        sampled = answer(run, SamplingParams(temperature=2.0, seed=1), draft=draft)
        assert sampled.num_tokens > 0


def test_drafts_that_cannot_guess_are_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft \(none\) must be ngram or the folder"):
        answer(run, GREEDY, draft="none")
    publish_model(tmp_path)
    with pytest.raises(ConfigError, match="has other tokens than the model"):
        answer(run, GREEDY, draft=str(tmp_path))
    with pytest.raises(ConfigError, match="no penalties"):
        answer(run, SamplingParams(presence_penalty=1.0), draft="ngram")


def three_suites(folder: Path) -> Path:
    """Choices after shots that they share, a text to be written and one to be scored."""
    words = ["king", "list", "file", "house", "line"]
    items = [question(str(n), f"The {w} of the", words[:3], n % 3) for n, w in enumerate(words)]
    write_suite(folder, "choices", items, shots=2)
    texts = [{"id": w, "question": f"Say {w}", "answer": f" {w} again"} for w in words]
    write_suite(folder, "written", texts, kind="generation", max_new_tokens=6)
    write_suite(folder, "likely", texts, kind="likelihood", delimiter="")
    return folder


def test_two_ranks_score_suites_to_the_last_digit_of_one_process(run: Run, tmp_path: Path) -> None:
    suites = SuitesConfig((three_suites(tmp_path),)).load()
    tokenizer = load_tokenizer(run.tokenizer.path)
    found = []
    for ranks, replicas in ((1, 1), (2, 1), (1, 2)):
        with open_models(ranks, "cpu", data_parallel=replicas) as models:
            model = models.load(run.train.path / "model", torch.float64)
            about = 95, EvaluateConfig(), [tokenizer.eos_id]
            found.append([score_items(model, tokenizer, s, s.items, *about) for s in suites])
            del model
    assert found[0] == found[1] == found[2]
    assert any(len(row["choices"]) == 3 for rows in found[0] for row in rows)


@pytest.mark.slow
def test_two_ranks_score_and_measure_what_one_process_does(run: Run, tmp_path: Path) -> None:
    found, suites = [], three_suites(tmp_path / "suites")
    folder = publish(run, tmp_path / "folder")
    for number, kind in enumerate(({}, {"tensor_parallel": 2}, {"data_parallel": 2})):
        scoring = EvaluateConfig(max_documents=6, device="cpu", folder=folder, **kind)
        greedy = GenerateConfig(temperature=0.0, max_new_tokens=8)
        config = EvaluateStageConfig(scoring, greedy, SuitesConfig((suites,)))
        out = tmp_path / str(number)
        out.mkdir()
        parents = run.documents, run.tokenizer, run.shards, run.train
        found.append(evaluate_model(*parents, out, config).metrics)
    for other in found[1:]:
        assert other["samples"] == found[0]["samples"]
        assert other["val_bpb"]["value"] == pytest.approx(found[0]["val_bpb"]["value"], abs=1e-5)
        assert other["beside"]["parameters"] == found[0]["beside"]["parameters"]
        for suite in ("choices", "written", "likely"):
            for each, own in ((other, found[0]), (other["beside"], found[0])):
                metrics = own["suites"][suite]["metrics"]
                for metric, figure in each["suites"][suite]["metrics"].items():
                    assert figure["value"] == pytest.approx(metrics[metric]["value"], abs=1e-5)
    config = BenchConfig(
        batches=(1,), prompt_tokens=(8,), new_tokens=(3,), repeats=3, check_tokens=8,
        caches=("static",), weights=("model", "int8"), concurrencies=(2,), load_requests=3,
        arrival_fracs=(), device="cpu", tensor_parallel=2,
    )  # fmt: skip
    measured = measure(run.train.path / "model", config)
    assert measured["correctness"]["passed"] and measured["decode_tok_s"] > 0
    assert [each["load"] for each in measured["skipped"] if "load" in each] == ["http"]


@pytest.mark.slow
def test_a_server_that_loses_a_rank_ends_in_one_line(tmp_path: Path) -> None:
    publish_model(tmp_path)
    overrides = ("generate.tensor_parallel=2", "generate.device=cpu")
    with serving(tmp_path, *overrides) as (process, _):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        followers = [
            int(child)
            for child in children
            if b"infer.ranks.follow" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        os.kill(followers[0], signal.SIGKILL)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 2
        assert said.splitlines()[-1].startswith("textmill: rank 1 of 2 was ended by SIGKILL")
        assert "Traceback" not in said


@pytest.mark.slow
def test_torchrun_starts_the_ranks_too(tmp_path: Path) -> None:
    publish_model(tmp_path)
    settings = [f"folder={tmp_path}", "generate.temperature=0", "generate.device=cpu"]
    command = [sys.executable, "-m", "flows.cli", "generate", "the", *settings]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = []
    for words in (
        [*command, "generate.tensor_parallel=1"],
        [*launcher, "--no-python", *command, "generate.tensor_parallel=2"],
    ):
        done = subprocess.run(
            words,
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]


def test_ranks_are_settings_of_at_least_one() -> None:
    for kind in (GenerateConfig, EvaluateConfig, BenchConfig):
        with pytest.raises(ConfigError, match=r"tensor_parallel \(0\)"):
            dataclasses.replace(kind(), tensor_parallel=0)


def test_replicas_of_tensor_ranks_are_refused() -> None:
    refused = pytest.raises(ConfigError, match=r"tensor_parallel \(2\) and data_parallel \(2\)")
    with refused, open_models(2, "cpu", data_parallel=2):
        pass
