"""Kernels for few rows compute what torch computes, and leave the rest to torch."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from llm_core.infer.cache.attention import attend_ragged
from llm_core.infer.cpu import few_rows
from llm_core.infer.cpu.products import speed_up
from llm_core.kernels.cpu import decode
from llm_core.model.attention import split_together
from llm_core.model.feed_forward import gated
from llm_core.model.norm import LayerNorm, RMSNorm, add_then_norm
from llm_core.model.rope import rope_tables
from llm_core.model.sparse.patterns import Pattern
from tests.support.engine.small_model import make_model


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.sampled_from([(1, 1, 8), (2, 2, 16), (3, 4, 6)]),
    st.sampled_from([0, 1, 7, 100]),
    st.integers(0, 10**6),
)
def test_attention_of_keys_where_they_lie_is_that_of_copies(
    lengths: list[int], heads: tuple[int, int, int], window: int, seed: int
) -> None:
    groups, shared_by, width = heads
    rows, size, most = len(lengths), 4, 10
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, rows * most, size, groups, width, generator=generator)
    tables = torch.randperm(rows * most, generator=generator).view(rows, most).int()
    lengths_N = torch.tensor(lengths, dtype=torch.int32)
    q = torch.randn(rows, groups * shared_by, width, generator=generator)
    k, v = torch.randn(2, rows, groups, width, generator=generator)
    mixed = few_rows.attend_blocks(q, k, v, keys, values, tables, lengths_N, window)
    for row, length in enumerate(lengths):
        at = tables[row, (length - 1) // size].long(), (length - 1) % size
        assert torch.equal(keys[at], k[row]) and torch.equal(values[at], v[row])
    copies = (x[tables.long()].flatten(1, 2).transpose(1, 2) for x in (keys, values))
    expected = attend_ragged(q[:, :, None], *copies, lengths_N, Pattern(window=window))
    torch.testing.assert_close(mixed, expected[:, :, 0], rtol=1e-5, atol=2e-6)


def test_a_key_that_is_no_number_makes_the_result_none() -> None:
    keys, values = torch.randn(2, 2, 4, 2, 8)
    keys[1, 1, 0, 3] = torch.nan
    tables, lengths = torch.tensor([[0, 1]]).int(), torch.tensor([7]).int()
    new = torch.randn(3, 1, 2, 8)
    mixed = few_rows.attend_blocks(*new, keys, values, tables, lengths, 0)
    assert mixed[0, 0].isnan().all() and not mixed[0, 1].isnan().any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (2, 3)])
def test_heads_turn_as_torch_turns_them(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    qkv = torch.randn(*shape, 3, 4, 16)
    rope = rope_tables(torch.randint(0, 5000, shape), 16, 1e4, torch.float32)
    expected = split_together(qkv, rope)
    monkeypatch.setattr(few_rows, "split_together", _refused)
    for own, of_torch in zip(few_rows.split_heads(qkv, rope), expected, strict=True):
        torch.testing.assert_close(own, of_torch, rtol=0, atol=1e-6)


def test_sum_and_norm_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = RMSNorm(24, 1e-3)
    nn.init.normal_(norm.weight)
    x, delta = torch.randn(2, 3, 2, 24)
    expected = add_then_norm(x, delta, norm)
    monkeypatch.setattr(few_rows, "add_then_norm", _refused)
    for own, of_torch in zip(few_rows.add_norm(x, delta, norm), expected, strict=True):
        torch.testing.assert_close(own, of_torch, rtol=1e-6, atol=1e-6)


def test_many_rows_other_numbers_and_gradients_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "add_then_norm", _refused)
    monkeypatch.setattr(decode, "turn_heads", _refused)
    for tokens, dtype, norm in (
        (few_rows.MAX_TOKENS + 1, torch.float32, RMSNorm(8, 1e-5)),
        (1, torch.float64, RMSNorm(8, 1e-5).double()),
        (1, torch.float32, LayerNorm(8)),
    ):
        x = torch.randn(1, tokens, 8, dtype=dtype)
        for own, of_torch in zip(
            few_rows.add_norm(x, x, norm), add_then_norm(x, x, norm), strict=True
        ):
            assert torch.equal(own, of_torch)
        if isinstance(norm, RMSNorm):
            rope = rope_tables(torch.arange(tokens)[None], 8, 1e4, dtype)
            few_rows.split_heads(torch.randn(1, tokens, 2, 3, 8, dtype=dtype), rope)
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.randn(1, 1, 8, requires_grad=True)
        few_rows.add_norm(x, x, RMSNorm(8, 1e-5))[1].sum().backward()
        assert x.grad is not None


def test_only_models_in_float32_get_kernels() -> None:
    for dtype, expected in ((torch.float32, few_rows.add_norm), (torch.float64, add_then_norm)):
        model = make_model(dtype=dtype)
        speed_up(model, copy_weights=False)
        assert all(block.add_norm is expected for block in model.own_blocks)


def _refused(*_: object) -> None:
    raise AssertionError("not to be called")


@given(
    st.integers(1, 9), st.sampled_from([(1, 88), (3, 5), (4, 16)]),
    st.sampled_from([0.1, 3.0, 60.0]), st.integers(0, 10**6),
)  # fmt: skip
def test_the_gate_is_that_of_float64_as_nearly_as_torch_is(
    rows: int, blocks: tuple[int, int], spread: float, seed: int
) -> None:
    count, block = blocks
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(rows, 1, count * 2 * block, generator=generator) * spread
    torch.testing.assert_close(
        few_rows.gate(inner, block).double(), gated(inner.double(), block), rtol=1e-6, atol=1e-30
    )


def test_the_gate_hides_no_number_that_is_none() -> None:
    inner = torch.ones(2, 1, 8)
    inner[0, 0, 1], inner[1, 0, 6] = float("nan"), float("nan")
    assert few_rows.gate(inner, 4).isnan().nonzero().tolist() == [[0, 0, 1], [1, 0, 2]]
