"""The FLOPs that a config counts are those that torch counts when the model runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tests.support.engine.small_runs import MODEL

LLAMA = dataclasses.replace(MODEL, tied_embeddings=False)
GPT2 = {
    "norm": "layer",
    "ffn": "gelu",
    "positions": "learned",
    "qkv_bias": True,
    "out_bias": True,
    "ffn_bias": True,
}
FAMILIES = {
    "llama": LLAMA,
    "tied": dataclasses.replace(LLAMA, tied_embeddings=True),
    "wide heads": dataclasses.replace(LLAMA, own_head_dim=16),
    "qwen2": dataclasses.replace(LLAMA, qkv_bias=True),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, own_head_dim=12),
    "gpt2": dataclasses.replace(LLAMA, num_kv_heads=4, **GPT2),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("rows", "tokens"), [(1, 16), (3, 7)])
def test_training_flops_are_those_that_torch_counts(name: str, rows: int, tokens: int) -> None:
    config = FAMILIES[name]
    model = Transformer(config)
    init_weights(model, 0)
    for block in model.blocks:
        block.attention.backend = (
            "reference"  # two plain products, which every torch counts; kernels it may not know
        )
    ids_BT = torch.randint(config.vocab_size, (rows, tokens))
    with FlopCounterMode(display=False) as counter:
        model(ids_BT).sum().backward()
    assert counter.get_total_flops() == rows * tokens * config.training_flops_per_token(tokens)


def test_causal_flops_leave_out_half_of_attention_and_nothing_else() -> None:
    for seq_len in (2, 64):
        attention = 12 * LLAMA.num_layers * LLAMA.attention_dim * seq_len
        full = LLAMA.training_flops_per_token(seq_len)
        assert LLAMA.training_flops_per_token(seq_len, causal=True) == full - attention // 2
        assert full == 6 * LLAMA.matmul_parameters() + attention
