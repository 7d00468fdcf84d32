"""One compiled loop over int8 layers gives what the layers give one by one, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.one_row import OneRow
from llm_core.kernels.cpu.decode import multiply_rounded
from llm_core.model.transformer import Transformer
from llm_core.quantize.formats import Rounded
from llm_core.quantize.model import round_model
from llm_core.quantize.on_cpu import OrderedInt8, most_of_x
from tests.support.engine.small_model import make_model, random_ids

pytestmark = pytest.mark.skipif(most_of_x() is None, reason="torch has no FBGEMM here")
PROMPT = random_ids(21, seed=4)


def int8_model(**settings: Any) -> Transformer:
    return round_model(make_model(dtype=torch.float32, **settings), "int8")


def logprobs(model: Transformer, one_row: bool, **settings: Any) -> tuple[list[int], list[float]]:
    """An answer of one engine and the log-probability of each of its tokens."""
    engine = Engine(model, EngineConfig(block_tokens=4, cache_tokens=128, **settings), [])
    assert (engine.one_row is not None) == settings.get("copy_weights", True)
    if not one_row:
        engine.one_row = None
    request = engine.submit(PROMPT, SamplingParams(seed=3), 12, logprobs=1)
    found: list[float] = []
    while engine.busy:
        found += [new.logprob for new in engine.step() if new.logprob is not None]
    return request.answers[0], found


@pytest.mark.parametrize("settings", [{}, {"tied": False}, {"num_kv_heads": 4}, {"window": 7}])
def test_answers_by_the_loop_are_those_by_layers_to_the_last_bit(settings: dict[str, Any]) -> None:
    model = int8_model(**settings)
    by_layers = logprobs(model, one_row=False)
    assert logprobs(model, one_row=True) == by_layers and len(by_layers[1]) == 12


def test_every_token_of_one_sequence_goes_through_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = {"hidden": 0, "logits": 0}

    def count(name: str) -> None:
        real = getattr(OneRow, name)

        def counted(self: OneRow, given: Any) -> Any:
            calls[name] += 1
            return real(self, given)

        monkeypatch.setattr(OneRow, name, counted)

    count("hidden")
    count("logits")
    logprobs(int8_model(), one_row=True)
    assert calls == {"hidden": 11, "logits": 12}  # the first token is of the prompt's pass


def test_an_answer_does_not_depend_on_who_is_written_beside_it() -> None:
    model = int8_model()
    engine = Engine(model, EngineConfig(block_tokens=4, cache_tokens=256), [])
    first = engine.submit(PROMPT, GREEDY, 14)
    others = [engine.submit(random_ids(9, seed=seed), GREEDY, seed) for seed in (3, 7)]
    while engine.busy:
        engine.step()
    assert all(other.finishes == ["length"] for other in others)
    alone = Engine(model, EngineConfig(block_tokens=4, cache_tokens=256), [])
    request = alone.submit(PROMPT, GREEDY, 14)
    while alone.busy:
        alone.step()
    assert request.answers == first.answers


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 70), st.integers(1, 150), st.integers(-30, 30), st.integers(0, 10**6))
def test_products_of_whole_numbers_are_those_of_the_processor_to_the_last_bit(
    outputs: int, inputs: int, power: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = outputs, inputs
    numbers = torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    scale = torch.rand(outputs, generator=generator)
    x_1I = torch.randn(1, inputs, generator=generator) * 2.0**power
    expected = OrderedInt8.of(Rounded("int8", inputs, numbers, scale)).product(x_1I)
    assert torch.equal(product(numbers, scale, x_1I), expected)


def product(numbers: torch.Tensor, scale: torch.Tensor, x_1I: torch.Tensor) -> torch.Tensor:
    y_1O, codes_I = torch.full((1, len(numbers)), 5.0), np.empty(x_1I.shape[1], np.int16)
    arrays = numbers.numpy(), scale.numpy(), x_1I.numpy()[0], most_of_x(), codes_I
    multiply_rounded(*arrays, y_1O.numpy()[0])
    return y_1O


def test_a_row_of_zeros_stays_zeros_and_what_is_no_number_makes_none() -> None:
    numbers, scale = torch.full((9, 40), 127, dtype=torch.int8), torch.ones(9)
    assert not product(numbers, scale, torch.zeros(1, 40)).any()
    for wrong in (torch.nan, torch.inf):
        x_1I = torch.ones(1, 40)
        x_1I[0, 7] = wrong
        assert not product(numbers, scale, x_1I).isfinite().any()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.own_blocks[1].ffn.into.register_parameter("bias", _bias(96)),
        lambda model: setattr(model.own_blocks[2].attention, "own_split", print),
        lambda model: setattr(model.own_blocks[0].ffn, "own_way", print),
        lambda model: setattr(model.own_blocks[0], "add_norm", print),
        lambda model: setattr(model.head, "format", "int4"),
    ],
)
def test_what_the_loop_does_not_compute_is_left_to_the_layers(change: Any) -> None:
    model = int8_model(tied=False)
    cache = Engine(model, EngineConfig(), []).cache
    assert OneRow.of(model, cache, copy_weights=True) is not None
    assert OneRow.of(model, cache, copy_weights=False) is None
    change(model)
    assert OneRow.of(model, cache, copy_weights=True) is None


def _bias(width: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(width), requires_grad=False)


@pytest.mark.parametrize("settings", [{"cache": "int8"}, {"copy_weights": False}])
def test_rounded_caches_and_models_that_may_not_be_copied_have_no_loop(
    settings: dict[str, Any],
) -> None:
    assert Engine(int8_model(), EngineConfig(**settings), []).one_row is None
    assert Engine(make_model(dtype=torch.float32), EngineConfig(), []).one_row is None


@pytest.mark.parametrize(
    ("spare", "rows", "by_loop"), [(0, 1, True), (-1, 1, False), (0, 2, False)]
)
def test_a_head_that_several_threads_read_best_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch, spare: int, rows: int, by_loop: bool
) -> None:
    model = int8_model()
    one_row = Engine(model, EngineConfig(block_tokens=4, cache_tokens=128), []).one_row
    assert one_row is not None
    numbers_VC, _ = one_row._head
    hidden_BC = torch.randn(rows, numbers_VC.shape[1], generator=torch.Generator().manual_seed(5))
    expected_BV, calls = model.logits(hidden_BC), []
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr("llm_core.infer.cpu.few_rows.SERIAL_BYTES", numbers_VC.nbytes + spare)
    monkeypatch.setattr(
        "llm_core.kernels.cpu.decode.multiply_rounded",
        lambda *given: calls.append(multiply_rounded(*given)),
    )
    assert torch.equal(one_row.logits(hidden_BC), expected_BV) and bool(calls) == by_loop
