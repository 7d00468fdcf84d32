"""Suites are asked as a chat on request: one start token, shots as earlier turns, ids on record."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from flows.compose import compose
from llm_core.config import ConfigError, build
from llm_core.huggingface.export import load_model
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.generation import generate
from tasks.evaluation import stage
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, SuitesConfig
from tasks.evaluation.prompts import choose_shots, messages_of
from tasks.evaluation.suite_parts import OWN, Judged, chat_template, score_suites
from tasks.evaluation.suite_results import ROWS_FILE
from tasks.evaluation.suite_scores import score_items
from tasks.evaluation.suites import Suite, load_suite
from tasks.runtime.parts import serial
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tests.support.chat_templates import CHATML, INSTRUCTIONS
from tests.support.data.trained_run import Run
from tests.support.data.written_suites import question, write_suite
from tests.support.served_models import publish_model

CHAT = EvaluateConfig(chat=True, shots=2)


@pytest.fixture(scope="module", params=[CHATML, INSTRUCTIONS], ids=["chatml", "instructions"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    records = [question(f"{n}", f"Is {n} odd?", ["yes", "no </s>"], n % 2) for n in range(5)]
    return load_suite("x", write_suite(tmp_path, "x", records))


def test_a_chat_begins_once_and_its_answers_follow_its_last_token(
    folder: Path, suite: Suite
) -> None:
    model, tokenizer = load_model(folder).double(), load_tokenizer(folder)
    template = chat_template(folder, tokenizer)
    rows = score_items(model, tokenizer, suite, suite.items, 500, CHAT, [], template)
    (start,) = tokenizer.start_ids
    for row, item in zip(rows, suite.items, strict=True):
        ids = row["prompt_ids"]
        messages = messages_of(suite, item, 2, CHAT.seed)
        assert list(ids) == template.encode(messages) and len(ids) == row["prompt_tokens"]
        assert ids[0] == start and list(ids).count(start) == 1
        assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
        for choice, text in zip(row["choices"], item.choices, strict=True):
            answer = tokenizer.encode(text).tolist()  # what it spells is text
            assert tokenizer.eos_id not in answer
            with torch.no_grad():
                logits = model(torch.tensor([[*ids, *answer[:-1]]]))[0].log_softmax(-1)
            picked = logits[len(ids) - 1 :].gather(-1, torch.tensor(answer)[:, None])
            assert choice["logprob"] == pytest.approx(float(picked.sum()), abs=1e-6)
            assert choice["tokens"] == len(answer) and not choice["is_merged"]


def test_a_chat_is_another_prompt_than_its_text(folder: Path, suite: Suite) -> None:
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    template = chat_template(folder, tokenizer)
    chats = score_items(model, tokenizer, suite, suite.items, 500, CHAT, [], template)
    plain = score_items(model, tokenizer, suite, suite.items, 500, CHAT, [])
    for one, other in zip(chats, plain, strict=True):
        assert one["prompt_digest"] != other["prompt_digest"]
        assert one["prompt_ids"] != other["prompt_ids"]


def test_generated_answers_are_asked_for_in_the_chat(folder: Path, tmp_path: Path) -> None:
    records = [{"id": str(n), "question": f"Say {n}", "answer": "x"} for n in range(3)]
    lines = {"kind": "generation", "metrics": ["f1"], "max_new_tokens": 3}
    made = load_suite("y", write_suite(tmp_path, "y", records, **lines))
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    template = chat_template(folder, tokenizer)
    config = dataclasses.replace(CHAT, shots=0)
    for row, item in zip(
        score_items(model, tokenizer, made, made.items, 500, config, [], template),
        made.items,
        strict=True,
    ):
        assert list(row["prompt_ids"]) == template.encode(messages_of(made, item, 0, 0))


def test_a_choice_is_scored_after_its_stem_as_shots_write_both(
    folder: Path, tmp_path: Path
) -> None:
    model, tokenizer = load_model(folder).double(), load_tokenizer(folder)
    template = chat_template(folder, tokenizer)
    record = question("a", "The king and the lord:", ["was late", "was late"], 1)
    records = [record | {"of": [" king", " lord"]}, record | {"id": "b", "of": [" one", " two"]}]
    records[1]["question"] = "Who?"
    made = load_suite("x", write_suite(tmp_path, "x", records, columns={"stems": "of"}))
    config = dataclasses.replace(CHAT, shots=0)
    first, _ = score_items(model, tokenizer, made, made.items, 500, config, [], template)
    shot = messages_of(made, made.items[1], 1, 0)[1]["content"]
    assert shot == "lord was late"
    for choice, stem in zip(first["choices"], ("king", "lord"), strict=True):
        read, reply = (tokenizer.encode(text).tolist() for text in (stem, f"{stem} was late"))
        assert reply[: len(read)] == read  # no border is merged here
        ids = [*template.encode(messages_of(made, made.items[0], 0, 0)), *reply]
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
        scored = reply[len(read) :]
        picked = logits[-len(scored) :].gather(-1, torch.tensor(scored)[:, None])
        assert choice["logprob"] == pytest.approx(float(picked.sum()), abs=1e-6)
        assert choice["tokens"] == len(scored)


def test_an_answer_ends_where_the_folder_of_its_model_says(folder: Path, tmp_path: Path) -> None:
    """At the end of a turn as well as at that of a text."""
    tokenizer = load_tokenizer(folder)
    records = [{"id": "0", "question": "Say it", "answer": "x"}]
    lines = {"kind": "generation", "metrics": ["f1"], "max_new_tokens": 6, "stop": []}
    suite_folder = write_suite(tmp_path, "y", records, **lines)
    known = EvaluateStageConfig(EvaluateConfig(chat=True), suites=SuitesConfig((suite_folder,)))

    def answer_tokens(name: str, ends: list[int]) -> int:
        model_folder = shutil.copytree(folder, tmp_path / name)
        (model_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        judged = Judged(OWN, model_folder, model_folder, 500)
        score_suites([judged], {}, known, tmp_path / name, serial)
        (row,) = pq.read_table(tmp_path / name / ROWS_FILE).to_pylist()
        return row["answer_tokens"]

    made = load_suite("y", suite_folder)
    template = chat_template(folder, tokenizer)
    ids = template.encode(messages_of(made, made.items[0], 0, 0))
    free = generate(load_model(folder), [ids], GREEDY, [6], [])[0]
    assert tokenizer.eos_id not in free
    assert answer_tokens("free", [tokenizer.eos_id]) == 6
    assert answer_tokens("turns", [tokenizer.eos_id, free[2]]) == free.index(free[2])


def test_no_item_is_shown_its_own_answer(suite: Suite) -> None:
    for item in suite.items:
        assert item not in choose_shots(suite, item, 4, seed=3)
        assert item.question not in [m["content"] for m in messages_of(suite, item, 4, 3)[:-1]]


def test_a_missing_template_is_noticed_before_a_document_is_scored(
    small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "score", lambda *_: pytest.fail("a document is scored"))
    folder = write_suite(tmp_path, "x", [question("0", "Is it odd?", ["yes", "no"], 0)])
    config = EvaluateStageConfig(EvaluateConfig(chat=True), suites=SuitesConfig((folder,)))
    parents = small_run.documents, small_run.tokenizer, small_run.shards, small_run.train
    with pytest.raises(ConfigError, match="needs a chat template"):
        stage.evaluate_model(*parents, tmp_path, config)


def test_a_tokenizer_without_a_template_is_an_error(tmp_path: Path) -> None:
    folder = publish_model(tmp_path / "model")
    tokenizer: Tokenizer = load_tokenizer(folder)
    with pytest.raises(ConfigError, match=r"evaluate\.chat \(true\) needs a chat template"):
        chat_template(folder, tokenizer)
    with pytest.raises(ConfigError, match=r"evaluate\.chat \(true\).*tokenizer=chat"):
        compose(["source=sample", "suites=mini", "evaluate.chat=true"])
    compose(["source=sample", "suites=mini", "evaluate.chat=true", "tokenizer=chat"])
    with pytest.raises(ConfigError, match="compares plain prompts; set chat=false"):
        build(EvaluateConfig, {"backend": "lm_eval", "chat": True})
