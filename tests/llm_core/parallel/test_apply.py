"""What a layout asks of a model depends on what it does with it."""

import dataclasses

import torch

from llm_core.parallel.apply import build_layout
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from tests.support.engine.small_runs import MODEL, TRAIN


def test_a_schedule_of_pipelines_asks_nothing_of_a_run_without_one() -> None:
    one_layer = dataclasses.replace(MODEL, num_layers=1)
    parallel = ParallelConfig(pp_schedule="interleaved")
    layout = build_layout(one_layer, parallel, TRAIN, Ranks(0, 1, torch.device("cpu")))
    assert layout.pipeline is None and len(layout.bare.blocks) == 1


def test_a_pipeline_has_as_many_stages_in_a_rank_as_asked_for() -> None:
    parallel = ParallelConfig("ddp", 2, pp=2, pp_schedule="interleaved", pp_stages_per_rank=3)
    plan = parallel.plan(dataclasses.replace(MODEL, num_layers=7))
    assert plan is not None and plan.stages_of(1) == [1, 3, 5]
