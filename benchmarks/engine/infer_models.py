"""Models of random weights whose answers are timed, and the proof that what is timed is right.

Speed does not depend on what weights say. Before it is shown, the cache is held against full
passes in float64, on two layers of the model's width (`llm_core.infer.equivalence`); then every
token that the engine chose greedily, in the number format, the batch and the kernels that are
timed, is held against a full pass of the same model. Rounding may swap near-equal logits, so the
token may lie behind the best by a part of the spread of all logits (`llm_core.bench.answers`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from llm_core.infer.cache.rows import paged_cache
from llm_core.infer.equivalence import Shape, check_cache
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer
from llm_core.quantize.model import num_bytes, round_model

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {"num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "dim": 4096, "ffn_dim": 14336},
    "1.1b": {"num_layers": 16, "num_heads": 16, "num_kv_heads": 8, "dim": 2048, "ffn_dim": 8192},
    "40m": {"num_layers": 8, "num_heads": 8, "num_kv_heads": 4, "dim": 512, "ffn_dim": 1408},
    "demo": {"num_layers": 4, "num_heads": 4, "num_kv_heads": 4, "dim": 128, "ffn_dim": 352},
    "tiny": {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "dim": 64, "ffn_dim": 128},
}
"""Llamas with 32,768 ids; 40m has 16,384, demo 4,096, tiny 512."""
VOCAB_SIZES = {"40m": 16384, "demo": 4096, "tiny": 512}
WEIGHTS = ("float32", "bf16", "int8", "int4", "fp8")
SEEN_SPREAD = 0.02
"""Standard deviation of random matrices."""


def shape_config(shape: str) -> ModelConfig:
    vocab_size = VOCAB_SIZES.get(shape, 32768)
    return ModelConfig(
        vocab_size=vocab_size, max_seq_len=4096, tied_embeddings=False, **SHAPES[shape]
    )


def random_model(config: ModelConfig, weights: str, device: torch.device) -> Transformer:
    """weights: one of WEIGHTS; rounded ones compute in bfloat16 on a GPU, else in float32."""
    is_short = weights == "bf16" or (weights != "float32" and device.type == "cuda")
    model = _random(config, torch.bfloat16 if is_short else torch.float32, device)
    return round_model(model, weights) if weights in ("int8", "int4", "fp8") else model  # type: ignore[arg-type]


def _random(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    model = model.to(dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, SEEN_SPREAD, generator=generator)
            else:
                parameter.fill_(1)
    return model.eval().requires_grad_(False)


def step_bytes(model: Transformer) -> int:
    """Weights that a decode step reads: all but the rows of the embedding that nobody asks for."""
    return num_bytes(model) - num_bytes(model.embedding)


def cache_difference(
    config: ModelConfig, batch: int, prompt: int, new: int, device: torch.device
) -> float:
    """Largest |cached - full| of logits in float64, of two layers of this width."""
    model = _random(replace(config, num_layers=2), torch.float64, device)
    shapes = [Shape(min(batch, 4), prompt, min(new, 8))]
    return max(check.max_abs_diff for check in check_cache(model, shapes, 24, 0, paged_cache))
