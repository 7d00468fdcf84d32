"""Every kernel mixes what the rule names, for any pattern, packing and part of the queries."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.model import attend as attend_module
from llm_core.model.attend import attend, prepare_backend
from llm_core.model.masks import (
    AttentionMask,
    restarting_positions,
    segment_bounds,
)
from llm_core.model.sparse.patterns import Pattern, drawn_blocks
from llm_core.model.transformer import Transformer
from llm_core.training.throughput import causal_pairs
from tests.support.engine.attention_patterns import PATTERNS
from tests.support.engine.small_runs import MODEL
from tests.support.engine.uneven_model import make_model

PACKAGES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute.interface"}
"""Where the kernels of a backend are."""


LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def documents_of(lengths: list[int]) -> Tensor:
    return torch.repeat_interleave(
        torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths)
    )[None]


def numbers(seed: int, batch: int, heads: int, tokens: int) -> Tensor:
    return torch.randn(
        batch, heads, tokens, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def attended_by_hand(pattern: Pattern, documents: list[int], query: int) -> list[int]:
    """Keys of a query, said once more in plain loops."""
    start = documents.index(documents[query])
    if pattern == Pattern():
        return list(range(start, query + 1))
    keys = {start + n for n in range(pattern.num_global)}
    keys |= {query - n * pattern.dilation for n in range(pattern.window)}
    if pattern.stride:
        keys |= set(range(query, start - 1, -pattern.stride))
    if pattern.block:
        own = (query - start) // pattern.block
        blocks = [*range(max(0, own - pattern.blocks_before), own + 1)]
        blocks += drawn_blocks(pattern, own)
        for block in range(own + 1):
            begin = start + block * pattern.block
            first = 0 if block in blocks else pattern.block - pattern.summary
            keys |= set(range(begin + first, begin + pattern.block))
    return sorted(key for key in keys if start <= key <= query)


@settings(deadline=None, max_examples=60)
@given(
    PATTERNS,
    LENGTHS,
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.sampled_from(["sdpa", "reference"]),
)
def test_attention_mixes_the_values_that_plain_loops_name(
    pattern: Pattern, lengths: list[int], heads: tuple[int, int], backend: str
) -> None:
    documents_BT = documents_of(lengths)
    tokens = sum(lengths)
    q, k, v = (numbers(seed, 1, heads[min(seed, 1)], tokens) for seed in range(3))
    mixed = attend(
        q, k, v, AttentionMask(pattern, documents_BT), prepare_backend(backend, torch.device("cpu"))
    )
    for head in range(heads[0]):
        shared = head // (heads[0] // heads[1])
        for query in range(tokens):
            keys = attended_by_hand(pattern, documents_BT[0].tolist(), query)
            weights = (k[0, shared, keys] @ q[0, head, query] / math.sqrt(4)).softmax(-1)
            torch.testing.assert_close(
                mixed[0, head, query], weights @ v[0, shared, keys], rtol=1e-12, atol=1e-12
            )


@settings(deadline=None, max_examples=30)
@given(PATTERNS, st.booleans(), st.integers(0, 2**30))
def test_backends_agree_in_values_and_gradients(pattern: Pattern, packed: bool, seed: int) -> None:
    documents = torch.cat([documents_of([5, 1, 6]), documents_of([2, 9, 1])]) if packed else None
    found = []
    for backend in ("sdpa", "reference"):
        q, k, v = (
            numbers(seed + i, 2, heads, 12).requires_grad_() for i, heads in enumerate((4, 2, 2))
        )
        mixed = attend(
            q,
            k,
            v,
            AttentionMask(pattern, documents),
            prepare_backend(backend, torch.device("cpu")),
        )
        found.append((mixed, *torch.autograd.grad((mixed * mixed.detach().cos()).sum(), (q, k, v))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@given(PATTERNS, LENGTHS, st.randoms())
@settings(deadline=None, max_examples=30)
def test_queries_that_are_a_part_of_the_row_get_the_rows_of_the_whole_mask(
    pattern: Pattern, lengths: list[int], random
) -> None:
    tokens, documents_BT = sum(lengths), documents_of(lengths)
    columns = sorted(random.sample(range(tokens), random.randint(1, tokens)))
    device = torch.device("cpu")
    whole = AttentionMask(pattern, documents_BT).dense(tokens, tokens, device)
    part = AttentionMask(pattern, documents_BT, torch.tensor(columns)).dense(
        len(columns), tokens, device
    )
    assert torch.equal(part, whole[:, :, columns])


@given(st.lists(LENGTHS, min_size=1, max_size=3))
@settings(deadline=None, max_examples=30)
def test_positions_count_from_zero_in_each_document_and_bounds_stand_between_them(
    rows: list[list[int]],
) -> None:
    width = max(sum(lengths) for lengths in rows)
    rows = [
        [*lengths, width - sum(lengths)] if sum(lengths) < width else lengths for lengths in rows
    ]
    documents_BT = torch.cat([documents_of(lengths) for lengths in rows])
    assert restarting_positions(documents_BT).tolist() == [
        [p for n in lengths for p in range(n)] for lengths in rows
    ]
    assert segment_bounds(documents_BT).diff().tolist() == [n for lengths in rows for n in lengths]


def test_packed_documents_have_the_logits_they_have_alone() -> None:
    model = make_model(MODEL, dtype=torch.float64)
    lengths = [7, 1, 12]
    ids_BT = torch.randint(0, MODEL.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    packed = model(ids_BT, documents_BK=documents_of(lengths).expand(2, -1))
    alone = torch.cat([model(piece) for piece in ids_BT.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
    assert (packed - model(ids_BT))[
        :, 8:
    ].abs().max() > 1e-3  # a border that is not known is crossed


def test_masks_that_a_kernel_cannot_take_and_kernels_that_are_not_there_are_refused() -> None:
    q, k, v = (numbers(i, 1, 2, 6) for i in range(3))
    with pytest.raises(ConfigError, match="flash.*causal rows"):
        attend(q, k, v, AttentionMask(documents_BK=documents_of([2, 4])), "flash")
    with pytest.raises(ConfigError, match="varlen.*window"):
        attend(q, k, v, AttentionMask(Pattern(block=2)), "varlen")
    with pytest.raises(ConfigError, match="fa3.*CUDA"):
        prepare_backend("fa3", torch.device("cpu"))
    with pytest.raises(ConfigError, match="soft.*one of"):
        prepare_backend("soft", torch.device("cpu"))
    for wrong in ({"window": -1}, {"num_global": 1}, {"dilation": 2}, {"summary": 1}, {"seed": 1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Pattern(**wrong)


def test_a_package_whose_backward_fails_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ForwardOnly(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            raise RuntimeError("no backward kernel")

    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", lambda name: None)
    monkeypatch.setattr(
        attend_module.F,
        "scaled_dot_product_attention",
        lambda q, k, v, is_causal: ForwardOnly.apply(q),
    )
    with pytest.raises(
        ConfigError,
        match=r"\(fa3\) is not installed or does not fit this torch \(no backward kernel\)",
    ):
        attend_module._activate_fa3.__wrapped__(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "pattern",
    [
        *(Pattern(), Pattern(window=50), Pattern(window=50, num_global=4), Pattern(block=64)),
        Pattern(window=9, dilation=3, stride=37),
        Pattern(block=32, blocks_before=1, num_global=5, summary=3, random_blocks=2, seed=1),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "backend", ["flex", "varlen", "flash", "cudnn", *PACKAGES]
)  # fa3 stays in place of flash once used
def test_cuda_kernels_give_the_values_and_gradients_of_the_reference(
    backend: str, packed: bool, pattern: Pattern
) -> None:
    if backend in PACKAGES:
        pytest.importorskip(PACKAGES[backend])
    device = torch.device("cuda")
    if backend in PACKAGES:
        prepare_backend(backend, device)
    documents = (
        torch.cat([documents_of([200, 1, 55]), documents_of([3, 130, 123])]).to(device)
        if packed
        else None
    )
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, h, 256, 64, generator=generator).to(device, torch.bfloat16)
        for h in (4, 2, 2)
    )
    found = []
    for name in (backend, "reference"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        try:
            mixed = attend(
                *leaves, AttentionMask(pattern, documents), prepare_backend(name, device)
            )
        except ConfigError:
            assert name in ("flash", "cudnn", *PACKAGES) or (
                name == "varlen" and pattern.sliding is None
            )
            return
        found.append(
            (
                mixed,
                *torch.autograd.grad((mixed.float() * mixed.detach().float().cos()).sum(), leaves),
            )
        )
    for one, other in zip(*found, strict=True):
        error = (one.float() - other.float()).norm() / other.float().norm()
        assert error < 2e-2, f"{backend} {pattern} {error}"


def test_a_transformer_without_its_ends_hands_the_residual_stream_on() -> None:
    whole, first, last = (make_model(MODEL) for _ in range(3))
    first.norm = first.head = first.blocks[1] = last.embedding = last.blocks[0] = None  # type: ignore[assignment]
    ids_BT = torch.arange(10)[None]
    assert torch.equal(last(first(ids_BT)), whole(ids_BT))
    names = {name for part in (first, last) for name, _ in part.named_parameters()}
    assert names - {"head.weight"} == {name for name, _ in whole.named_parameters()}
    assert isinstance(first, Transformer)


@given(PATTERNS, st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_pairs_are_those_that_the_mask_allows_but_for_half_of_one_where_all_are_attended(
    pattern: Pattern, lengths: list[int]
) -> None:
    documents = documents_of(lengths)
    allowed = int(
        AttentionMask(pattern, documents)
        .dense(sum(lengths), sum(lengths), torch.device("cpu"))
        .sum()
    )
    whole = sum(
        len(attended_by_hand(pattern, documents[0].tolist(), query))
        == query - documents[0].tolist().index(documents[0, query]) + 1
        for query in range(sum(lengths))
    )
    assert float(causal_pairs(pattern, documents)) == allowed - whole / 2
    assert float(causal_pairs(Pattern(), documents)) == sum(length**2 for length in lengths) / 2
    padded = torch.cat([documents, torch.full((1, 5), -1)], dim=1)
    assert float(causal_pairs(pattern, padded)) == float(causal_pairs(pattern, documents))
