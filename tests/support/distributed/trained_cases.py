"""Cases of the exactness matrix that vary what is trained, and on what loss: adapters, experts,
pairs of answers, noise."""

from __future__ import annotations

import dataclasses

from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from tests.support.distributed.cases import LAYOUTS, cases_of, layout
from tests.support.distributed.problem import Problem

ADAPTED = [
    cases_of(parallel, [Problem(adapter="lora", **values)])[-1]
    for parallel, values in (
        (LAYOUTS[0], {"packed": True}),
        (layout(4, "ddp"), {"family": "gpt2"}),
        (layout(4, "zero1"), {"family": "qwen3", "optim": "lion"}),
        (layout(4, "zero2"), {"tied": False, "ema": 0.5}),
        (layout(4, "fsdp"), {"masks": "idle", "optim": "adafactor"}),
        (layout(4, "hsdp", dp_shard=2), {"family": "gpt2"}),
        (layout(4, "ddp", tp=4), {"masks": "idle"}),
        (layout(4, "ddp", tp=4, sequence_parallel=False), {"family": "qwen2", "tied": False}),
        (layout(4, "zero1", tp=2), {"family": "gpt2"}),
        (layout(4, "fsdp", tp=2), {"family": "qwen3", "z_loss": 0.1}),
        (layout(4, "ddp", pp=4), {}),
        (layout(4, "ddp", pp=2, pp_schedule="interleaved"), {"family": "gpt2"}),
        (layout(4, "zero1", pp=2, pp_schedule="zero_bubble"), {"tied": False}),
        (layout(4, "fsdp", pp=2, pp_schedule="zero_bubble_v"), {}),
        (layout(4, "ddp", pp=2, tp=2), {"family": "qwen2", "packed": True}),
        (layout(4, "ddp", cp=4, cp_kind="ring"), {"packed": True}),
        (layout(4, "fsdp", cp=2), {"tied": False}),
        (layout(4, "ddp", cp=2, tp=2, cp_kind="ulysses"), {}),
        (layout(8, "zero1", pp=2, tp=2), {"masks": "empty"}),
        (layout(8, "ddp", pp=2, cp=2, tp=2), {"family": "qwen3"}),
    )
]
"""Each axis and kind with factors beside frozen weights, families and optimizers by pairs."""
DECOMPOSED = [
    cases_of(parallel, [Problem(adapter="dora", **values)])[-1]
    for parallel, values in (
        (LAYOUTS[0], {"family": "gpt2"}),
        (layout(4, "zero1"), {"family": "qwen2"}),
        (layout(4, "fsdp"), {"tied": False}),
        (layout(4, "ddp", pp=2, pp_schedule="zero_bubble"), {}),
        (layout(4, "ddp", cp=2, cp_kind="ring"), {"packed": True}),
    )
]
"""Kinds and axes that keep rows of matrices whole."""
EXPERTS = [
    dataclasses.replace(cases_of(parallel, [Problem(family=family, **values)])[size], memory=memory)
    for parallel, family, size, values, memory in (
        (LAYOUTS[0], "glm4_moe", 0, {"packed": True}, NO_SAVINGS),
        (LAYOUTS[0], "qwen2_moe", -1, {"optim": "muon"}, MemoryConfig(recompute="full")),
        (layout(4, "ddp"), "glm4_moe", -1, {}, MemoryConfig(recompute="full")),
        (layout(4, "zero1"), "qwen2_moe", 0, {"optim": "lion", "ema": 0.5}, NO_SAVINGS),
        (layout(4, "zero2"), "glm4_moe", -1, {"masks": "idle"}, NO_SAVINGS),
        (layout(4, "fsdp"), "glm4_moe", -1, {"optim": "muon", "tied": False}, NO_SAVINGS),
        (layout(4, "hsdp", dp_shard=2), "qwen2_moe", 0, {"masks": "empty"}, NO_SAVINGS),
        (layout(4, "ddp", tp=4), "glm4_moe", -1, {}, NO_SAVINGS),
        (layout(4, "ddp", tp=4, sequence_parallel=False), "qwen2_moe", -1, {}, NO_SAVINGS),
        (layout(4, "fsdp", tp=2), "glm4_moe", -1, {"optim": "muon"}, MemoryConfig("every")),
        (layout(4, "ddp", pp=2), "glm4_moe", -1, {"packed": True}, NO_SAVINGS),
        (layout(4, "ddp", cp=4, cp_kind="ring"), "glm4_moe", -1, {}, NO_SAVINGS),
        (layout(4, "fsdp", cp=2), "qwen2_moe", 0, {"packed": True}, NO_SAVINGS),
        (layout(4, "ddp", pp=2, tp=2), "qwen2_moe", -1, {}, NO_SAVINGS),
        (layout(8, "ddp", pp=2, cp=2, tp=2), "glm4_moe", -1, {}, NO_SAVINGS),
    )
]
"""Experts under each axis and kind; families, optimizers and recomputation by pairs."""
PAIRS = [
    cases_of(parallel, [Problem(pairs=True, **values)])[-1]
    for parallel, values in (
        (LAYOUTS[0], {"tied": False}),
        (layout(4, "ddp"), {"adapter": "lora"}),
        (layout(4, "zero2"), {"masks": "idle", "optim": "lion"}),
        (layout(4, "fsdp"), {"family": "gpt2"}),
        (layout(4, "hsdp", dp_shard=2), {"adapter": "lora", "base_codes": "none"}),
        (layout(4, "ddp", tp=4), {"family": "qwen2"}),
        (layout(4, "ddp", tp=4, sequence_parallel=False), {"masks": "empty"}),
        (layout(4, "fsdp", tp=2), {"adapter": "lora", "family": "qwen3"}),
    )
]
"""Layouts that keep rows whole, with the loss of pairs of answers."""
NOISY = [
    cases_of(parallel, [Problem(neftune=40.0, **values)])[-1]
    for parallel, values in (
        (layout(4, "fsdp", tp=2), {"family": "gpt2"}),
        (layout(4, "ddp", tp=4, sequence_parallel=False), {"packed": True}),
        (layout(4, "ddp", pp=2, pp_schedule="zero_bubble_v"), {"adapter": "lora"}),
        (layout(4, "zero1", pp=2, tp=2), {}),
        (layout(4, "ddp", cp=2, tp=2, cp_kind="ulysses"), {}),
        (layout(4, "fsdp", cp=2, cp_balanced=True), {"tied": False}),
    )
]
"""Each way to cut tokens and stages, with noise on embeddings."""
SENT = [
    dataclasses.replace(
        cases_of(parallel, [Problem(family=family, layers=parallel.pp * 2, **values)])[size],
        memory=memory,
    )
    for parallel, family, size, values, memory in (
        (layout(4, "fsdp", ep=4), "glm4_moe", 0, {"packed": True}, NO_SAVINGS),
        (layout(4, "zero1", ep=4), "qwen2_moe", -1, {"optim": "muon"}, MemoryConfig("full")),
        (layout(4, "zero2", ep=4), "glm4_moe", 0, {"masks": "idle", "ema": 0.5}, NO_SAVINGS),
        (layout(4, "hsdp", dp_shard=2, ep=2), "qwen2_moe", 0, {"tied": False}, NO_SAVINGS),
        (layout(4, "fsdp", tp=2, ep=2), "glm4_moe", -1, {}, MemoryConfig("every")),
        (layout(4, "fsdp", cp=2, cp_kind="ring", ep=4), "glm4_moe", -1, {}, NO_SAVINGS),
        (layout(4, "zero1", pp=2, ep=2), "qwen2_moe", -1, {"masks": "empty"}, NO_SAVINGS),
        (layout(8, "fsdp", pp=2, tp=2, ep=2), "glm4_moe", -1, {"packed": True}, NO_SAVINGS),
    )
]
"""Experts that tokens travel to, under each kind that shards weights and beside each axis."""
SENT_CROSS = [
    (layout(4, "fsdp", ep=4), layout(4, "zero1", pp=2)),
    (layout(4, "ddp", tp=2), layout(4, "hsdp", dp_shard=2, ep=2)),
    (layout(4, "fsdp", tp=2, ep=2), layout(4, "fsdp", ep=4)),
]
"""Who saves, who loads."""
CODED = [
    cases_of(parallel, [Problem(adapter="lora", base_codes="nf4", **values)])[-1]
    for parallel, values in (
        (LAYOUTS[0], {"packed": True}),
        (layout(4, "ddp"), {"family": "gpt2", "optim": "lion"}),
        (layout(4, "ddp", tp=2), {"tied": False}),
        (layout(4, "ddp", tp=2, sequence_parallel=False), {"family": "gpt2"}),
        (layout(4, "ddp", pp=4), {"masks": "idle"}),
        (layout(4, "ddp", pp=2, pp_schedule="zero_bubble"), {"tied": False}),
        # AdamW makes steps of roundings where a gradient is nearly zero: 4e-10 of the weights here.
        (layout(4, "ddp", cp=2, tp=2), {"optim": "sgd"}),
    )
]
"""Layouts of an adapter beside a base in 4 bits."""
SPARSE = [
    cases_of(parallel, [Problem(family="sparse", **values)])[-1]
    for parallel, values in (
        (LAYOUTS[0], {"packed": True}),
        (layout(4, "zero1"), {"masks": "idle"}),
        (layout(4, "fsdp"), {"packed": True}),
        (layout(4, "ddp", tp=4), {"packed": True, "tied": False}),
        (layout(4, "ddp", pp=4), {"packed": True}),
        (layout(4, "ddp", cp=4, cp_kind="ring", cp_balanced=True), {"packed": True}),
        (layout(4, "ddp", cp=4), {}),
        (layout(4, "ddp", cp=2, tp=2, cp_kind="ulysses"), {"packed": True}),
    )
]
"""Patterns of attention under each axis."""
YOUNGER = [
    cases_of(parallel, [Problem(family=family, **values)])[-1]
    for parallel, family, values in (
        (LAYOUTS[0], "gemma", {"packed": True}),
        (LAYOUTS[0], "gpt_neox", {"optim": "muon"}),
        (layout(4, "ddp"), "gemma", {"neftune": 40.0}),
        (layout(4, "zero1"), "gpt_neox", {"tied": False, "masks": "idle"}),
        (layout(4, "fsdp"), "gemma", {"tied": False, "optim": "lion"}),
        (layout(4, "fsdp", tp=2), "gpt_neox", {"adapter": "lora"}),
        (layout(4, "fsdp", tp=2), "gemma", {"kv_heads": 1}),
        (layout(4, "ddp", tp=4), "gpt_neox", {"packed": True}),
        (layout(4, "ddp", tp=4, tp_overlap="ring"), "gemma", {}),
        (layout(4, "ddp", tp=2, sequence_parallel=False), "gpt_neox", {"tied": False}),
        (layout(4, "ddp", tp=2, sequence_parallel=False), "gemma", {"adapter": "lora"}),
        (layout(4, "zero1", pp=2, pp_schedule="zero_bubble"), "gpt_neox", {"packed": True}),
        (layout(4, "ddp", pp=2, tp=2), "gemma", {"masks": "empty"}),
        (layout(4, "ddp", cp=2, tp=2), "gpt_neox", {}),
        (layout(4, "ddp", cp=4, cp_kind="ring"), "gemma", {"packed": True}),
        (layout(8, "fsdp", pp=2, tp=2), "gpt_neox", {"packed": True}),
    )
]
"""Gemma and GPT-NeoX under each axis and kind."""
HALF_BASE = Problem(adapter="lora", base_dtype="bf16", dtype="bf16", layers=4)
ADAPTED_CROSS = [
    (problem, one, into)
    for one, into in (
        (layout(4, "fsdp", tp=2), layout(4, "zero1", pp=2)),
        (layout(4, "zero1", pp=2), layout(4, "hsdp", dp_shard=2)),
        (layout(4, "ddp", pp=2, tp=2), LAYOUTS[0]),
    )
    for problem in (Problem(adapter="lora", layers=4), HALF_BASE)
]
"""What is trained, who saves, who loads; frozen weights are in no checkpoint."""

TRAINED = ADAPTED + DECOMPOSED + EXPERTS + PAIRS + NOISY + SENT + CODED + YOUNGER + SPARSE
