"""Batches that do harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from llm_core.data.shards import open_shards
from llm_core.parallel.ranks import Ranks
from llm_core.training import step as step_module
from llm_core.training.run_config import RunConfig
from llm_core.training.train import build_loader


def poisoned_accumulation(config: RunConfig, factors: dict[int, float]) -> Callable[..., Tensor]:
    """`accumulate_gradients` that multiplies loss and gradients of the batches at these indices by
    a factor."""
    loader = build_loader(
        config, open_shards(config.shards, "train"), Ranks(0, 1, torch.device("cpu"))
    )
    batches = {index: loader.batch(index)[0] for index in factors}
    plain = step_module.accumulate_gradients

    def poisoned(layout: Any, ids_BT: Tensor, *rest: Any) -> Tensor:
        loss = plain(layout, ids_BT, *rest)
        for index, batch in batches.items():
            if torch.equal(ids_BT, batch):
                for weight in layout.model.parameters():
                    weight.grad *= factors[index]
                loss = loss * factors[index]
        return loss

    return poisoned
