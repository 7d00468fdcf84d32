"""What a client may not ask is refused in OpenAI's form: one line that names what, and no
traceback."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.serving.config import MIN_KEY_CHARS, ServeConfig
from tasks.serving.failures import ApiError, invalid
from tasks.serving.requests import CompletionRequest, read_body
from tests.support.chat_templates import INSTRUCTIONS
from tests.support.served_models import NAME, Served, publish_model, served

KEY = "k" * MIN_KEY_CHARS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = publish_model(tmp_path_factory.mktemp("model"), INSTRUCTIONS)
    with served(folder, ServeConfig(max_body_bytes=20_000, max_choices=8)) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(publish_model(tmp_path_factory.mktemp("model")), api_key=KEY) as running:
        yield running


def send(
    server: Served,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """(status, body) of an answer."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(server.url + path, content, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def refused(answer: tuple[int, Any], status: int = 400) -> str:
    """The message of a refusal in OpenAI's form."""
    code, body = answer
    assert code == status
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert "\n" not in message and "Traceback" not in message
    return message  # type: ignore[no-any-return]


COMPLETION = {"model": NAME, "prompt": "x", "max_tokens": 1}
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n:"),
        ({"n": 9}, "serve.max_choices"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1000}, "the model reads 512 in all"),
        ({"max_tokens": True}, "max_tokens"),
        ({"prompt": []}, "empty list"),
        ({"prompt": [[]]}, "empty list"),
        ({"prompt": [1, 100_000]}, "ids go from 0 to"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "the " * 2000}, "shorten"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"stop_token_ids": [100_000], "min_tokens": 1}, "stop_ids names token 100000"),
        ({"top_k": 2**63}, "top_k"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"temperatur": 1}, "temperatur is not a known parameter"),
    ],
)
def test_a_completion_that_cannot_be_is_400(
    server: Served, change: dict[str, Any], reason: str
) -> None:
    assert reason in refused(send(server, "/v1/completions", COMPLETION | change))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0"),
        ({"messages": [{"role": "system", "content": "x"}]}, "only user and assistant speak"),
        ({"tools": []}, "tools is not a known parameter"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs=true"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 600}, "the model reads 512 in all"),
    ],
)
def test_a_chat_that_cannot_be_is_400(server: Served, change: dict[str, Any], reason: str) -> None:
    assert reason in refused(send(server, "/v1/chat/completions", CHAT | change))


def test_the_engine_survives_every_refusal(server: Served) -> None:
    status, body = send(server, "/v1/completions", COMPLETION)
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] <= 1
    assert send(server, "/health")[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"prompt": NaN}',
        b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}",
        b"[" * 5000,
        b'{"prompt": "\\ud800"}',
    ],
)
def test_a_body_that_is_no_request_is_400(server: Served, body: bytes) -> None:
    refused(send(server, "/v1/completions", body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": [-1] * 200_000}, "prompt"),
        ({"prompt": ["x", *[1] * 200_000]}, "prompt"),
        ({"prompt": [[-1] * 200_000]}, "prompt"),
        ({"prompt": "x", **{f"k{number}": 1 for number in range(100_000)}}, "100001 names"),
        ({"prompt": [[1]] * 50_000}, "16384 lists and objects"),
    ],
)
def test_a_long_body_with_many_faults_is_refused_at_the_first_of_them_and_by_one_line(
    body: dict[str, Any], reason: str
) -> None:
    content = json.dumps(body).encode()
    with pytest.raises((ApiError, ValidationError)) as error:
        CompletionRequest.model_validate(read_body(content))
    refusal = error.value if isinstance(error.value, ApiError) else invalid(error.value)
    assert isinstance(error.value, ApiError) or error.value.error_count() <= 4
    assert reason in str(refusal)


def test_of_too_many_prompts_none_is_encoded(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    monkeypatch.setattr(server.service.tokenizer, "encode", encoded.append)
    message = refused(send(server, "/v1/completions", COMPLETION | {"prompt": ["x"] * 9}))
    assert "serve.max_choices" in message and not encoded


def test_a_body_is_read_to_64_levels_and_refused_beyond() -> None:
    assert read_body(b"[" * 64 + b"]" * 64)
    for levels in (65, 500):
        with pytest.raises(ApiError, match="nested deeper than 64 levels"):
            read_body(b"[" * levels + b"]" * levels)


def test_a_body_that_is_too_long_is_413_announced_or_not(server: Served) -> None:
    refused(send(server, "/v1/completions", b" " * 30_000), 413)
    chunked = urllib.request.Request(
        server.url + "/v1/completions", iter([b" " * 5_000] * 6), {"Transfer-Encoding": "chunked"}
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(chunked, timeout=20)
    assert error.value.code == 413


def test_unknown_paths_and_methods_have_the_same_form(server: Served) -> None:
    refused(send(server, "/v1/nothing"), 404)
    refused(send(server, "/v1/completions"), 405)


def test_pages_of_other_sites_and_rebound_names_are_refused(server: Served) -> None:
    own = f"http://127.0.0.1:{server.port}"
    assert send(server, "/v1/completions", COMPLETION, {"Origin": own})[0] == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
        refused(send(server, "/v1/completions", COMPLETION, {"Origin": origin}), 403)
    message = refused(send(server, "/v1/models", headers={"Host": "evil.example"}), 403)
    assert "serve.host_names" in message


def test_without_the_key_nothing_but_the_page_and_health_answer(guarded: Served) -> None:
    for path in ("/", "/chat.js", "/chat.css", "/health"):
        assert send(guarded, path)[0] == 200
    for path in ("/v1/models", "/metrics"):
        refused(send(guarded, path), 401)
        refused(send(guarded, path, headers={"Authorization": f"Bearer {KEY[1:]}"}), 401)
        assert send(guarded, path, headers={"Authorization": f"Bearer {KEY}"})[0] == 200


def test_a_model_without_a_template_refuses_chats_and_says_how_to_give_one(
    guarded: Served,
) -> None:
    answer = send(guarded, "/v1/chat/completions", CHAT, {"Authorization": f"Bearer {KEY}"})
    assert "serve.chat_template=FILE" in refused(answer)


def test_metrics_count_what_was_asked(server: Served) -> None:
    def value(name: str) -> float:
        lines = send(server, "/metrics")[1].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    answered = 'textmill_requests_total{path="/v1/completions",status="200"}'
    before, tokens = value(answered), value("textmill_new_tokens_total")
    _, body = send(server, "/v1/completions", COMPLETION | {"max_tokens": 7})
    assert value(answered) == before + 1
    used = json.loads(body)["usage"]["completion_tokens"]
    assert value("textmill_new_tokens_total") == tokens + used
    assert value("textmill_cache_blocks_used") == 0
    send(server, "/some/path")
    assert value('textmill_requests_total{path="other",status="404"}') >= 1
