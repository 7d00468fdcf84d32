"""An answer is whole characters, ends where the model's length ends, and is the same told in pieces
and returned."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.generation import generate
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, GenerateConfig
from tasks.evaluation.generate import Answer, begin, generate_text, generate_texts
from tasks.evaluation.stage import evaluate_model
from tasks.runtime.artifact import Artifact
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tasks.tokenizer.text_stream import TextStream
from tests.support.data.sample_documents import sample_texts, write_documents
from tests.support.data.trained_run import Run, make_run, save_model

MAX_SEQ_LEN = 96


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    documents = write_documents(folder, sample_texts(40, 600))
    return load_tokenizer(
        train_tokenizer(documents, folder, TokenizerConfig(request.param, vocab_size=600)).path
    )


def answer(run: Run, prompt: str, max_new_tokens: int) -> Answer:
    return generate_text(
        run.train.path / "model", run.tokenizer.path, prompt, GREEDY, max_new_tokens
    )


def test_an_answer_inside_a_character_ends_before_it_and_a_broken_one_is_replaced(
    tokenizer: Tokenizer,
) -> None:
    good = tokenizer.encode("\U0010ffff").tolist()
    assert len(good) == 4
    assert TextStream(tokenizer).add(good[:3]) == ""
    assert TextStream(tokenizer).add([*good[:3], *tokenizer.encode("x")]).endswith("\ufffdx")
    assert TextStream(tokenizer, good[:3]).add(good[3:]) == "\U0010ffff"


def test_printed_and_returned_answers_are_equal_whatever_is_drawn(run: Run) -> None:
    """Drawn almost evenly from all tokens, answers break characters all the time."""
    for seed in range(20):
        pieces: list[str] = []
        params = SamplingParams(temperature=50.0, seed=seed)
        made = generate_text(
            run.train.path / "model", run.tokenizer.path, "a", params, 20 + seed, pieces.append
        )
        assert made.text == "".join(pieces)


def test_an_answer_ends_before_a_stop_string_and_no_token_is_written_behind_it(run: Run) -> None:
    model, tokenizer = load_model(run.train.path / "model"), load_tokenizer(run.tokenizer.path)
    free = answer(run, "a", 40)
    stop = free.text[5:8]
    pieces: list[str] = []
    cut = generate_text(
        run.train.path / "model",
        run.tokenizer.path,
        "a",
        GREEDY,
        40,
        pieces.append,
        stop_strings=[stop],
    )
    assert cut.text == "".join(pieces) == free.text.partition(stop)[0]
    assert cut.num_tokens < free.num_tokens and not cut.reached_max_seq_len
    (sample,) = generate_texts(
        model, tokenizer, [tokenizer.encode("a")], GREEDY, 40, [], stop_strings=[stop]
    )
    assert sample.text == cut.text


def test_an_answer_stops_where_the_model_ends(run: Run) -> None:
    prompt = "a" + " b" * 600
    tokenizer = load_tokenizer(run.tokenizer.path)
    ids = tokenizer.encode(prompt).tolist()
    for room in (1, 5):
        text = tokenizer.decode(ids[: MAX_SEQ_LEN - 1 - room])
        assert len(tokenizer.encode(text)) == MAX_SEQ_LEN - 1 - room
        made = answer(run, text, 64)
        assert made.num_tokens == room and made.reached_max_seq_len
        assert answer(run, text, room) == Answer(made.text, room, reached_max_seq_len=False)
    with pytest.raises(
        ConfigError,
        match=r"the prompt has 96 tokens with its start, and the model reads 96 \(max_seq_len\)",
    ):
        answer(run, tokenizer.decode(ids[: MAX_SEQ_LEN - 1]), 64)
    with pytest.raises(ConfigError, match=r"shorten it"):
        answer(run, prompt, 1)
    assert answer(run, prompt, 0) == Answer("", 0, reached_max_seq_len=False)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_long_prompt_costs_its_neighbours_nothing(kind: str, run: Run) -> None:
    tokenizer, model = load_tokenizer(run.tokenizer.path), load_model(run.train.path / "model")
    if kind == "gpt2":  # its table of positions ends where the model does
        biases = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
        parts = {
            "norm": "layer",
            "ffn": "gelu",
            "positions": "learned",
            "num_kv_heads": 4,
            **biases,
        }
        model = Transformer(dataclasses.replace(model.config, **parts)).eval()
        init_weights(model, seed=0)
    prompts = [
        tokenizer.encode("a b c d e f g h " * 20).tolist()[:length] for length in (90, 3, 60)
    ]
    together = generate_texts(model, tokenizer, prompts, GREEDY, 40, [])
    assert together == [
        generate_texts(model, tokenizer, [prompt], GREEDY, 40, [])[0] for prompt in prompts
    ]
    assert [made.reached_max_seq_len for made in together] == [True, False, True]
    assert [made.num_tokens for made in together] == [5, 40, 35]


def test_limits_of_requests_are_their_own(run: Run) -> None:
    model = load_model(run.train.path / "model", torch.float64)
    limits, prompts = [3, 0, 7], [[1, 2], [3], [4, 5, 6]]
    free = generate(model, prompts, GREEDY, 7)
    assert generate(model, prompts, GREEDY, limits) == [
        a[:n] for a, n in zip(free, limits, strict=True)
    ]
    with pytest.raises(ValueError, match="prompt 1 has 1 tokens and 96 new ones"):
        generate(model, prompts, GREEDY, [1, 96, 1])


def test_ids_that_the_tokenizer_does_not_know_have_no_text(run: Run, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(run.tokenizer.path)
    save_model(tmp_path, vocab_size=tokenizer.vocab_size + 300, weight_scale=0.0)
    params = SamplingParams(seed=1)
    made = generate_text(tmp_path / "model", run.tokenizer.path, "a", params, 60)
    assert made.num_tokens > 10 and len(made.text) < 200


def test_samples_of_an_evaluation_stop_where_the_model_ends(run: Run, tmp_path: Path) -> None:
    config = EvaluateStageConfig(
        EvaluateConfig(max_documents=2, bootstrap_samples=100, sample_prompts=("a b " * 25,)),
        GenerateConfig(max_new_tokens=90),
    )
    (tmp_path / "a").mkdir()
    made = evaluate_model(
        run.documents, run.tokenizer, run.shards, run.train, tmp_path / "a", config
    )
    assert all("\ufffd" not in sample["prompt"] for sample in made.metrics["samples"])
    prompts = ("short", "a b " * 100)
    long = EvaluateStageConfig(
        EvaluateConfig(max_documents=2, bootstrap_samples=100, sample_prompts=prompts)
    )
    (tmp_path / "b").mkdir()
    with pytest.raises(
        ConfigError, match=r"prompt 2 has \d+ tokens with its start, and the model reads 96"
    ):
        evaluate_model(run.documents, run.tokenizer, run.shards, run.train, tmp_path / "b", long)


def test_an_answer_ends_at_any_id_that_the_folder_names(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(run.train.path / "model", folder)
    tokenizer, free = load_tokenizer(run.tokenizer.path), answer(run, "The ", 20)
    ids = generate(
        load_model(folder),
        [begin(tokenizer, tokenizer.encode("The ").tolist())],
        GREEDY,
        20,
        [tokenizer.eos_id],
    )[0]
    assert len(ids) == free.num_tokens == 20
    unused = next(i for i in range(50) if i not in ids)
    for named, count in (([unused, ids[3]], ids.index(ids[3])), (unused, 20)):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
        made = generate_text(folder, run.tokenizer.path, "The ", GREEDY, 20)
        assert made.num_tokens == count
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[3]]}))
    config = EvaluateStageConfig(
        EvaluateConfig(max_documents=2, bootstrap_samples=100, num_document_prompts=0),
        GenerateConfig(max_new_tokens=20, temperature=0.0),
    )
    (out := tmp_path / "out").mkdir()
    parents = run.documents, run.tokenizer, run.shards, Artifact(tmp_path, "train")
    (sample,) = evaluate_model(*parents, out, config).metrics["samples"]
    assert sample["text"] == generate_text(folder, run.tokenizer.path, "The ", GREEDY, 20).text
    assert sample["text"] != free.text
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, -1]}')
    with pytest.raises(ConfigError, match=r"eos_token_id \(\[1, -1\]\) must be an id from 0"):
        generate_text(folder, run.tokenizer.path, "The ", GREEDY, 20)


def test_a_device_that_is_not_there_is_said_before_a_model_is_read(
    run: Run, tmp_path: Path
) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"device \(cuda\) needs a CUDA GPU"):
            generate_text(tmp_path / "nowhere", run.tokenizer.path, "a", GREEDY, 1, device="cuda")
    assert (
        generate_text(
            run.train.path / "model", run.tokenizer.path, "a", GREEDY, 1, device="cpu"
        ).num_tokens
        <= 1
    )
