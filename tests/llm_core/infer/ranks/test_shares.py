"""Parts of all ranks make up the model, and what cannot be shared is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.huggingface.export import export_model, load_model
from llm_core.huggingface.names import from_hugging_face, to_hugging_face
from llm_core.infer.ranks.layers import load_share
from llm_core.infer.ranks.shares import share_of
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model


@st.composite
def shapes(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    ranks = draw(st.sampled_from([1, 2, 3, 4, 8]))
    groups = draw(st.sampled_from([g for g in (1, 2, 4, 3, 8) if g % ranks == 0 or ranks % g == 0]))
    of_each = draw(st.integers(1, 3)) * max(1, ranks // groups)
    return ModelConfig(
        vocab_size=draw(st.integers(57, 70)),
        dim=24,
        num_layers=1,
        num_heads=groups * of_each,
        num_kv_heads=groups,
        ffn_dim=ranks * draw(st.integers(1, 24)),
        max_seq_len=8,
        own_head_dim=4,
    ), ranks


@given(shapes())
def test_attention_and_feed_forward_of_all_ranks_add_up_to_the_layer(
    drawn: tuple[ModelConfig, int],
) -> None:
    """Each rank's heads and channels computed by a model of its own, and summed."""
    config, num_ranks = drawn
    torch.manual_seed(0)
    whole = Transformer(config).double()
    theirs = to_hugging_face(config, whole.state_dict())
    x_BTD = torch.randn(1, 5, config.dim, dtype=torch.float64)
    rope = tuple(torch.randn(1, 1, 5, 4, dtype=torch.float64) for _ in range(2))
    block = whole.own_blocks[0]
    added = [torch.zeros_like(x_BTD) for _ in range(2)]
    ids: list[int] = []
    for rank in range(num_ranks):
        share = share_of(config, rank, num_ranks)
        cut = {name: share.cut(name, tensor) for name, tensor in theirs.items()}
        part = Transformer(share.config).double()
        part.load_state_dict(dict(from_hugging_face(share.config, cut)))
        own = part.own_blocks[0]
        added[0] += own.attention(x_BTD, rope)  # type: ignore[arg-type]
        added[1] += own.ffn(x_BTD)
        ids += share.ids
    assert torch.allclose(added[0], block.attention(x_BTD, rope), atol=1e-12)  # type: ignore[arg-type]
    assert torch.allclose(added[1], block.ffn(x_BTD), atol=1e-12)
    assert ids == list(range(config.vocab_size))


def test_a_part_is_cut_without_a_copy_and_takes_the_share_of_the_memory(tmp_path: Path) -> None:
    model = make_model(num_kv_heads=4, dtype=torch.float32)
    export_model(model.config, model.state_dict(), tmp_path)
    share = share_of(model.config, 1, 4)
    for name, whole in to_hugging_face(model.config, model.state_dict()).items():
        part = share.cut(name, whole)
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr(), name
    part = load_share(tmp_path, torch.float32, torch.device("cpu"), 1, 4)
    sizes = [
        sum(p.numel() for p in each.parameters() if p.dim() == 2)
        for each in (part, load_model(tmp_path))
    ]
    # Of 61 ids the first three ranks have 16.
    assert sizes[0] == sizes[1] / 4 + (16 - 61 / 4) * 32


@pytest.mark.parametrize(
    "values, ranks, reason",
    [
        ({"num_heads": 4}, 3, r"it has 4 heads.*; try 2"),
        ({"num_heads": 12, "num_kv_heads": 4}, 6, r"4 key/value heads.*; try 4"),
        ({"ffn_dim": 42}, 4, r"42 feed-forward channels.*; try 2"),
        ({"vocab_size": 5}, 4, r"vocabulary of 5.*; try 2"),
    ],
)
def test_what_ranks_cannot_share_is_refused_with_the_number_that_can(
    values: dict[str, int], ranks: int, reason: str
) -> None:
    shape = dataclasses.asdict(make_model().config) | {"own_head_dim": 8} | values
    config = ModelConfig(**(shape | {"rope_scaling": None}))
    with pytest.raises(ConfigError, match=reason):
        share_of(config, 0, ranks)
