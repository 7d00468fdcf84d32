"""Each process of a layout begins with its own pieces of the same weights, and draws no others."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest
import torch

from llm_core.model import init
from llm_core.model.config import ComputeConfig
from llm_core.model.init import draw_tile, init_weights
from llm_core.model.transformer import Transformer
from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.places import local, placed_weights
from llm_core.parallel.weights import box_of
from tests.support.distributed.alone import as_process
from tests.support.distributed.cases import LAYOUTS, layout, layout_name
from tests.support.distributed.problem import Problem


@pytest.mark.parametrize("parallel", LAYOUTS, ids=layout_name)
def test_pieces_of_all_processes_make_each_initial_weight_equally_often(
    parallel: ParallelConfig,
) -> None:
    config = Problem(layers=8).model()
    whole = Transformer(config)
    init_weights(whole, ComputeConfig().seed)
    values = whole.state_dict()
    times = {name: torch.zeros(value.shape) for name, value in values.items()}
    for rank in range(parallel.num_processes):
        with as_process(rank, parallel) as ranks:
            built = build_layout(config, parallel, ComputeConfig(), ranks)
            for name, weight, place in placed_weights(built):
                box = box_of(built, name, weight, place.shape)
                inside = tuple(slice(run.start, run.stop) for run in box)
                assert torch.equal(local(weight.detach()), values[name][inside])
                times[name][inside] += 1
    for name, counted in times.items():
        if counted.any():  # else the other name of a tied weight
            assert counted.min() == counted.max() >= 1, name


def test_a_process_of_sixteen_draws_a_sixteenth_of_the_embedding() -> None:
    parallel = layout(16, "fsdp", tp=2)
    config = Problem(layers=1, vocab=16 * init.TILE[0]).model()
    with as_process(9, parallel) as ranks, patch.object(init, "draw_tile", wraps=draw_tile) as draw:
        build_layout(config, parallel, ComputeConfig(), ranks)
    drawn = Counter(call.args[0] for call in draw.call_args_list)
    assert drawn["embedding.weight"] == 1
