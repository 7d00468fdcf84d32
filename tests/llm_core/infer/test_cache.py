"""A cached pass is the full pass, and what does not fit is refused before anything is written."""

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.infer.cache import CacheOverflow, StaticCache
from llm_core.infer.engine import decode, generate, prefill, static_cache
from llm_core.infer.equivalence import check_cache
from llm_core.infer.sampling import SamplingParams
from llm_core.model.masks import Pattern
from tests.support.engine.small_model import make_model, random_ids


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_cached_decode_matches_full_forward_for_every_prefix_split(num_kv_heads: int) -> None:
    model, ids = make_model(num_kv_heads), random_ids(12, seed=0)
    with torch.no_grad():
        full_TV = model(torch.tensor([ids]))[0]
    for split in range(1, len(ids)):
        cache = static_cache(model, [ids[:split]], len(ids) - split)
        cached = [prefill(model, [ids[:split]], cache)[0]]
        cached += [decode(model, [token], cache)[0] for token in ids[split:]]
        assert (torch.stack(cached) - full_TV[split - 1 :]).abs().max() <= 1e-10
        assert cache.length == len(ids)


def test_several_tokens_after_a_prefix_match_full_forward() -> None:
    """More keys than queries, more than one query: where a top-left causal mask goes wrong."""
    model, ids = make_model(), random_ids(11, seed=3)
    with torch.no_grad():
        full_TV = model(torch.tensor([ids]))[0]
        cache = static_cache(model, [ids], 0)
        pieces = []
        for begin, end in ((0, 4), (4, 7), (7, 11)):
            pieces.append(
                model(torch.tensor([ids[begin:end]]), cache.positions(end - begin), cache)[0]
            )
    assert (torch.cat(pieces) - full_TV).abs().max() <= 1e-10


@pytest.mark.parametrize(
    "pattern", [Pattern(window=4), Pattern(window=4, num_global=1), Pattern(block=4)]
)
def test_a_cached_pass_of_a_model_with_a_pattern_is_refused(pattern: Pattern) -> None:
    model, ids = make_model(), random_ids(12, seed=0)
    model.pattern = pattern
    for cached_pass in (
        lambda: generate(model, [ids], SamplingParams(), 2, None),
        lambda: check_cache(model, [], len(ids), seed=0),
        lambda: model(torch.tensor([ids]), cache=static_cache(model, [ids], 0)),
    ):
        with pytest.raises(
            ConfigError,
            match=(
                r"every token attends all before it, but model.pattern is Pattern\(.*without a"
                r" cache"
            ),
        ):
            cached_pass()


def test_a_cached_pass_over_documents_of_one_row_is_refused() -> None:
    model, ids = make_model(), torch.tensor([random_ids(8, seed=0)])
    cache = static_cache(model, ids.tolist(), 0)
    with pytest.raises(ConfigError, match="documents_BK keeps documents apart"):
        model(ids, cache=cache, documents_BK=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]))
    assert cache.length == 0


def test_write_past_capacity_raises_before_anything_is_written() -> None:
    cache = StaticCache(num_layers=1, batch=1, kv_heads=1, capacity=3, head_dim=2)
    ones = torch.ones(1, 1, 2, 2)
    cache.update(0, ones, ones)
    with pytest.raises(CacheOverflow, match="column 3 does not fit a cache of 3"):
        cache.update(0, 5 * ones, 5 * ones)
    with pytest.raises(CacheOverflow):
        cache.mask(2)
    assert cache.length == 2
    keys, _ = cache.update(0, ones[:, :, :1], ones[:, :, :1])
    assert torch.equal(keys, torch.ones(1, 1, 3, 2))


def test_decoding_past_capacity_raises() -> None:
    model = make_model()
    cache = static_cache(model, [[1, 2, 3]], 1)
    prefill(model, [[1, 2, 3]], cache)
    decode(model, [4], cache)
    with pytest.raises(CacheOverflow):
        decode(model, [5], cache)


def test_mask_is_bottom_right_causal_and_hides_padding() -> None:
    cache = StaticCache(
        num_layers=1, batch=2, kv_heads=1, capacity=5, head_dim=2, pad_tokens=[0, 2]
    )
    piece = torch.zeros(2, 1, 3, 2)
    cache.update(0, piece, piece)
    assert cache.positions(2).tolist() == [[3, 4], [1, 2]]
    mask = cache.mask(2)
    assert mask is not None
    assert mask[0, 0].int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert mask[1, 0].int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
