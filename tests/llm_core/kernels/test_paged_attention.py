"""The kernel over blocks gives what attention over all keys gives, and stores the new ones."""

import pytest
import torch

from llm_core.infer.cache.attention import attend_ragged
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
            q[row][None, :, None], seen_k, seen_v, lengths_B[row : row + 1] + 1, window
        )
        assert torch.allclose(mixed[row], expected[0, :, 0], rtol=0, atol=2e-5)
