"""Gradients of small models of two families over a batch."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from llm_core.model.transformer import Transformer
from tests.support.engine.small_runs import MODEL, VOCAB_SIZE

LLAMA = dataclasses.replace(MODEL, num_layers=4)
GPT2 = dataclasses.replace(
    LLAMA,
    num_kv_heads=4,
    norm="layer",
    ffn="gelu",
    positions="learned",
    **dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True),
)


def batch(documents: bool = False) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    found = {"ids_BT": torch.randint(0, VOCAB_SIZE, (2, 16), generator=generator)}
    return found | (
        {"documents_BK": (torch.rand(2, 16, generator=generator) < 0.2).cumsum(1)}
        if documents
        else {}
    )


def gradients(model: Transformer, **rows: Tensor) -> list[Tensor]:
    loss = model(**rows).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]
