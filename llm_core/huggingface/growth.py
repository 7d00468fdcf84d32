"""Reads the weights of a model with rows for new token ids in its embedding and its head.

A new row is the mean of the rows that are there plus a little noise of their spread, dimension by
dimension (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models"). Rows of
old ids keep their bits, so their logits stay as they are. A new id begins with a logit near the
mean of theirs. Costs the memory of one weight and of its copy in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from llm_core.huggingface.export import read_config, read_weights
from llm_core.huggingface.names import Made
from llm_core.model.config import ModelConfig
from llm_core.model.init import drawn

NOISE = 1e-5**0.5
"""Standard deviation of the noise over that of the rows (Hewitt 2021 scales the covariance by
1e-5)."""


def read_grown_weights(folder: Path, config: ModelConfig) -> Mapping[str, Tensor]:
    """As `read_weights`, but `config` may have more ids than the files. Raises ConfigError."""
    known = min(read_config(folder).vocab_size, config.vocab_size)
    weights = read_weights(folder, replace(config, vocab_size=known))
    num_new = config.vocab_size - known

    def grown(name: str) -> Tensor:
        rows = weights[name]
        # In float64, so that the order of the sum, which depends on threads, does not show.
        spread, mean = torch.std_mean(rows.double(), dim=0)
        noise = drawn(f"{name}, new rows", (num_new, rows.shape[1]), std=1.0, seed=0)
        return torch.cat([rows, (mean + NOISE * spread * noise).to(rows.dtype)])

    makers = {name: partial(weights.__getitem__, name) for name in weights}
    if num_new:
        head = "embedding.weight" if config.tied_embeddings else "head.weight"
        makers["embedding.weight"] = partial(grown, "embedding.weight")
        makers["head.weight"] = partial(grown, head)
    return Made(makers)
