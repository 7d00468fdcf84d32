"""Small encoder–decoder models and batches for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llm_core.seq2seq.batch import Pair, Seq2SeqBatch, lay_out
from llm_core.seq2seq.config import Seq2SeqConfig
from llm_core.seq2seq.model import EncoderDecoder, init_weights

VOCAB = 40
KINDS: dict[str, dict[str, Any]] = {
    "t5": {},
    "t5_v1_1": {"ffn": "geglu", "tied_head": False, "scaled_head": False},
    "transformer": {"kind": "transformer", "scaled_head": False},
}


def small_config(name: str, **changes: Any) -> Seq2SeqConfig:
    """Heads together are not as wide as the model, as in some T5 models; near and far buckets."""
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 3, "num_heads": 2, "head_dim": 6}
    rule = {"num_buckets": 8, "max_distance": 10, "dropout": 0.0}
    values = sizes | {"vocab_size": VOCAB, "dim": 16, "ffn_dim": 24} | rule | KINDS[name] | changes
    return Seq2SeqConfig(**values)


def small_model(kind: str, **changes: Any) -> EncoderDecoder:
    """In float64, with norms and biases other than ones and zeros."""
    model = EncoderDecoder(small_config(kind, **changes)).double()
    init_weights(model, seed=3)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.2 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model


def small_pairs(number: int, seed: int = 0, longest: int = 9) -> list[Pair]:
    """Random ids with the end that a pair has."""
    draw = np.random.default_rng(seed)

    def text() -> np.ndarray:
        return np.append(draw.integers(2, VOCAB - 8, draw.integers(1, longest)), 1)

    return [(text(), text()) for _ in range(number)]


def batch_of(rows: list[list[Pair]], config: Seq2SeqConfig, length: int = 24) -> Seq2SeqBatch:
    return lay_out(rows, np.arange(len(rows)), length, length, config)
