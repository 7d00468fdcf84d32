"""Initial weights depend on seed, name and place alone, and a piece draws what it holds."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_core.model import init
from llm_core.model.config import ModelConfig
from llm_core.model.init import TILE, draw_tile, init_weights
from llm_core.model.transformer import Transformer

WIDE = ModelConfig(
    vocab_size=700, dim=96, num_layers=1, num_heads=4, num_kv_heads=2, ffn_dim=300, max_seq_len=16
)


def make_model(config: ModelConfig = WIDE, seed: int = 3) -> Transformer:
    model = Transformer(config)
    init_weights(model, seed)
    return model


@given(
    cuts=st.tuples(
        st.lists(st.integers(0, 700), max_size=4), st.lists(st.integers(0, 96), max_size=2)
    )
)
def test_pieces_are_those_of_the_whole_weight(cuts: tuple[list[int], list[int]]) -> None:
    whole = make_model()
    bounds = [
        sorted({0, size, *cut}) for cut, size in zip(cuts, (WIDE.vocab_size, WIDE.dim), strict=True)
    ]
    for top, bottom in zip(bounds[0], bounds[0][1:], strict=False):
        for left, right in zip(bounds[1], bounds[1][1:], strict=False):
            piece = torch.empty(bottom - top, right - left)
            box = range(top, bottom), range(left, right)

            def locate(name, parameter, piece=piece, box=box):
                if name != "embedding.weight":
                    return init._whole(name, parameter)
                return parameter.shape, piece, box

            init_weights(Transformer(WIDE), 3, locate)
            assert torch.equal(piece, whole.embedding.weight[top:bottom, left:right])


def test_a_piece_draws_only_the_tiles_that_it_touches() -> None:
    shape, rows = (16 * TILE[0], 2 * TILE[1]), range(5 * TILE[0] + 3, 6 * TILE[0] + 3)
    with patch.object(init, "draw_tile", wraps=draw_tile) as draw:
        init._fill(
            torch.empty(len(rows), shape[1]), (rows, range(shape[1])), "x", shape, 0.02, seed=0
        )
    places = {call.args[2] for call in draw.call_args_list}
    assert places == {(row * TILE[0], column * TILE[1]) for row in (5, 6) for column in (0, 1)}


def test_weights_are_normal_and_no_two_tiles_are_alike() -> None:
    std, shape = 0.02, (4 * TILE[0], 4 * TILE[1])
    tiles = [
        draw_tile("w", shape, (row * TILE[0], column * TILE[1]), std, 0)
        for row in range(4)
        for column in range(4)
    ]
    drawn = torch.stack(tiles).flatten(1).double()
    num = drawn.numel()
    assert abs(drawn.mean()) < 4 * std / math.sqrt(num)
    assert drawn.std() == pytest.approx(std, rel=4 / math.sqrt(2 * num))
    correlations = torch.corrcoef(drawn).fill_diagonal_(0)
    assert correlations.abs().max() < 5 / math.sqrt(drawn.shape[1])
