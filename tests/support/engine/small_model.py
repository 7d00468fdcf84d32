"""A small decoder with weights large enough that every position and head changes the logits."""

from __future__ import annotations

import torch

from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer


def make_model(
    num_kv_heads: int = 2,
    dtype: torch.dtype = torch.float64,
    vocab_size: int = 61,
    tied: bool = True,
    window: int = 0,
) -> Transformer:
    config = ModelConfig(
        vocab_size=vocab_size,
        dim=32,
        num_layers=3,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        ffn_dim=48,
        max_seq_len=64,
        tied_embeddings=tied,
        window=window,
    )
    model = Transformer(config)
    init_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12)
    return model.to(dtype).eval()


def make_wide_model(config: ModelConfig, device: str = "cpu") -> Transformer:
    """Of any shape, in bfloat16, with weights so large that each shows in the logits."""
    torch.manual_seed(0)
    model = Transformer(config).to(device).bfloat16().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.05)
            else:
                parameter.uniform_(0.5, 1.5)
    return model


def random_ids(count: int, seed: int, vocab_size: int = 61) -> list[int]:
    return torch.randint(
        0, vocab_size, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
