"""Parts of attention make the whole, and processes around a ring the answer of one, with keys of
one slice each."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.model.attend import attend
from llm_core.model.masks import AttentionMask
from llm_core.model.sparse.patterns import Pattern
from llm_core.parallel.sequence import partial
from llm_core.parallel.sequence.partial import FLASH, PLAIN, Kernel, PartMask, merge
from llm_core.parallel.sequence.ring import Ring, may_meet
from tests.support.engine.attention_patterns import PATTERNS
from tests.support.engine.live_bytes import LiveBytes

HEADS = st.sampled_from([(4, 4), (4, 2), (3, 1)])
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class ThreadRing(Ring):
    """A ring of threads: what is passed on lies in the queue of the next one."""

    place: int = 0
    queues: list[queue.Queue[Tensor]] = field(default_factory=list)
    sent: list[torch.Size] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.place

    @property
    def size(self) -> int:
        return len(self.queues)

    def pass_on(self, x: Tensor) -> Callable[[], Tensor]:
        self.sent.append(x.shape)
        self.queues[(self.rank + 1) % self.size].put(x.clone())
        return lambda: self.queues[self.rank].get(timeout=20)


def inputs_of(
    seed: int, batch: int, heads: tuple[int, int], tokens: int, dtype: torch.dtype = torch.float64
) -> Inputs:
    """q, k, v and the gradient of what they give."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, heads[0], tokens, 8),
        (batch, heads[1], tokens, 8),
        (batch, heads[1], tokens, 8),
        (batch, heads[0], tokens, 8),
    )
    q, k, v, grad = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    )
    return q, k, v, grad


def packed(seed: int, batch: int, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, tokens, generator=generator) < 0.2).cumsum(1).int()


def whole(inputs: Inputs, mask: AttentionMask) -> list[Tensor]:
    """Mixed values and gradients of q, k and v, by explicit scores over whole rows."""
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    mixed = attend(*leaves, mask, "reference")
    return [mixed.detach(), *torch.autograd.grad(mixed, leaves, inputs[3])]


def around(
    inputs: Inputs, mask: AttentionMask, size: int, balanced: bool, autocast: bool = False
) -> tuple[list[Tensor], Any]:
    """As `whole`, by threads that hold a slice each; and what each thread sent, and the largest
    tensor it made."""
    tokens = inputs[0].shape[2]
    queues: list[queue.Queue[Tensor]] = [queue.Queue() for _ in range(size)]
    found = [torch.zeros_like(x) for x in (inputs[0], *inputs[:3])]

    def run(rank: int) -> tuple[list[torch.Size], int]:
        ring = ThreadRing(None, balanced, rank, queues)  # type: ignore[arg-type]
        columns = [column for run in ring.runs(rank, tokens) for column in run]
        q, k, v, grad = (x[:, :, columns] for x in inputs)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        with LiveBytes() as live:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                mixed = ring.attend(*leaves, AttentionMask(mask.pattern, mask.documents_BK), "sdpa")
            made = mixed.detach(), *torch.autograd.grad(mixed, leaves, grad.to(mixed.dtype))
        for to, value in zip(found, made, strict=True):
            to[:, :, columns] = value.to(to.dtype)
        return ring.sent, live.largest

    with ThreadPoolExecutor(size) as threads:
        return found, list(threads.map(run, range(size)))


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    PATTERNS,
    st.booleans(),
    HEADS,
    st.lists(st.integers(1, 11), unique=True, max_size=3),
    st.sampled_from([1, 60, 1 << 24]),
)
def test_parts_over_any_split_of_the_keys_merge_to_the_whole(
    pattern: Pattern, has_documents: bool, heads: tuple[int, int], cuts: list[int], max_scores: int
) -> None:
    inputs = inputs_of(len(cuts), 2, heads, 12)
    mask = AttentionMask(pattern, packed(heads[1], 2, 12) if has_documents else None)
    q, k, v, grad = inputs
    edges = [0, *sorted(cuts), 12]
    runs = [range(begin, end) for begin, end in itertools.pairwise(edges)]
    mixed, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -torch.inf)
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial, "MAX_SCORES", max_scores)
        # The last first: no key of it is seen by early queries.
        for run in reversed(runs):
            place = slice(run.start, run.stop)
            merge(
                mixed,
                lse,
                *PLAIN.attend(q, k[:, :, place], v[:, :, place], PartMask(mask, range(12), run)),
            )
        for run in runs:
            place = slice(run.start, run.stop)
            parts = PLAIN.gradients(
                grad, q, k[:, :, place], v[:, :, place], mixed, lse, PartMask(mask, range(12), run)
            )
            dq += parts[0]
            dk[:, :, place], dv[:, :, place] = parts[1:]
    assert_same([mixed, dq, dk, dv], whole(inputs, mask))


@settings(deadline=None, max_examples=15)
@given(PATTERNS, st.booleans(), HEADS, st.integers(1, 4), st.booleans())
def test_processes_around_a_ring_give_the_answer_of_one(
    pattern: Pattern, has_documents: bool, heads: tuple[int, int], size: int, balanced: bool
) -> None:
    inputs = inputs_of(size, 2, heads, 4 * size)
    mask = AttentionMask(pattern, packed(size, 2, 4 * size) if has_documents else None)
    assert_same(around(inputs, mask, size, balanced)[0], whole(inputs, mask))


@pytest.mark.parametrize("balanced", [False, True])
def test_a_process_never_has_keys_of_more_than_a_slice_in_one_tensor(
    balanced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "MAX_SCORES", 1)
    size, tokens, slice_of = (
        4,
        32,
        torch.Size((2, 1, 2, 8, 8)),
    )  # keys and values, rows, heads, tokens, width
    _, threads = around(inputs_of(0, 1, (2, 2), tokens), AttentionMask(), size, balanced)
    for sent, largest in threads:
        assert sent == [slice_of] * (
            size - 1 + size - 1 + size
        )  # in forward; in backward, with gradients and their way home
        assert largest == slice_of.numel()


@pytest.mark.parametrize("autocast", [False, True])
def test_sixteen_bits_lose_no_more_around_a_ring_than_on_one_process(autocast: bool) -> None:
    exact = inputs_of(1, 2, (4, 2), 24)
    mask = AttentionMask(documents_BK=packed(1, 2, 24))
    rounded = inputs_of(1, 2, (4, 2), 24, torch.bfloat16)
    found, _ = around(
        inputs_of(1, 2, (4, 2), 24, torch.float32) if autocast else rounded,
        mask,
        3,
        False,
        autocast,
    )
    expected, alone = whole(exact, mask), whole(rounded, mask)
    for one, other, right in zip(found, alone, expected, strict=True):
        assert (one - right).norm() < 1.2 * (other - right).norm() < 0.02 * right.norm()


@settings(deadline=None)
@given(PATTERNS, st.booleans(), st.integers(0, 2**30), st.integers(1, 4), st.booleans())
def test_no_pair_of_runs_is_left_out_in_which_a_query_attends_a_key(
    pattern: Pattern, has_documents: bool, seed: int, size: int, balanced: bool
) -> None:
    tokens = 6 * size
    mask = AttentionMask(pattern, packed(seed, 2, tokens) if has_documents else None)
    dense = mask.dense(tokens, tokens, torch.device("cpu"))
    ring = ThreadRing(None, balanced, 0, [queue.Queue()] * size)  # type: ignore[arg-type]
    runs = [run for rank in range(size) for run in ring.runs(rank, tokens)]
    assert sorted(column for run in runs for column in run) == list(range(tokens))
    for queries in runs:
        for keys in runs:
            meets = bool(dense[:, :, queries.start : queries.stop, keys.start : keys.stop].any())
            assert may_meet(mask, queries, keys) >= meets
            if not (has_documents or pattern.block):
                assert may_meet(mask, queries, keys) == meets


@pytest.mark.parametrize("size", [2, 3, 4])
def test_balanced_slices_give_all_processes_the_same_work_at_each_turn(size: int) -> None:
    for turn in range(size):
        work = []
        for rank in range(size):
            ring = ThreadRing(None, True, rank, [queue.Queue()] * size)  # type: ignore[arg-type]
            parts = list(ring.parts((rank - turn) % size, 24 * size, AttentionMask()))
            work.append([len(part.queries) * len(part.keys) for _, _, part in parts])
        assert [sum(areas) for areas in work] == [sum(work[0])] * size
        assert {len(areas) for areas in work} == {2 if turn else 3}


def test_the_flash_kernel_of_this_torch_takes_the_arguments_and_gives_the_shapes_of_the_plain_one() -> (  # noqa: E501
    None
):
    q, k = (torch.empty(2, heads, 16, 8, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    part = PartMask(AttentionMask(), range(16, 32), range(16, 32))
    shapes = []
    for kernel in (FLASH, PLAIN):
        mixed, lse = kernel.attend(q, k, k, part)
        shapes.append(
            [x.shape for x in (mixed, lse, *kernel.gradients(q, q, k, k, mixed, lse, part))]
        )
    assert shapes[0] == shapes[1]


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [range(256, 512), range(256)])
def test_the_flash_kernel_gives_parts_and_gradients_of_the_plain_one(keys: range) -> None:
    part = PartMask(AttentionMask(), range(256, 512), keys)
    inputs = tuple(x.cuda() for x in inputs_of(0, 2, (4, 2), 256, torch.bfloat16))
    found = [everything(kernel, inputs, part) for kernel in (FLASH, PLAIN)]
    for one, other in zip(*found, strict=True):
        assert (one.float() - other.float()).norm() < 1e-2 * other.float().norm()


def everything(kernel: Kernel, inputs: tuple[Tensor, ...], part: PartMask) -> tuple[Tensor, ...]:
    q, k, v, grad = inputs
    mixed, lse = kernel.attend(q, k, v, part)
    return mixed, lse, *kernel.gradients(grad, q, k, v, mixed.to(q.dtype), lse, part)
