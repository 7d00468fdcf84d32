"""The kernel over blocks gives what attention over all keys gives, and stores the new ones."""

import pytest
import torch

from llm_core.infer.cache.attention import attend_keys, attend_ragged
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.patterns import Pattern
from tests.support.engine.triton_kernels import DEVICE, kernels_of, numbers

pytestmark = pytest.mark.gpu  # or Triton's interpreter, by hand


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 16), (6, 1, 32), (3, 3, 16)])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("splits", [1, 3])
def test_one_token_of_each_row_attends_its_blocks(
    heads: int, groups: int, width: int, window: int, splits: int
) -> None:
    module = kernels_of("paged_attention")
    lengths = [0, 17, 150]
    keys, values = (numbers(20, 16, groups, width, seed=seed) for seed in (1, 2))
    # Blocks of others may hold anything.
    keys[19] = values[19] = float("nan")
    tables = torch.full((3, 11), 19, dtype=torch.int32, device=DEVICE)
    order = torch.randperm(19, generator=torch.Generator().manual_seed(3)).int().to(DEVICE)
    taken = 0
    for row, length in enumerate(lengths):
        count = length // 16 + 1
        tables[row, :count] = order[taken : taken + count]
        taken += count
    q, k, v = (numbers(3, n, width, seed=n + 4) for n in (heads, groups, groups))
    lengths_B = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    attention = module.PagedAttention(3, heads, groups, width, DEVICE, splits)
    mixed = attention(q, k, v, keys, values, tables, lengths_B, window)
    for row, length in enumerate(lengths):
        own = tables[row, : length // 16 + 1].long()
        seen_k, seen_v = (
            stored[own].flatten(0, 1)[: length + 1].transpose(0, 1)[None]
            for stored in (keys, values)
        )
        assert torch.equal(seen_k[0, :, -1], k[row]) and torch.equal(seen_v[0, :, -1], v[row])
        expected = attend_ragged(
            q[row][None, :, None],
            seen_k,
            seen_v,
            lengths_B[row : row + 1] + 1,
            Pattern(window=window),
        )
        assert torch.allclose(mixed[row], expected[0, :, 0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 16), (6, 1, 32), (3, 3, 16)])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("splits", [1, 3])
def test_several_tokens_of_each_sequence_attend_its_blocks_and_each_other(
    heads: int, groups: int, width: int, window: int, splits: int
) -> None:
    module = kernels_of("paged_attention")
    befores, news = [0, 17, 150, 33], [70, 1, 9, 16]
    keys, values = (numbers(30, 16, groups, width, seed=seed) for seed in (1, 2))
    keys[29] = values[29] = float("nan")  # blocks of others may hold anything
    tables = torch.full((4, 11), 29, dtype=torch.int32, device=DEVICE)
    order = torch.randperm(29, generator=torch.Generator().manual_seed(3)).int().to(DEVICE)
    queries = 8
    taken, tiles, lengths, firsts = 0, [], [], []
    for row, (before, new) in enumerate(zip(befores, news, strict=True)):
        count = -(-(before + new) // 16)
        tables[row, :count] = order[taken : taken + count]
        taken += count
        firsts.append(len(lengths))
        lengths += range(before, before + new)
        for first in range(0, new, queries):
            size = min(queries, new - first)
            tiles.append([firsts[row] + first, size, firsts[row], row])
    tiles += [[0, 0, 0, 0]] * 3
    q, k, v = (numbers(len(lengths), n, width, seed=n + 4) for n in (heads, groups, groups))
    attention = module.PagedAttention(len(tiles), heads, groups, width, DEVICE, splits, queries)
    mixed = attention(
        q, k, v, keys, values, tables, torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        window, torch.tensor(tiles, dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    for row, (before, new) in enumerate(zip(befores, news, strict=True)):
        length, own = before + new, slice(firsts[row], firsts[row] + new)
        blocks = tables[row, : -(-length // 16)].long()
        seen_k, seen_v = (
            stored[blocks].flatten(0, 1)[:length].transpose(0, 1) for stored in (keys, values)
        )
        assert torch.equal(seen_k[:, before:], k[own].transpose(0, 1))
        assert torch.equal(seen_v[:, before:], v[own].transpose(0, 1))
        expected = attend_keys(q[own].transpose(0, 1)[None], seen_k[None], seen_v[None], window)
        assert torch.allclose(mixed[own], expected[0].transpose(0, 1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("window", [0, 9])
def test_a_pass_of_a_cache_attends_in_one_kernel_as_sequence_by_sequence(window: int) -> None:
    kernels_of("paged_attention")
    config = ModelConfig(
        vocab_size=9, dim=64, num_layers=1, num_heads=4, num_kv_heads=2, ffn_dim=8,
        max_seq_len=128, window=window,
    )  # fmt: skip
    caches = [PagedCache(config, 20, 16, torch.float32, DEVICE) for _ in range(2)]
    passes = [
        [(20, 20, [3, 4]), (5, 5, [9]), (1, 1, [11])],  # new tokens, all tokens, blocks
        [(70, 90, [3, 4, 7, 1, 2, 6]), (1, 6, [9]), (30, 31, [11, 8])],
    ]
    mixed: list[list[torch.Tensor]] = [[], []]
    for cache, found, has_tiles in zip(caches, mixed, (True, False), strict=True):
        cache.has_tiles = has_tiles
        for number, spans in enumerate(passes):
            news, lengths, tables = zip(*spans, strict=True)
            cache.begin(Pass.of([[0] * new for new in news], lengths, tables, 16, DEVICE))
            q, k, v = (numbers(1, n, sum(news), 16, seed=n + 7 * number) for n in (4, 2, 2))
            found.append(cache.attend(0, q, k, v + 1))
    for ours, theirs in zip(*mixed, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=2e-5)
    for name in ("keys", "values"):
        assert torch.equal(getattr(caches[0], name).stored, getattr(caches[1], name).stored)
