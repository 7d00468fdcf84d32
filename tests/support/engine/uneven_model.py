"""Builds a decoder whose weights are large enough that mistakes change what it says."""

import torch

from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer


def make_model(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Transformer:
    model = Transformer(config).to(dtype)
    init_weights(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)  # initial weights guess nearly uniformly, which hides mistakes
    return model
