"""Reads the weights of a model with rows for new token ids in its embedding and its head.

A new row is the mean of the rows that are there plus a little noise of their spread, dimension by
dimension (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models"). Rows of
old ids keep their bits, so their logits stay as they are. A new id begins with a logit near the
mean of theirs. Costs the memory of one weight and of its copy in float64.
"""

from __future__ import annotations

from collections.abc import Callable
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


def read_grown_weights(folder: Path, config: ModelConfig) -> Made:
    """As `read_weights`, but `config` may have more ids than the files. Raises ConfigError."""
    known = min(read_config(folder).vocab_size, config.vocab_size)
    weights = read_weights(folder, replace(config, vocab_size=known))
    num_new = config.vocab_size - known

    def grown(name: str, rows: slice) -> Tensor:
        begin, end, _ = rows.indices(config.vocab_size)
        some = weights.rows(name, slice(min(begin, known), min(end, known)))
        if end <= known:
            return some
        old = weights[name]
        # In float64, so that the order of the sum, which depends on threads, does not show.
        spread, mean = torch.std_mean(old.double(), dim=0)
        noise = drawn(f"{name}, new rows", (num_new, old.shape[1]), std=1.0, seed=0)
        new = (mean + NOISE * spread * noise).to(old.dtype)
        return torch.cat([some, new[max(begin - known, 0) : end - known]])

    makers: dict[str, Callable[[slice], Tensor]] = {
        name: partial(weights.rows, name) for name in weights
    }
    if num_new:
        head = "embedding.weight" if config.tied_embeddings else "head.weight"
        makers["embedding.weight"] = partial(grown, "embedding.weight")
        makers["head.weight"] = partial(grown, head)
    return Made(makers)
