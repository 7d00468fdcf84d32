"""`textmill generate` takes any prompt, and obeys the settings of the evaluation."""

from __future__ import annotations

import io
from typing import Any

import pytest

from flows.commands.models import read_prompt
from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import SamplingParams
from tests.flows.conftest import RunCli


@pytest.mark.usefixtures("stand_in_stages")
def test_generate_samples_as_the_evaluation_does(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.evaluation import generate

    asked: dict[str, Any] = {}

    def answer(*given: Any) -> generate.Answer:
        asked.update(prompt=given[2], params=given[3], limit=given[4], device=given[6])
        return generate.Answer("", 3, reached_max_seq_len=True)

    monkeypatch.setattr(generate, "generate_text", answer)
    assert run_cli("train")["code"] == 0
    settings = [
        "generate.seed=2",
        "generate.top_k=7",
        "generate.temperature=0.5",
        "generate.max_new_tokens=9",
    ]
    result = run_cli("generate", "Once", *settings, "generate.device=cpu")
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.95, seed=2)
    assert result["code"] == 0 and asked == {
        "prompt": "Once",
        "params": params,
        "limit": 9,
        "device": "cpu",
    }
    assert (
        "stops after 3 of generate.max_new_tokens (9) tokens: the model's max_seq_len is full"
        in result["err"]
    )


@pytest.mark.parametrize(
    ("words", "prompt", "overrides"),
    [
        (["Once", "run=demo"], "Once", ["run=demo"]),
        (["x=1"], "x=1", []),
        (["run = 1", "a=b"], "run = 1", ["a=b"]),
        ([""], "", []),
        (["--", "-5 is"], "-5 is", []),
        (["--", "run=demo", "run=demo"], "run=demo", ["run=demo"]),
        (["run=demo", "--", "--help", "a=b"], "--help", ["run=demo", "a=b"]),
        (["--", "--"], "--", []),
        (["--", "-"], "-", []),
        (["--", "caf\u00e9\n"], "caf\u00e9\n", []),
    ],
)
def test_a_prompt_may_be_any_text(words: list[str], prompt: str, overrides: list[str]) -> None:
    assert read_prompt(words) == (prompt, overrides)
    with pytest.raises(ConfigError, match="needs a prompt after --"):
        read_prompt([*overrides, "--"])


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (b"", ""),
        (b"\n", ""),
        ("caf\u00e9\n".encode(), "caf\u00e9"),
        (b"a\n\nb=c\n\n", "a\n\nb=c\n"),
    ],
)
def test_a_prompt_may_come_from_stdin(
    given: bytes, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), "ascii"))
    assert read_prompt(["-", "run=demo"]) == (prompt, ["run=demo"])


def test_a_prompt_on_stdin_that_is_not_utf8_is_one_line(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    result = run_cli("generate", "-")
    assert (
        result["code"] == 2 and "stdin is not UTF-8 (byte 0xe9 at 3); convert it" in result["err"]
    )
    assert "rename" not in result["err"] and len(result["err"].splitlines()) == 1
