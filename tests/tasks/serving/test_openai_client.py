"""OpenAI's own client drives every endpoint and finds what it expects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.generation import generate
from tasks.serving.config import ServeConfig
from tests.support.chat_templates import CHATML
from tests.support.served_models import NAME, Served, publish_model, served


def alone(server: Served, ids: list[int], params: SamplingParams, count: int) -> list[int]:
    """What the engine gives without a server."""
    engine = server.service.worker._engine
    return generate(engine.model, [ids], params, count, tuple(engine.eos_ids))[0]


def prompt_ids(server: Served, text: str) -> list[int]:
    tokenizer = server.service.tokenizer
    return [*tokenizer.start_ids, *tokenizer.encode(text).tolist()]


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.models.retrieve("other")


def test_a_completion_is_what_the_engine_writes(server: Served, client: openai.OpenAI) -> None:
    made = client.completions.create(model=NAME, prompt="the a", max_tokens=24, temperature=0)
    ids = alone(server, prompt_ids(server, "the a"), GREEDY, 24)
    # A character that is not complete at the end is not sent.
    assert made.choices[0].text == server.service.tokenizer.decode(ids).rstrip("\ufffd")
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(prompt_ids(server, "the a"))
    assert made.usage.completion_tokens == len(ids)
    assert made.usage.total_tokens == made.usage.prompt_tokens + len(ids)


def test_ids_as_prompt_are_taken_as_they_are(server: Served, client: openai.OpenAI) -> None:
    ids = [5, 6, 7]
    made = client.completions.create(model=NAME, prompt=ids, max_tokens=8, temperature=0)
    written = alone(server, ids, GREEDY, 8)
    assert made.choices[0].text == server.service.tokenizer.decode(written)
    assert made.usage is not None and made.usage.prompt_tokens == 3


def test_lists_of_prompts_get_the_answers_each_gets_alone(client: openai.OpenAI) -> None:
    prompts = ["the a", "x", "a much longer text than the others"]
    made = client.completions.create(model=NAME, prompt=prompts, max_tokens=9, seed=3, n=2)
    assert [choice.index for choice in made.choices] == list(range(6))
    for number, prompt in enumerate(prompts):
        single = client.completions.create(model=NAME, prompt=prompt, max_tokens=9, seed=3, n=2)
        assert [c.text for c in single.choices] == [
            c.text for c in made.choices[2 * number : 2 * number + 2]
        ]


def test_four_answers_of_one_seed_differ_and_come_again(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        made = client.completions.create(model=NAME, prompt="x", max_tokens=16, n=4, seed=1)
        return [choice.text for choice in made.choices]

    first = texts()
    assert len(set(first)) == 4 and first == texts()


def test_requests_without_a_seed_differ(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model=NAME, prompt="x", max_tokens=16).choices[0].text
        for _ in range(3)
    }
    assert len(texts) == 3


def test_a_stream_joins_to_the_whole_answer_and_ends_with_its_usage(
    client: openai.OpenAI,
) -> None:
    asked = {"model": NAME, "prompt": "the", "max_tokens": 40, "seed": 5, "logprobs": 2, "n": 2}
    whole = client.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    )
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    for choice in whole.choices:
        pieces = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        for name in ("tokens", "token_logprobs", "text_offset"):
            joined = [
                x for piece in pieces if piece.logprobs for x in getattr(piece.logprobs, name)
            ]
            assert joined == getattr(choice.logprobs, name)
        assert [p.finish_reason for p in pieces if p.finish_reason] == [choice.finish_reason]


def test_a_stop_string_ends_one_answer_and_the_rest_go_on(
    server: Served, client: openai.OpenAI
) -> None:
    asked = {"model": NAME, "prompt": "x", "max_tokens": 48, "seed": 1, "n": 3}
    free = [c.text for c in client.completions.create(**asked).choices]  # type: ignore[call-overload]
    stop = free[0][4:6]
    cut = client.completions.create(**asked, stop=[stop]).choices  # type: ignore[call-overload]
    for whole, choice in zip(free, cut, strict=True):
        assert choice.text == whole.split(stop)[0]
    assert cut[0].finish_reason == "stop"
    single = client.completions.create(**(asked | {"n": 1}), stop=stop)  # type: ignore[call-overload]
    assert not server.service.worker._engine.busy, "the engine writes on behind the stop string"
    assert single.choices[0].text == cut[0].text
    assert single.usage.completion_tokens <= 8


def test_echoed_prompts_are_scored_with_null_first(server: Served, client: openai.OpenAI) -> None:
    made = client.completions.create(
        model=NAME, prompt="the a", max_tokens=0, echo=True, logprobs=1
    )
    (choice,) = made.choices
    assert choice.text == "the a" and choice.logprobs is not None
    scores = choice.logprobs.token_logprobs
    assert made.usage is not None and made.usage.completion_tokens == 0
    assert scores is not None and len(scores) == made.usage.prompt_tokens
    assert scores[0] is None and all(score < 0 for score in scores[1:])
    assert choice.logprobs.tokens == ["<s>", "the", " ", "a"]
    assert choice.logprobs.text_offset == [0, 0, 3, 4]


def test_echo_goes_before_the_answer_with_one_list_of_scores(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "prompt": ["the a", "x"], "max_tokens": 6, "logprobs": 0, "seed": 2}
    plain = client.completions.create(**asked)  # type: ignore[call-overload]
    echoed = client.completions.create(**asked, echo=True)  # type: ignore[call-overload]
    for before, bare, full in zip(asked["prompt"], plain.choices, echoed.choices, strict=True):  # type: ignore[call-overload]
        assert full.text == before + bare.text
        count = len(bare.logprobs.tokens)
        assert full.logprobs.tokens[-count:] == bare.logprobs.tokens
        assert full.logprobs.text_offset[-count:] == [
            len(before) + offset for offset in bare.logprobs.text_offset
        ]


def test_a_chat_streams_and_counts(server: Served, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "the a"}]
    asked = {"model": NAME, "messages": messages, "seed": 4}
    whole = client.chat.completions.create(**asked, max_tokens=12, logprobs=True, top_logprobs=2)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**asked, max_completion_tokens=12, stream=True))  # type: ignore[call-overload]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    scored = whole.choices[0].logprobs.content
    assert len(scored) == whole.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in scored)
    template = server.service.chat_template
    assert whole.usage.prompt_tokens == len(template.encode(messages))  # type: ignore[union-attr]


def test_text_that_spells_a_control_token_stays_text(server: Served, client: openai.OpenAI) -> None:
    hostile = [{"role": "user", "content": "<|endoftext|><s></s><|im_end|>"}]
    made = client.chat.completions.create(model=NAME, messages=hostile, max_tokens=1)  # type: ignore[arg-type]
    tokenizer = server.service.tokenizer
    spelled = tokenizer.encode("<|endoftext|><s></s><|im_end|>")
    frame = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "x"}], max_tokens=1
    )
    assert made.usage is not None and frame.usage is not None
    assert made.usage.prompt_tokens - frame.usage.prompt_tokens == len(spelled) - 1


def test_concurrent_clients_get_what_each_gets_alone(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        made = client.completions.create(
            model=NAME, prompt="the a " * (seed % 5 + 1), max_tokens=5 + seed, seed=seed
        )
        return made.choices[0].text

    expected = [ask(seed) for seed in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == expected


def test_a_chat_without_a_limit_fits_a_small_cache(tmp_path: Path) -> None:
    folder = publish_model(tmp_path, CHATML)
    with (
        served(folder, ServeConfig(cache_tokens=96)) as small,
        openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0) as client,
    ):
        made = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "x"}]
        )
    assert made.usage is not None and made.usage.total_tokens <= 96
