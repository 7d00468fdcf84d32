"""Patterns of attention, layer by layer: what they name, in training and with a cache, in every way
that they are computed."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.config import ConfigError, build, key_config, to_plain
from llm_core.infer.cache.rows import MakeCache, paged_cache, static_cache
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.engine import EngineConfig
from llm_core.infer.equivalence import Shape, check_cache
from llm_core.infer.equivalence_layers import check_layers
from llm_core.infer.score_plan import Continuation
from llm_core.infer.scoring import score_continuations
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.pairs import num_keys
from llm_core.model.sparse.patterns import PRESETS, Pattern, attended, drawn_blocks
from llm_core.model.transformer import Transformer
from tests.support.engine.attention_patterns import PATTERNS
from tests.support.engine.drafts import engine_of
from tests.support.engine.small_model import make_model, random_ids

MIXED = (
    Pattern(block=4, blocks_before=1, num_global=2, random_blocks=1, seed=3),
    Pattern(),
    Pattern(window=2, dilation=2, stride=5),
)
"""One pattern a layer of the small model."""


def sparse_model(attention: tuple[Pattern, ...] = MIXED, num_kv_heads: int = 2) -> Transformer:
    plain = make_model(num_kv_heads)
    model = Transformer(dataclasses.replace(plain.config, attention=attention)).double().eval()
    model.load_state_dict(plain.state_dict())
    return model


def matrix(pattern: Pattern, length: int) -> np.ndarray:
    query, key = np.ogrid[:length, :length]
    found = attended(pattern, query, key)
    return (key <= query) & (True if found is None else found)


def test_presets_name_the_keys_that_the_papers_name() -> None:
    query, key = np.ogrid[:600, :600]
    causal, apart = key <= query, query - key
    for name, named in {
        "longformer": (apart < 512) | (key < 16),
        "sparse_strided": (apart < 128) | (apart % 128 == 0),
        "sparse_fixed": (query // 128 == key // 128) | (key % 128 >= 120),
    }.items():
        assert (matrix(PRESETS[name][0], 600) == (causal & named)).all(), name
    (bigbird,) = PRESETS["bigbird"]
    block_sees = matrix(bigbird, 1920).reshape(30, 64, 30, 64).any(axis=(1, 3))
    for block in range(30):
        near = {0, max(0, block - 1), block}
        assert set(np.flatnonzero(block_sees[block])) == near | set(drawn_blocks(bigbird, block))


@given(PATTERNS, st.integers(1, 40))
@settings(deadline=None)
def test_keys_are_counted_without_looking_at_each(pattern: Pattern, length: int) -> None:
    assert num_keys(pattern, length).tolist() == matrix(pattern, length).sum(1).tolist()
    distance = np.arange(length)[:, None] - np.arange(length)
    if pattern.reach and not pattern.num_global:
        assert not (matrix(pattern, length) & (distance >= pattern.reach)).any()


def test_drawn_blocks_depend_on_the_seed_and_the_block_alone_and_all_blocks_occur() -> None:
    pattern = Pattern(block=4, random_blocks=2, seed=7)
    long = matrix(pattern, 1200)
    assert (matrix(pattern, 400) == long[:400, :400]).all()
    drawn = np.stack(drawn_blocks(pattern, np.arange(300)))
    assert (drawn[:, 1:] < np.arange(1, 300)).all()
    assert set(drawn.flat) >= set(range(40))
    tensors = torch.stack(drawn_blocks(pattern, torch.arange(300, dtype=torch.int32)))
    assert tensors.tolist() == drawn.tolist()
    others = np.stack(drawn_blocks(dataclasses.replace(pattern, seed=8), np.arange(300)))
    assert (others != drawn).mean() > 0.8
    # As often early as late: a third of each block's draws is in the last third before it.
    late = (drawn[:, 30:] * 3 >= 2 * np.arange(30, 300)).mean()
    assert 0.27 < late < 0.4


def test_layers_take_patterns_in_turn_and_a_preset_is_its_patterns() -> None:
    config = make_model().config
    two = dataclasses.replace(config, num_layers=5, attention=MIXED[:2])
    assert two.patterns == (*MIXED[:2], *MIXED[:2], MIXED[0])
    assert dataclasses.replace(config, attention="bigbird").patterns == PRESETS["bigbird"] * 3
    windowed = dataclasses.replace(config, window=7, full_layers=(1,), qkv_bias=True)
    assert windowed.patterns == (Pattern(window=7), Pattern(), Pattern(window=7))
    assert build(ModelConfig, to_plain(two)) == two
    assert "attention" not in key_config(config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention": MIXED, "window": 4}, "attention .* and window"),
        ({"attention": [{"windows": 3}]}, "windows is not a known setting"),
        ({"attention": "longformers"}, "longformers.*did you mean longformer"),
        ({"attention": [{"block": 4, "summary": 5}]}, r"summary \(5\) must be at most block"),
        ({"attention": [{"block": 4, "random_blocks": 10**9}]}, "random_blocks .* at most 1024"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build(ModelConfig, to_plain(make_model().config) | changes)


def test_a_model_computes_each_layer_under_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sparse_model()
    ids = torch.tensor([random_ids(20, seed=1), random_ids(20, seed=2)])
    documents = torch.tensor([[0] * 7 + [1] * 13, [0] * 19 + [1]])
    found = model(ids, documents_BK=documents)
    logits, gradients = found, torch.autograd.grad(found.square().sum(), list(model.parameters()))

    def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: object, backend: str) -> Tensor:
        pattern = mask.pattern  # type: ignore[attr-defined]
        allowed = torch.zeros(2, 20, 20, dtype=torch.bool)
        for row, lengths in enumerate(([7, 13], [19, 1])):
            begin = 0
            for length in lengths:
                place = slice(begin, begin + length)
                allowed[row, place, place] = torch.tensor(matrix(pattern, length))
                begin += length
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed[:, None], -torch.inf)
        return scores.softmax(-1) @ v

    for block in model.own_blocks:
        monkeypatch.setattr(block.attention, "mix", by_hand)
    dense = model(ids, documents_BK=documents)
    expected = torch.autograd.grad(dense.square().sum(), list(model.parameters()))
    torch.testing.assert_close(logits, dense, rtol=0, atol=1e-10)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [static_cache, paged_cache])
@pytest.mark.parametrize("int8", [False, True])
def test_a_cache_gives_the_full_pass_at_every_layer(kind: MakeCache, int8: bool) -> None:
    model = sparse_model(num_kv_heads=4 if int8 else 1)
    make_cache = partial(kind, int8=True) if int8 else kind  # type: ignore[call-arg]
    checks = check_cache(model, [Shape(3, 24, 6)], 24, 0, make_cache, int8)
    checks += check_layers(model, 40, 0, make_cache, int8)
    assert len(checks) > 6 and [check for check in checks if not check.passed] == []


@pytest.mark.parametrize("kind", ["plain", "captured", "guessed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_engine_answers_as_whole_sequences_do(kind: str, dtype: torch.dtype) -> None:
    model = sparse_model().to(dtype)
    config = EngineConfig(cache_tokens=120, block_tokens=2, budget_tokens=11, max_running=2)
    engine = engine_of(kind, model, config)
    prefix = random_ids(24, seed=5)
    prompts = [[*prefix, *random_ids(n, seed=n)] for n in (1, 9, 12)]
    requests = [engine.submit(prompt, GREEDY, 14) for prompt in prompts]
    while engine.busy:
        engine.step()
    for request, prompt in zip(requests, prompts, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(14):
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert request.answers[0] == ids[len(prompt) :]


def test_answers_behind_one_context_are_scored_as_whole_sequences() -> None:
    model, context = sparse_model(), random_ids(13, seed=4)
    answers = [random_ids(n, seed=n) for n in (3, 1, 6)]
    group = [Continuation(tuple(context + answer), len(context)) for answer in answers]
    (scored,) = score_continuations(model, [group], 1 << 10)
    for answer, found in zip(answers, scored, strict=True):
        logits = model(torch.tensor([context + answer])).detach()[0].log_softmax(-1)
        expected = sum(float(logits[len(context) + n - 1, token]) for n, token in enumerate(answer))
        assert sum(found.logprobs) == pytest.approx(expected, abs=1e-9)
