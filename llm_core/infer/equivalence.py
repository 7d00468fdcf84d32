"""Is generation with a cache the same computation as without? Asked in float64, where rounding cannot hide a defect.

The reference is one full causal forward pass without a cache. Against it: one sequence prefilled up to several places
and decoded from there token by token, and a ragged batch whose rows must give what each gives alone. A right cache
differs by some 1e-13; a wrong position, mask or slice by 1e-3 and more.
"""

from __future__ import annotations

import torch

from llm_core.infer.engine import MakeCache, decode, prefill, static_cache
from llm_core.model.transformer import Transformer

TOLERANCE = 1e-10


@torch.inference_mode()
def cache_difference(model: Transformer, num_tokens: int, seed: int, make_cache: MakeCache = static_cache) -> float:
    """Largest |cached - full| over all logits compared; NaN when any is NaN. `model` must be in float64."""
    weight = model.head.weight
    assert weight.dtype == torch.float64, "rounding of shorter numbers would hide a defect"
    assert num_tokens >= 4
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (num_tokens,), generator=generator).tolist()
    full_TV = model(torch.tensor([ids], device=weight.device))[0]
    differences = []
    for split in sorted({1, 2, num_tokens // 2, num_tokens - 1}):
        cache = make_cache(model, [ids[:split]], num_tokens - split)
        differences.append(prefill(model, [ids[:split]], cache)[0] - full_TV[split - 1])
        for place in range(split, num_tokens):
            differences.append(decode(model, [ids[place]], cache)[0] - full_TV[place])
    rows = [ids, ids[: num_tokens // 2], ids[num_tokens // 3 :], ids[-1:]]
    prompts = [row[: max(1, len(row) - 2)] for row in rows]
    steps = 2
    cache = make_cache(model, prompts, steps)
    batched = [prefill(model, prompts, cache)] + [decode(model, [row[-1]] * len(rows), cache) for row in rows[:steps]]
    for number, prompt in enumerate(prompts):
        alone = torch.tensor([prompt + [row[-1] for row in rows[:steps]]], device=weight.device)
        expected_TV = model(alone)[0, len(prompt) - 1 :]
        differences.extend(got_BV[number] - expected_V for got_BV, expected_V in zip(batched, expected_TV, strict=True))
    return float(torch.stack(differences).abs().max())
