"""A cached pass is the full pass, and what does not fit is refused before anything is written."""

import dataclasses

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.infer.cache.rows import decode, paged_cache, prefill, static_cache
from llm_core.infer.cache.static import CacheOverflow
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_cached_decode_matches_full_forward_for_every_prefix_split(num_kv_heads: int) -> None:
    model, ids = make_model(num_kv_heads), random_ids(12, seed=0)
    with torch.no_grad():
        full_TV = model(torch.tensor([ids]))[0]
    for split in range(1, len(ids)):
        cache = static_cache(model, [split], len(ids) - split)
        cached = [prefill(model, [ids[:split]], cache)[0]]
        cached += [decode(model, [token], cache)[0] for token in ids[split:]]
        assert (torch.stack(cached) - full_TV[split - 1 :]).abs().max() <= 1e-10
        assert cache.lengths_B.tolist() == [len(ids)]


def test_several_tokens_after_a_prefix_match_full_forward() -> None:
    """More keys than queries, more than one query: where a top-left causal mask goes wrong."""
    model, ids = make_model(), random_ids(11, seed=3)
    with torch.no_grad():
        full_TV = model(torch.tensor([ids]))[0]
        cache = static_cache(model, [len(ids)], 0)
        pieces = []
        for begin, end in ((0, 4), (4, 7), (7, 11)):
            pieces.append(
                model(torch.tensor([ids[begin:end]]), cache.positions(end - begin), cache)[0]
            )
    assert (torch.cat(pieces) - full_TV).abs().max() <= 1e-10


def test_a_cached_pass_over_documents_of_one_row_is_refused() -> None:
    model, ids = make_model(), torch.tensor([random_ids(8, seed=0)])
    cache = static_cache(model, [8], 0)
    with pytest.raises(ConfigError, match="documents_BK keeps documents apart"):
        model(ids, cache=cache, documents_BK=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]))
    assert cache.lengths_B.tolist() == [0]


def test_write_past_capacity_raises_before_anything_is_written() -> None:
    model = Transformer(dataclasses.replace(make_model().config, num_layers=1)).double()
    ones_BGTD, queries_BHTD = torch.ones(1, 2, 2, 8).double(), torch.ones(1, 4, 2, 8).double()
    for kind in (static_cache, paged_cache):
        cache = kind(model, [2], 1)
        cache.attend(0, queries_BHTD, ones_BGTD, ones_BGTD)
        with pytest.raises(CacheOverflow, match=r"token 3 does not fit .* of 3"):
            cache.attend(0, queries_BHTD, 5 * ones_BGTD, 5 * ones_BGTD)
        with pytest.raises(CacheOverflow, match=r"token 3 does not fit .* of 3"):
            cache.positions(2)
        assert cache.lengths_B.tolist() == [2]
        one_BGTD = ones_BGTD[:, :, :1]
        newest = cache.attend(0, queries_BHTD[:, :, :1], one_BGTD, one_BGTD)
        assert torch.allclose(newest, torch.ones_like(newest))


def test_decoding_past_capacity_raises() -> None:
    model = make_model()
    for kind in (static_cache, paged_cache):
        cache = kind(model, [3], 1)
        prefill(model, [[1, 2, 3]], cache)
        decode(model, [4], cache)
        with pytest.raises(CacheOverflow):
            decode(model, [5], cache)


def test_rows_of_unequal_length_have_positions_of_their_own() -> None:
    model = make_model()
    for kind in (static_cache, paged_cache):
        cache = kind(model, [3, 1], 2)
        prefill(model, [[1, 2, 3], [4]], cache)
        assert cache.positions(2).tolist() == [[3, 4], [1, 2]]


def test_a_fork_holds_the_blocks_of_its_row_until_one_of_them_writes() -> None:
    model = make_model()
    cache = paged_cache(model, [6, 6], 2, block_tokens=4)
    prefill(model, [[1, 2, 3, 4, 5, 6], [7]], cache)
    free = cache.pool.num_free
    twin = cache.fork([0])
    assert cache.pool.num_free == free
    decode(model, [9], twin)
    assert cache.pool.num_free == free - 1, "the block that is not full was copied"
