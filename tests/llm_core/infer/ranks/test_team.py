"""A model in several processes gives what one process gives, and none of them outlives another."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model
from llm_core.huggingface.rounded import write_rounded
from llm_core.infer.bits_per_byte import score_documents
from llm_core.infer.cache.rows import paged_cache, static_cache
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.equivalence import Shape, check_cache
from llm_core.infer.generation import generate
from llm_core.infer.ranks.team import Models, RankLost, open_models
from llm_core.infer.score_plan import Continuation, plan
from llm_core.infer.scoring import score_continuations
from llm_core.infer.speculative import ModelDraft, NGramDraft
from llm_core.model.transformer import Transformer
from llm_core.quantize.model import round_model
from tests.support.engine.drafts import generate_speculatively
from tests.support.engine.published_models import CASES, random_ids, reference
from tests.support.engine.rank_programs import start_pair
from tests.support.engine.small_model import make_model
from tests.support.engine.small_model import random_ids as ids_of


@pytest.fixture(scope="module")
def pair() -> Iterator[Models]:
    with open_models(2, "cpu") as models:
        yield models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one key/value head, which both of two ranks hold, and of 61 ids."""
    model, folder = make_model(num_kv_heads=1), tmp_path_factory.mktemp("model")
    export_model(model.config, model.state_dict(), folder)
    return folder


@pytest.fixture(scope="module")
def both(pair: Models, folder: Path) -> tuple[Transformer, Transformer]:
    """(in two processes, in one)."""
    return pair.load(folder, torch.float64), load_model(folder, torch.float64)


def check_same(models: Models, folder: Path) -> None:
    shared, whole = models.load(folder, torch.float64), load_model(folder, torch.float64)
    with torch.no_grad():
        found, expected = shared(random_ids()), whole(random_ids())
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


GPT2 = {
    "norm": "layer",
    "ffn": "gelu",
    "positions": "learned",
    **dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True),
}


NEOX = {
    "norm": "layer",
    "ffn": "exact_gelu",
    "rotary_frac": 0.5,
    "parallel_residual": True,
    **dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True),
}
GEMMA = {"norm": "offset_rms", "ffn": "geglu", "scaled_embeddings": True, "num_kv_heads": 1}


@pytest.mark.parametrize(
    "values", [{"qk_norm": True, "num_kv_heads": 2, "window": 5}, GPT2, NEOX, GEMMA]
)
def test_logits_are_those_of_one_process(
    values: dict[str, Any], pair: Models, tmp_path: Path
) -> None:
    model = Transformer(dataclasses.replace(make_model(num_kv_heads=4).config, **values)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    export_model(model.config, model.state_dict(), tmp_path)
    check_same(pair, tmp_path)


@pytest.mark.slow
def test_four_ranks_compute_every_family(tmp_path: Path) -> None:
    """Two key/value heads are on two ranks each, and 51 ids are 13, 13, 13 and 12."""
    with open_models(4, "cpu") as models:
        for case in CASES:
            folder = tmp_path / case.replace(" ", "-")
            reference(case, folder)
            check_same(models, folder)


@pytest.mark.parametrize("make_cache", [static_cache, paged_cache])
def test_caches_pass_their_proof(make_cache, both) -> None:  # type: ignore[no-untyped-def]
    for int8 in (False, True):
        make = partial(make_cache, int8=int8)
        checks = check_cache(both[0], [Shape(2, 6, 4)], 8, 0, make, int8)
        assert all(check.passed for check in checks), checks


def test_requests_that_fork_wait_and_leave_are_answered_as_by_one_process(
    both: tuple[Transformer, Transformer],
) -> None:
    """Few blocks, so that some requests are sent back; two answers to each, and a shared prefix."""
    params = SamplingParams(temperature=2.0, seed=3, repetition_penalty=1.2)
    prompts = [[*ids_of(8, 0), *ids_of(n, n)] for n in (1, 9, 4)]
    answers = []
    for model in both:
        settings = EngineConfig(
            cache_tokens=48, block_tokens=4, budget_tokens=16, max_running=6, cache="int8"
        )
        engine = Engine(model, settings, [0])
        requests = [engine.submit(prompt, params, 9, n=2, logprobs=2) for prompt in prompts]
        for step in range(100):
            engine.step()
            if step == 5:
                engine.cancel(requests[1])
        assert engine.num_preemptions and engine.num_prefix_tokens and not engine.busy
        answers.append([requests[0].answers, requests[2].answers])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("draft", ["n-gram", "model"])
def test_guesses_are_checked_as_by_one_process(
    draft: str, both: tuple[Transformer, Transformer]
) -> None:
    made = NGramDraft() if draft == "n-gram" else ModelDraft(both[1], 64)
    prompt = ids_of(9, 2)
    found = generate_speculatively(both[0], prompt, GREEDY, 20, made)
    assert found.ids == generate(both[1], [prompt], GREEDY, 20)[0]


def test_documents_are_scored_as_by_one_process(both: tuple[Transformer, Transformer]) -> None:
    documents = [torch.tensor(ids_of(n, n)).numpy() for n in (40, 3, 17)]
    found, expected = (score_documents(model, documents, 0, 16, 4, 64) for model in both)
    for ours, theirs in zip(found, expected, strict=True):
        assert abs(ours - theirs).max() <= 1e-12


def test_answers_behind_shared_contexts_are_scored_as_by_one_process(
    both: tuple[Transformer, Transformer],
) -> None:
    """Shots before all questions, a context before the answers of each, and a question alone."""
    shots = tuple(ids_of(30, 1))
    questions = [
        [Continuation((*shots, n, *ids_of(3 + k, k)), 31) for k in range(3)] for n in range(5)
    ]
    questions.append([Continuation(tuple(ids_of(9, 2)), 4)])
    assert {batch.num_prefix > 0 for batch in plan(questions, 60, True)} == {True, False}
    found, expected = (score_continuations(model, questions, 60) for model in both)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert abs(one.logprobs - other.logprobs).max() <= 1e-12
            assert one.is_greedy == other.is_greedy


def test_caches_that_are_gone_are_gone_everywhere(both: tuple[Transformer, Transformer]) -> None:
    orders = both[0].orders
    cache = static_cache(both[0], [2], 2)
    number = cache.number  # type: ignore[attr-defined]
    del cache
    assert ["drop", number] in orders._waiting  # type: ignore[union-attr]
    generate(both[0], [[1, 2]], GREEDY, 2)


def test_rounded_weights_are_refused_and_the_ranks_go_on(
    pair: Models, folder: Path, tmp_path: Path
) -> None:
    from llm_core.huggingface.files import read_values

    rounded = round_model(load_model(folder), "int8")
    write_rounded(rounded, read_values(folder), tmp_path)
    with pytest.raises(ConfigError, match=r"has rounded weights.*tensor_parallel=1"):
        pair.load(tmp_path, torch.float32)
    check_same(pair, folder)


def test_a_launcher_with_other_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    refused = pytest.raises(ConfigError, match=r"tensor_parallel \(2\) must equal.*\(3\)")
    with refused, open_models(2, "cpu"):
        pass


@pytest.mark.slow
def test_a_rank_that_dies_ends_what_waits_for_it_in_one_line(folder: Path) -> None:
    killed = "os.kill(pids()[0], signal.SIGKILL)\ngenerate(model, [[1, 2, 3]], GREEDY, 30)"
    process = start_pair(folder, killed)
    _, said = process.communicate(timeout=180)
    last = said.splitlines()[-1]
    assert "RankLost: rank 1 of 2 was ended by SIGKILL" in last


@pytest.mark.slow
def test_ranks_end_with_the_first_one_however_it_ends(folder: Path) -> None:
    process = start_pair(folder, "print(pids()[0], flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    follower = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{follower}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{follower}").exists()


def test_a_rank_that_does_not_start_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # The group of the other tests stays open.
    from llm_core.infer.ranks.team import Followers

    followers = Followers(2, torch.device("cpu"), tmp_path, None, os.environ)
    try:
        with pytest.raises(RankLost, match="rank 1 of 2 ended with code 3"):
            followers.wait_for_all()
    finally:
        followers.kill()
