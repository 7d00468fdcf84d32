"""Answers that are not those of full passes, or depend on anything but their request, are found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from llm_core.bench import answers
from llm_core.bench.answers import (
    MAX_BEHIND,
    check_answers,
    furthest_behind,
    greedy_behind,
    judge,
    rounding_noise,
)
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.engine import Engine
from llm_core.infer.requests import NewToken
from llm_core.quantize import on_cpu
from llm_core.quantize.formats import Format, round_weight
from llm_core.quantize.model import round_model
from tests.support.engine.small_model import make_model


def findings() -> dict[str, str]:
    return {each.name: each.finding for each in check_answers(make_model(), seed=0)}


def test_a_right_engine_passes_every_check() -> None:
    found = findings()
    assert list(found) == [
        "greedy", "batch", "chunks", "preempted", "prefix", "bursts", "stops", "stream",
    ]  # fmt: skip
    assert set(found.values()) == {""}


def broken_engine(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Engine, list[NewToken]], list[NewToken]]
) -> None:
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: change(self, step(self)))


def test_a_token_that_follows_from_neighbours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(engine: Engine, told: list[NewToken]) -> list[NewToken]:
        if engine.num_running > 3:
            for new in told:
                answer = new.request.answers[new.choice]
                answer[-1] = (answer[-1] + 1) % 61
        return told

    broken_engine(monkeypatch, change)
    found = findings()
    assert found["batch"] == "answer 0 differs at token 0" and found["greedy"]
    assert found["stops"] == ""


def test_a_token_that_is_told_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(engine: Engine, told: list[NewToken]) -> list[NewToken]:
        return [new._replace(id=0) if new.id else new for new in told]

    broken_engine(monkeypatch, change)
    found = findings()
    assert found["stream"].startswith("answer ")
    assert {name for name, finding in found.items() if finding} == {"stream"}


def test_an_end_that_is_told_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(engine: Engine, told: list[NewToken]) -> list[NewToken]:
        ends = [new._replace(id=None) for new in told if new.finish is not None]
        return [*told, *ends]

    broken_engine(monkeypatch, change)
    assert findings()["stream"] == "a token was told behind the end of its answer"


def test_an_engine_that_passes_its_stop_id_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = answers.SamplingParams

    def without_stops(**given: Any) -> Any:
        return real(**{name: value for name, value in given.items() if name != "stop_ids"})

    monkeypatch.setattr(answers, "SamplingParams", without_stops)
    assert findings()["stops"] == "answer 0 does not end before its stop id"


def test_checks_that_exercise_nothing_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    prompts, drawn = [[1, 2]], [[3]]
    assert "nothing was interrupted" in answers._preempted(model, prompts, drawn, 512).finding
    monkeypatch.setattr(
        answers, "_engine", lambda model, **given: Engine(
            model, answers.EngineConfig(prefix_cache=False), []
        )
    )  # fmt: skip
    assert answers._prefix(model, prompts, drawn).finding == "no prefix was found again"


def test_greedy_answers_in_float32_are_the_best_of_full_passes() -> None:
    model = make_model(dtype=torch.float32)
    found = greedy_behind(model, seed=0)
    assert found.is_right and found.allowed == MAX_BEHIND[torch.float32]
    behind = furthest_behind(model, [[1, 2, 3]], [[0]]), furthest_behind(model, [[1, 2, 3]], [[1]])
    assert max(behind) > 1


@pytest.mark.parametrize("format", ["int8", "int4"])
@torch.no_grad()
def test_answers_of_kernels_that_round_lie_behind_by_no_more_than_rounding(format: Format) -> None:
    if on_cpu.order(round_weight(torch.ones(2, 64), format)) is None:
        pytest.skip("this processor has no kernel for the format")
    model = round_model(make_model(dtype=torch.float32, tied=False), format)
    found = greedy_behind(model, seed=0)
    assert found.is_right and MAX_BEHIND[torch.float32] < found.allowed < 0.5
    # What the kernels change of logits is as much as their definition says.
    exact = copy.deepcopy(model).double()
    ids = list(range(40))
    expected, got = (each.logits(each.hidden(torch.tensor([ids]))[0]) for each in (exact, model))
    measured = float(((got - expected).std(1) / expected.std(1)).square().mean().sqrt())
    assert measured == pytest.approx(rounding_noise(exact, ids), rel=0.5)


def test_a_kernel_that_always_multiplies_wrongly_has_wrong_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if on_cpu.most_of_x() is None:
        pytest.skip("torch has no FBGEMM for this processor")
    model, prompts = round_model(make_model(dtype=torch.float32, tied=False), "int8"), [[1], [7, 3]]
    right = answers._answers(model, prompts, GREEDY, copy_weights=False)
    assert judge(model, prompts, right).is_right
    real = on_cpu.OrderedInt8.product
    monkeypatch.setattr(on_cpu.OrderedInt8, "product", lambda self, x: real(self, x.roll(1, -1)))
    wrong = answers._answers(model, prompts, GREEDY, copy_weights=False)
    # Full passes agree with them, but the weights do not.
    assert furthest_behind(model, prompts, wrong) < 0.1
    assert not judge(model, prompts, wrong).is_right
